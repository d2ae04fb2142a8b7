// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

var (
	_ datapath.DataPlane = (*DataPlane)(nil)
	_ datapath.Network   = (*Network)(nil)
)

func service(port uint16, backends int) datapath.Service {
	s := datapath.Service{Frontends: []datapath.Frontend{
		{Addr: netip.AddrPortFrom(netip.MustParseAddr("10.96.0.7"), port), Protocol: datapath.TCP},
	}}
	addr := netip.MustParseAddr("10.0.1.2")
	for range backends {
		s.Backends = append(s.Backends, datapath.Backend{Addr: netip.AddrPortFrom(addr, 8080), Weight: 1})
		addr = addr.Next()
	}
	return s
}

func TestTablesAreFilledAndEmptied(t *testing.T) {
	tables := datapath.DefaultTables()
	tables.Backends = 5
	d := New(Options{Tables: tables})
	services, ctx := d.Services(), t.Context()
	for _, step := range []struct {
		name     datapath.ServiceName
		backends int // -1: delete
		want     error
		used     uint64
	}{
		{"a", 3, nil, 3}, {"b", 3, datapath.ErrCapacity, 3}, {"b", 2, nil, 5}, {"a", 3, nil, 5},
		{"a", 4, datapath.ErrCapacity, 5}, {"a", 1, nil, 3}, {"a", -1, nil, 2}, {"a", -1, nil, 2},
	} {
		var err error
		if step.backends < 0 {
			err = services.Delete(ctx, step.name)
		} else {
			err = services.Update(ctx, step.name, service(4660, step.backends))
		}
		usage, _ := d.Telemetry().Usage(ctx)
		if !errors.Is(err, step.want) || usage["backends"].Used != step.used {
			t.Errorf("%s with %d backends: %v, %d used; want %v, %d used", step.name, step.backends, err, usage["backends"].Used, step.want, step.used)
		}
	}
}

func TestFaultsAreAsAskedFor(t *testing.T) {
	d := New(Options{Faults: 0.5, Seed: 7})
	failed, done := 0, 0
	for range 1000 {
		d.SetFaults(0.5)
		err := d.Services().Update(t.Context(), "web", service(4660, 1))
		_, there := d.services.get("web")
		switch {
		case err == nil && !there:
			t.Fatal("an update that did not fail was not done")
		case err != nil && !errors.Is(err, ErrInjected):
			t.Fatal(err)
		case err != nil:
			failed++
			if there {
				done++
			}
		}
		d.SetFaults(0)
		if err := d.Services().Delete(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
	}
	if failed < 400 || failed > 600 || done < failed/3 || done > 2*failed/3 {
		t.Errorf("%d of 1000 failed, %d of them were done; want half and half of that", failed, done)
	}
}

func TestPortNeedsADevice(t *testing.T) {
	d := New(Options{})
	ctx := t.Context()
	if err := d.Ports().Update(ctx, "lo", datapath.Port{Device: "lo"}); err != nil {
		t.Error(err)
	}
	for _, p := range []datapath.Port{{Device: "nosuchdevice"}, {Device: "lo", Switch: true}} {
		if err := d.Ports().Update(ctx, "x", p); !errors.Is(err, datapath.ErrAbsent) {
			t.Errorf("port %+v: %v, want absent", p, err)
		}
	}
	if s, ok := d.Telemetry().PortState("lo"); !ok || s.Index != 1 {
		t.Errorf("state of lo: %+v, %v", s, ok)
	}
	if _, ok := d.Telemetry().PortState("x"); ok {
		t.Error("a port that was refused has a state")
	}
}

func TestDamageIsSeen(t *testing.T) {
	d := New(Options{})
	ctx := t.Context()
	verify := func(want bool) {
		t.Helper()
		if got, err := d.Services().Verify(ctx, "web"); got != want || err != nil {
			t.Errorf("verify: %v, %v; want %v", got, err, want)
		}
	}
	for _, remove := range []bool{false, true} {
		if err := d.Services().Update(ctx, "web", service(4660, 1)); err != nil {
			t.Fatal(err)
		}
		verify(true)
		if err := d.DamageService("web", remove); err != nil {
			t.Fatal(err)
		}
		verify(false)
	}
}

func TestConnectionsComeInPages(t *testing.T) {
	d := New(Options{})
	for i := range 7 {
		p := datapath.TCP
		if i == 3 {
			p = datapath.UDP
		}
		d.Track(datapath.Connection{Protocol: p, Original: datapath.Tuple{
			Source: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), uint16(1000+i)),
		}})
	}
	ctx, f := context.Background(), datapath.ConnectionFilter{Protocol: datapath.TCP}
	var got []uint16
	cursor, pages := "", 0
	for {
		page, next, err := d.Connections().List(ctx, f, cursor, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page {
			got = append(got, c.Original.Source.Port())
		}
		if pages++; next == "" {
			break
		}
		cursor = next
	}
	if want := []uint16{1000, 1001, 1002, 1004, 1005, 1006}; len(got) != len(want) || got[3] != 1004 || pages != 3 {
		t.Errorf("%d pages with %v, want 3 with %v", pages, got, want)
	}
	if n, err := d.Connections().Flush(ctx, f); n != 6 || err != nil {
		t.Errorf("flushed %d, %v; want 6", n, err)
	}
	if _, _, err := d.Connections().List(ctx, f, "no number", 2); err == nil {
		t.Error("a strange cursor was taken")
	}
}

func TestSetsOfRules(t *testing.T) {
	tables := datapath.DefaultTables()
	tables.Rules, tables.Prefixes = 3, 4
	d := New(Options{Tables: tables})
	ctx := t.Context()
	prefixes := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")}
	set := datapath.FirewallSet{
		Rules:  map[datapath.RuleName]datapath.FirewallRule{"a": {Match: datapath.Match{Source: prefixes[:1]}}, "b": {}},
		Groups: map[datapath.GroupName]datapath.AddressGroup{"g": {Prefixes: prefixes}},
	}
	if err := d.Firewall().Update(ctx, datapath.NodeSet, set); err != nil {
		t.Fatal(err)
	}
	usage, _ := d.Telemetry().Usage(ctx)
	if r, p := usage["rules"], usage["prefixes"]; r != (datapath.Usage{Used: 2, Size: 3}) || p != (datapath.Usage{Used: 3, Size: 4}) {
		t.Errorf("rules %+v, prefixes %+v; want 2 of 3, 3 of 4", r, p)
	}
	nat := datapath.NATSet{Rules: map[datapath.NATName]datapath.NAT{"out": {Addresses: prefixes}}}
	if err := d.NAT().Update(ctx, datapath.NodeSet, nat); !errors.Is(err, datapath.ErrCapacity) {
		t.Errorf("prefixes that do not fit: %v", err)
	}
	d.Refuse("b", datapath.ErrAbsent)
	err := d.Firewall().Update(ctx, datapath.NodeSet, set)
	if r, ok := errors.AsType[*datapath.RuleError](err); !ok || r.Rule != "b" || !errors.Is(err, datapath.ErrAbsent) {
		t.Errorf("a rule that is refused: %v", err)
	}
	undecodable := datapath.NATSet{Rules: map[datapath.NATName]datapath.NAT{"out": {Match: datapath.Match{DestinationGroups: []datapath.GroupName{"undecodable"}}}}}
	err = d.NAT().Update(ctx, datapath.NodeSet, undecodable)
	if r, ok := errors.AsType[*datapath.RuleError](err); !ok || r.Rule != "out" {
		t.Errorf("a rule whose group does not exist: %v", err)
	}
	if _, there, _, translates := d.Rules(); !there || translates {
		t.Errorf("firewall %v, nat %v; want the first alone", there, translates)
	}
}

func TestNetwork(t *testing.T) {
	n := NewNetwork(Options{})
	ctx := t.Context()
	if err := n.Bridges().Update(ctx, "br0", datapath.Bridge{Device: "br0"}); err != nil {
		t.Fatal(err)
	}
	if err := n.Routes().Update(ctx, "lan", datapath.Route{Prefix: netip.MustParsePrefix("10.1.0.0/16")}); err != nil {
		t.Fatal(err)
	}
	if err := n.DamageRoute("lan"); err != nil {
		t.Fatal(err)
	}
	<-n.Changed()
	if ok, err := n.Routes().Verify(ctx, "lan"); ok || err != nil {
		t.Errorf("a route that is gone: %v, %v", ok, err)
	}
	if err := n.Bridges().Delete(ctx, "br0"); err != nil {
		t.Fatal(err)
	}
	if got, want := n.Calls(), []string{"put bridge", "put route", "remove route", "remove bridge"}; !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	n.SetFaults(1)
	if err := n.Maintain(ctx); !errors.Is(err, ErrInjected) || n.Maintained() != 0 {
		t.Errorf("maintain: %v, done %d times", err, n.Maintained())
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestOmittedRuleReturns: a host port that was omitted, since the node did not have its address, is
// not Ready before the rules that include it are in force, although other rules are.
func TestOmittedRuleReturns(t *testing.T) {
	var present atomic.Bool
	plane := backends.NewFake(backends.FakeOptions{Device: func(p datapath.Port) (datapath.PortState, bool) {
		if p.Address.IsValid() && !present.Load() {
			return datapath.PortState{}, false
		}
		return datapath.PortState{Device: "eth0", Index: 7, MTU: 1500}, true
	}})
	store, reports := openStore(t), &recorder{}
	n := start(t, Options{Store: store, Plane: plane, StatusChanged: reports.record})
	hostPort := objectOf(state.KindNAT, "pod-80", &state.NAT{NAT: datapath.NAT{
		Type: datapath.DNAT, Match: datapath.Match{Destination: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}},
	}})
	hostPort.Owner = state.OwnerCNI
	attach(t, store)
	other := nat("other")
	revision := commit(t, store, []*state.Object{hostPort, other})
	waitFor(t, n, revision, other)
	reports.want(t, "NAT/other done", "NAT/pod-80 pending")
	if left, err := n.Wait(within(t, 50*time.Millisecond), revision, []state.Key{hostPort.Key}); err == nil || len(left) != 1 {
		t.Errorf("waited with %v, left %v; want the host port", err, left)
	}
	if some, count := n.NotDone(5); count != 1 || !strings.Contains(some[hostPort.Key].Message, "192.0.2.7 is not an address of this node") {
		t.Errorf("not done: %v", some)
	}

	plane.Refuse("pod-80", errors.New("no room"))
	present.Store(true)
	plane.SignalChange()
	reports.want(t, "NAT/pod-80 failed")
	if s, _ := n.Status(hostPort.Key); s.State != reconcile.Failed || s.Message != "no room" {
		t.Errorf("status %+v, want that there is no room", s)
	}
	plane.Refuse("pod-80", nil)
	reports.want(t, "NAT/pod-80 done")
	present.Store(false)
	plane.SignalChange()
	reports.want(t, "NAT/pod-80 pending")
}

// TestNothingToMasquerade: a PodNetwork that masquerades towards no destination needs no NAT rule.
func TestNothingToMasquerade(t *testing.T) {
	r := newPodRig(t)
	r.apply(uplink("eth0"), masqueraded("one", "10.7.1.0/24", "0.0.0.0/0"))
}

// slowEndpoints is a network in which no Endpoint is applied before proceed is closed.
type slowEndpoints struct {
	*backends.FakeNetwork
	proceed chan struct{}
}

type slowEndpointTable struct {
	datapath.Table[datapath.EndpointName, datapath.Endpoint]
	proceed chan struct{}
}

func (s slowEndpoints) Endpoints() datapath.Table[datapath.EndpointName, datapath.Endpoint] {
	return slowEndpointTable{s.FakeNetwork.Endpoints(), s.proceed}
}

func (s slowEndpointTable) Update(ctx context.Context, name datapath.EndpointName, e datapath.Endpoint) error {
	select {
	case <-s.proceed:
	case <-ctx.Done():
	}
	return s.Table.Update(ctx, name, e)
}

// TestNotReadyBeforeItsLastTable: a PodNetwork is not Ready while some of its rows still wait for
// another object in the same transaction.
func TestNotReadyBeforeItsLastTable(t *testing.T) {
	network := slowEndpoints{backends.NewFakeNetwork(backends.FakeOptions{}), make(chan struct{})}
	via := func() string {
		_, routes := network.Content()
		if r, ok := routes["pods#default4"]; ok {
			return r.NextHops[0].Via.String()
		}
		return "none"
	}
	store, done := openStore(t), make(chan string, 100)
	n := start(t, Options{
		Store: store, Plane: endpointPlane(), Network: network, Devices: Devices{Host: "loxi_host", Switch: "hs_host"},
		StatusChanged: func(k state.Key, s Status) {
			if k.Kind == state.KindPodNetwork && s.State == reconcile.Done {
				done <- via()
			}
		},
	})
	one := podNetwork("one", "10.7.1.0/24")
	waitFor(t, n, commit(t, store, []*state.Object{one}), one)
	if got := <-done; got != "10.7.1.2" {
		t.Errorf("Ready with a default route via %s", got)
	}
	commit(t, store, []*state.Object{podNetwork("one", "10.7.2.0/24"), endpoint("pod", "one", 5, nil)})
	for range 20 {
		if s, _ := n.Status(one.Key); s.State == reconcile.Done && s.Revision > 1 && via() != "10.7.2.2" {
			t.Fatalf("status %+v with a default route via %s", s, via())
		}
		time.Sleep(5 * time.Millisecond)
	}
	close(network.proceed)
	if got := <-done; got != "10.7.2.2" {
		t.Errorf("Ready with a default route via %s", got)
	}
}

// TestUnusedGroups: a group that no rule refers to is Ready as soon as the node has received it,
// although no set changes, and although the rules in force are not the desired ones.
func TestUnusedGroups(t *testing.T) {
	store, plane := attachedStore(t), backends.NewFake(backends.FakeOptions{})
	n := start(t, Options{Store: store, Plane: plane})
	plane.Refuse("bad", errors.New("too wide"))
	commit(t, store, []*state.Object{rule("bad", 1)})
	for i := range 50 {
		g := group("idle", fmt.Sprintf("10.%d.0.0/16", i))
		waitFor(t, n, commit(t, store, []*state.Object{g}), g)
	}
	idle := state.Key{Kind: state.KindAddressGroup, Name: "idle"}
	if left, err := n.Wait(within(t, 5*time.Second), commit(t, store, nil, idle), []state.Key{idle}); err != nil {
		t.Errorf("deleted: left %v: %v", left, err)
	}
}

// TestDamagedRulesAreReported: while a set that was changed externally is repaired, its rules are
// not Ready; that they are Ready again is reported.
func TestDamagedRulesAreReported(t *testing.T) {
	store, plane, reports := attachedStore(t), backends.NewFake(backends.FakeOptions{}), &recorder{}
	n := start(t, Options{Store: store, Plane: plane, StatusChanged: reports.record})
	waitFor(t, n, commit(t, store, []*state.Object{rule("a", 1), nat("out")}), rule("a", 1), nat("out"))
	reports.want(t, "FirewallRule/a done", "NAT/out done")
	if err := plane.DamageFirewall(); err != nil {
		t.Fatal(err)
	}
	plane.SignalChange()
	reports.want(t, "FirewallRule/a done")
}

// TestFailedDeletion: an object that was deleted from the store but not from the data plane counts
// as not done.
func TestFailedDeletion(t *testing.T) {
	store, plane := attachedStore(t), backends.NewFake(backends.FakeOptions{})
	n := start(t, Options{Store: store, Plane: plane})
	web := service("web", 1, 10, 1)
	waitFor(t, n, commit(t, store, []*state.Object{web}), web)
	plane.SetFaults(1)
	revision := commit(t, store, nil, web.Key)
	if left, err := n.Wait(within(t, 100*time.Millisecond), revision, []state.Key{web.Key}); err == nil || len(left) != 1 {
		t.Errorf("waited with %v, left %v; want web", err, left)
	}
	// Faults may also have hit the Interface.
	if some, count := n.NotDone(5); count-len(some) != 1 {
		t.Errorf("%d not done, of which %v; want another one that does not exist", count, some)
	}
	plane.SetFaults(0)
	waitFor(t, n, revision, web)
	if some, count := n.NotDone(5); count != len(some) {
		t.Errorf("%d not done, of which %v; want no other", count, some)
	}
}

func TestWorst(t *testing.T) {
	untried := Status{State: reconcile.Pending, Message: "not applied yet"}
	absent := Status{State: reconcile.Pending, Reason: reconcile.ReasonAbsent, Message: "no device", Failures: 2}
	failed := Status{State: reconcile.Failed, Reason: reconcile.ReasonOther, Message: "no room", Failures: 1}
	for _, tt := range []struct {
		list []Status
		want Status
	}{
		{nil, Status{State: reconcile.Done}},
		{[]Status{failed}, failed},
		{[]Status{untried, untried}, untried},
		{[]Status{absent, absent}, absent},
		{[]Status{absent, untried}, Status{State: reconcile.Pending, Reason: reconcile.ReasonAbsent, Message: "no device"}},
		{[]Status{absent, failed}, Status{State: reconcile.Failed, Reason: reconcile.ReasonOther, Message: "no device; no room", Failures: 2}},
		{[]Status{untried, failed}, Status{State: reconcile.Failed, Reason: reconcile.ReasonOther, Message: "no room", Failures: 1}},
	} {
		if got := worst(tt.list); got != tt.want {
			t.Errorf("worst of %+v: %+v, want %+v", tt.list, got, tt.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// eventually waits for the given number of events, and returns them.
func (h *harness) eventually(count int) []string {
	h.t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		h.mu.Lock()
		events := slices.Clone(h.events)
		h.mu.Unlock()
		if len(events) >= count {
			return events
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%d events, want %d: %q", len(events), count, events)
		}
	}
}

func (h *harness) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Run(ctx)
	}()
	h.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// TestChangeEvents: every change is published once, in order, including changes made before Run.
func TestChangeEvents(t *testing.T) {
	h := newHarness(t)
	result[api.ChangeResult](h, "apply", `{"objects":[`+staged("a", 1)+`]}`)
	h.run()
	result[api.ChangeResult](h, "apply", `{"objects":[`+staged("a", 1)+","+staged("b", 2)+`]}`)
	h.eventually(2)
	result[api.ChangeResult](h, "delete", `{"objects":[{"kind":"Service","name":"a"},{"kind":"Service","name":"none"}]}`)
	want := []string{
		`changes {"seq":0,"revision":1,"kind":"Service","name":"a","action":"created"}`,
		`changes {"seq":0,"revision":2,"kind":"Service","name":"b","action":"created"}`,
		`changes {"seq":0,"revision":3,"kind":"Service","name":"a","action":"deleted"}`,
	}
	if got := h.eventually(3); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestChangeEventsOfLargeTransaction: every object of a transaction is published, even if the
// store's log is too short.
func TestChangeEventsOfLargeTransaction(t *testing.T) {
	h := newHarness(t)
	h.published = 1 << 40 // as if the log did not reach back that far
	result[api.ChangeResult](h, "apply", `{"objects":[`+staged("a", 1)+","+staged("b", 2)+`]}`)
	h.publishChanges(h.Store.Snapshot(), []state.Key{{Kind: "Service", Name: "a"}, {Kind: "Service", Name: "gone"}})
	want := []string{
		`changes {"seq":0,"revision":1,"kind":"Service","name":"a","action":"updated"}`,
		`changes {"seq":0,"revision":1,"kind":"Service","name":"gone","action":"deleted"}`,
	}
	if got := h.eventually(2); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestDroppedPacket: ARP has no ports, and fields that were not parsed are omitted.
func TestDroppedPacket(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, c := range []struct {
		reason       string
		protocol     datapath.Protocol
		source, dest string
		want         api.Packet
	}{
		{"spoofed", 0, "10.244.1.77:0", "10.244.1.6:0", api.Packet{Protocol: "arp", Tuple: api.Tuple{Source: "10.244.1.77", Destination: "10.244.1.6"}}},
		{"spoofed", 0, "0.0.0.0:0", "10.244.1.6:0", api.Packet{Protocol: "arp", Tuple: api.Tuple{Source: "0.0.0.0", Destination: "10.244.1.6"}}},
		{"spoofed", 0, "[::]:0", "[::]:0", api.Packet{}},
		{"spoofed", datapath.UDP, "10.244.1.77:68", "10.244.1.6:67", api.Packet{Protocol: "udp", Tuple: api.Tuple{Source: "10.244.1.77:68", Destination: "10.244.1.6:67"}}},
		{"no_route", 0, "10.244.1.77:0", "10.244.1.6:0", api.Packet{Protocol: "0", Tuple: api.Tuple{Source: "10.244.1.77:0", Destination: "10.244.1.6:0"}}},
	} {
		d := datapath.Drop{Reason: c.reason, Packet: datapath.Packet{Device: "hs3", Protocol: c.protocol, Tuple: datapath.Tuple{Source: at(c.source), Destination: at(c.dest)}}}
		c.want.Device, c.want.Hook = "hs3", "ingress"
		if got := droppedPacket(&d); got != c.want {
			t.Errorf("%s of %s > %s: %+v, want %+v", c.reason, c.source, c.dest, got, c.want)
		}
	}
}

func TestOtherEvents(t *testing.T) {
	h := newHarness(t)
	h.run()
	h.StatusChanged(state.Key{Kind: "Interface", Name: "up"}, api.Status{State: api.StateError, Message: "gone"})
	h.HealthChanged("web", netip.MustParseAddrPort("10.0.1.2:8080"), "unhealthy", "refused")
	at := netip.MustParseAddrPort
	h.plane.samples <- datapath.Sample{Drop: &datapath.Drop{
		Reason: "no_backend", Service: "dns", Packet: datapath.Packet{
			Device: "eth7", Egress: true, Protocol: datapath.UDP, Length: 74,
			Tuple: datapath.Tuple{Source: at("203.0.113.7:4660"), Destination: at("198.51.100.10:53")},
		},
	}}
	h.plane.samples <- datapath.Sample{Decision: &datapath.Decision{Rule: "no-telnet", Action: datapath.ActionReject, Packet: datapath.Packet{
		Device: "eth7", Protocol: datapath.TCP, Length: 60, Tuple: datapath.Tuple{Source: at("203.0.113.7:4661"), Destination: at("198.51.100.10:23")},
	}}}
	c := connection(0)
	h.plane.samples <- datapath.Sample{Connection: &c, Opened: true}
	h.plane.samples <- datapath.Sample{Connection: &c}
	got := h.eventually(6)
	for i, want := range []string{
		`status {"seq":0,"kind":"Interface","name":"up","state":"Error","message":"gone"}`,
		`status {"seq":0,"kind":"Service","name":"web","state":"unhealthy","message":"refused","backend":"10.0.1.2:8080"}`,
		`drops {"seq":0,"reason":"no_backend","device":"eth7","hook":"egress","protocol":"udp","source":"203.0.113.7:4660","destination":"198.51.100.10:53","service":"dns","length":74}`,
		`firewall {"seq":0,"rule":"no-telnet","action":"reject","device":"eth7","hook":"ingress","protocol":"tcp","source":"203.0.113.7:4661","destination":"198.51.100.10:23","length":60}`,
		`connections {"seq":0,"action":"opened","protocol":"tcp",`,
		`connections {"seq":0,"action":"closed","protocol":"tcp",`,
	} {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("event %d:\n got %s\nwant %s", i, got[i], want)
		}
	}
}

// TestManyObjects: replacing 10,000 services with 10 backends each, and changing one of them, takes
// no longer than limits that allow for a slow machine.
func TestManyObjects(t *testing.T) {
	h := newHarness(t)
	params := manyServices(10000, "t")
	start := time.Now()
	for i, p := range params {
		r := result[api.ChangeResult](h, "replace", p)
		if last := i == len(params)-1; last && r.Summary["created"] != 10000 {
			t.Fatalf("%v", r.Summary)
		}
	}
	took := time.Since(start)
	start = time.Now()
	const changes = 20
	for i := range changes {
		result[api.ChangeResult](h, "apply", fmt.Sprintf(`{"objects":[{"kind":"Service","name":"service-5000","owner":"k8s","spec":{"frontends":["10.96.19.136:80/tcp"],"backends":[{"address":"10.9.9.%d:8080"}]}}]}`, i+1))
	}
	one := time.Since(start) / changes
	t.Logf("replace took %s, one change %s", took, one)
	if took > 10*time.Second || one > 500*time.Millisecond {
		t.Errorf("replace took %s, one change %s", took, one)
	}
}

// manyServices returns the requests that make up a replace of count services with ten backends
// each.
func manyServices(count int, transaction string) (requests []string) {
	head := fmt.Sprintf(`{"owner":"k8s","kinds":["Service"],"transaction":%q,"more":true,"objects":[`, transaction)
	var b strings.Builder
	for i := range count {
		if b.Len() == 0 {
			b.WriteString(head)
		} else {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"kind":"Service","name":"service-%d","spec":{"frontends":["10.96.%d.%d:80/tcp"],"backends":[`, i, i>>8, i&255)
		for j := range 10 {
			if j > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"address":"10.%d.%d.%d:8080","weight":%d}`, 1+j, i>>8, i&255, j+1)
		}
		b.WriteString("]}}")
		if b.Len() > api.MaxRequest-4096 {
			requests = append(requests, b.String()+"]}")
			b.Reset()
		}
	}
	if b.Len() > 0 {
		requests = append(requests, b.String()+"]}")
	}
	return append(requests, strings.Replace(head, `"more":true,`, "", 1)+"]}")
}

func BenchmarkReplace(b *testing.B) {
	for b.Loop() {
		h := newHarness(b)
		for _, p := range manyServices(10000, "t") {
			result[api.ChangeResult](h, "replace", p)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// endpointPatience is how long pods may take to be ready, on a busy machine.
const endpointPatience = 20 * time.Second

func (s *endpointSite) stateOf(name string) string {
	s.t.Helper()
	out := s.LLCLI("get", "endpoints", name, "-o", "json")
	for _, state := range []string{api.StateReady, api.StatePending, api.StateError} {
		if strings.Contains(out, `"state": "`+state+`"`) {
			return state
		}
	}
	return out
}

func (s *endpointSite) wantState(name, state string) {
	s.t.Helper()
	testnet.Eventually(s.t, endpointPatience, fmt.Sprintf("Endpoint %s is %s", name, state), func() bool { return s.stateOf(name) == state })
}

func (s *endpointSite) spoofed() uint64 {
	s.t.Helper()
	return s.Counters("Endpoint", "shop/x").Drops["spoofed"]
}

// newEndpoints starts a daemon with three pods that are Ready; more are further lines of its configuration.
func newEndpoints(t *testing.T, more ...string) *endpointSite {
	t.Helper()
	s := newEndpointSite(t)
	if len(more) > 0 {
		s.Configure(append(more, "switch: {namespace: "+s.name+"}")...)
	}
	s.Start()
	s.LLCLI("apply", "-f", s.File(s.objects()))
	testnet.Eventually(t, patience, "the namespace is there", s.there)
	s.wantState("shop/a", api.StatePending)
	for _, name := range []string{"a", "b", "x"} {
		s.plugIn(name)
	}
	s.ready(endpointPatience, "pods are ready")
	return s
}

// TestEndpoint: pods talk to each other, and none can use another pod's addresses, whatever
// happens to the daemon.
func TestEndpoint(t *testing.T) {
	s := newEndpoints(t)
	a, b := s.pods["a"], s.pods["b"]
	for _, target := range []string{"10.72.0.3:4660", "[fd72::3]:4660"} {
		s.reach(a.ns, target)
		s.reach(s.pods["x"].ns, target)
	}
	out := s.LLCLI("get", "endpoints", "-o", "wide")
	for _, want := range []string{"shop/a", "10.72.0.2", "fd72::2", "02:00:5e:72:00:02", "hs1", "Ready", "app=a"} {
		if !strings.Contains(out, want) {
			t.Errorf("llcli get endpoints has no %q:\n%s", want, out)
		}
	}
	events := s.node.Start(t, programs.CLI, "--socket", s.Socket, "events", "drops")
	forged := s.forged()
	before := s.spoofed()
	s.attack("at first", forged)
	if n := s.spoofed() - before; n != uint64(len(forged)) {
		t.Errorf("%d counted as spoofed, want %d", n, len(forged))
	}
	testnet.Eventually(t, patience, "an event names the endpoint", func() bool {
		s.attack("for an event", forged)
		return strings.Contains(events.Output(), "spoofed") && strings.Contains(events.Output(), "endpoint shop/x")
	})
	flood := s.flood()
	before = s.spoofed()
	s.attack("flood", flood)
	if n := s.spoofed() - before; n != uint64(len(flood)) {
		t.Errorf("%d of the flood counted as spoofed, want %d", n, len(flood))
	}
	if fdb := s.LLCLI("kernel", "fdb"); strings.Contains(fdb, "02:99:") || strings.Contains(fdb, b.macText()) && !strings.Contains(fdb, "hs2") {
		t.Errorf("stations:\n%s", fdb)
	}

	// A connection between two pods on the fast path: no other pod can send on it.
	c, err := a.ns.Dial("tcp", "10.72.0.2:40404", "10.72.0.3:4660", patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s.converse(c, "first")
	testnet.Eventually(t, patience, "the connection takes the fast path", func() bool {
		s.converse(c, "again")
		list := s.Connections(api.ConnectionFilter{Endpoint: "shop/a", Protocol: "tcp"})
		return len(list) == 1 && list[0].Path == "fast" && list[0].From != nil && list[0].From.Pod == "a" && list[0].To != nil && list[0].To.Endpoint == "shop/b"
	})
	if out := s.LLCLI("connections", "--endpoint", "shop/b", "--protocol", "tcp"); !strings.Contains(out, "10.72.0.2:40404 (shop/a)") || !strings.Contains(out, "10.72.0.3:4660 (shop/b)") {
		t.Errorf("llcli connections:\n%s", out)
	}
	segment := func(mac [6]byte) []byte {
		return s.from(mac, testpkt.IPv4{Source: a.addr, Destination: b.addr}, testpkt.TCP{Source: 40404, Destination: 4660, Flags: testpkt.ACK, Seq: 1, Ack: 1}, testpkt.Payload("stolen"))
	}
	stolen := map[string][]byte{"stolen, own MAC": segment(s.pods["x"].mac), "stolen, its MAC": segment(a.mac)}
	s.attack("on a connection", stolen)
	for _, f := range s.heard.Frames() {
		if bytes.Contains(f, []byte("stolen")) || bytes.Contains(f, []byte("flood")) {
			t.Errorf("b got %x", f)
			break
		}
	}
	s.converse(c, "on")

	// x cannot send with another pod's MAC on its own connection either.
	x := s.pods["x"]
	testnet.Eventually(t, patience, "a flow of x takes the fast path", func() bool {
		_, err := testtraffic.TalkUDP(x.ns, "10.72.0.4:5001", "10.72.0.3:4660", []byte("own"))
		list := s.Connections(api.ConnectionFilter{Source: "10.72.0.4:5001"})
		return err == nil && len(list) == 1 && list[0].Path == "fast"
	})
	s.attack("on its own connection", map[string][]byte{"another's MAC": s.from(a.mac, testpkt.IPv4{Source: x.addr, Destination: b.addr}, testpkt.UDP{Source: 5001, Destination: 4660}, testpkt.Payload("masked"))})

	// The protection does not end with the daemon.
	s.Kill()
	s.attack("without a daemon", forged)
	s.attack("on a connection without a daemon", stolen)
	s.converse(c, "without a daemon")
	s.Start()
	s.ready(endpointPatience, "taken over")
	before = s.spoofed()
	s.attack("with another daemon", forged)
	if n := s.spoofed() - before; n != uint64(len(forged)) {
		t.Errorf("%d counted as spoofed after a restart, want %d", n, len(forged))
	}
	s.converse(c, "with another daemon")
}

func (s *endpointSite) converse(c net.Conn, word string) {
	s.t.Helper()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := c.Write([]byte(word + "\n")); err != nil {
		s.t.Fatalf("%s: %v", word, err)
	}
	var got []byte
	for b := make([]byte, 1500); !bytes.Contains(got, []byte(word+"\n")); {
		n, err := c.Read(b)
		if err != nil {
			s.t.Fatalf("%s: %q, %v", word, got, err)
		}
		got = append(got, b[:n]...)
	}
}

// TestEndpointDevices: a device is deleted and created again, while a daemon runs and while none
// does; a deleted Endpoint leaves nothing of ours on its device.
func TestEndpointDevices(t *testing.T) {
	s := newEndpoints(t)
	forged := s.forged()
	s.attack("at first", forged)
	again := func() {
		s.t.Run("unplug", func(t *testing.T) { testnet.Named(t, s.name).DeleteLink(t, "hs3") })
	}
	again()
	s.wantState("shop/x", api.StatePending)
	s.plugIn("x")
	s.wantState("shop/x", api.StateReady)
	s.attack("plugged in again", forged)

	s.Kill()
	again()
	s.plugIn("x")
	s.Start()
	s.wantState("shop/x", api.StateReady)
	s.attack("plugged in while no daemon ran", forged)

	// x gets a different address, and can no longer use the previous one.
	s.pods["x"].addr = s.pods["x"].addr.Next()
	s.pods["x"].ns.Addr(t, "eth0", s.pods["x"].addr.String()+"/24")
	s.LLCLI("apply", "--wait", "10s", "-f", s.File(s.pods["x"].endpoint()))
	s.attack("with another address", map[string][]byte{"its previous address": s.from(s.pods["x"].mac,
		testpkt.IPv4{Source: s.pods["x"].addr.Prev(), Destination: s.pods["b"].addr}, testpkt.UDP{Source: 4661, Destination: 4660}, testpkt.Payload("former"))})

	out, code, err := s.TryLLCLI("apply", "-f", s.File(strings.Replace(strings.Replace(s.pods["a"].endpoint(), "shop/a", "shop/other", 1), "hs1", "hs9", 1)))
	if code != 1 || !strings.Contains(fmt.Sprint(out, err), "belongs to Endpoint/shop/a already") {
		t.Errorf("an address for two: exit code %d, %s %v", code, out, err)
	}

	s.LLCLI("delete", "endpoint", "shop/x")
	testnet.Eventually(t, patience, "the device is out of the bridge, and down", func() bool {
		out, err := s.node.TryRun("ip", "-n", s.name, "-o", "link", "show", "hs3")
		return err == nil && !strings.Contains(out, "master br0") && strings.Contains(out, "state DOWN")
	})
	if _, err := testtraffic.TalkUDP(s.pods["a"].ns, "", "10.72.0.3:4660", []byte("still")); err != nil {
		t.Error(err)
	}
}

// TestEndpointFromTheFirst: of the packets that a pod sends from the
// moment that its link exists, only those with its own addresses get through, which they do once
// its Endpoint is Ready.
func TestEndpointFromTheFirst(t *testing.T) {
	s := newEndpoints(t)
	forged := s.forged()
	for range 10 {
		s.t.Run("unplug", func(t *testing.T) { testnet.Named(t, s.name).DeleteLink(t, "hs3") })
		s.wantState("shop/x", api.StatePending)
		s.plugIn("x")
		wire, stop, done := s.x, make(chan struct{}), make(chan int)
		go func() {
			sent := 0
			defer func() { done <- sent }()
			for {
				for _, frame := range forged {
					select {
					case <-stop:
						return
					default:
						wire.Send(t, frame)
						sent++
					}
				}
			}
		}()
		s.wantState("shop/x", api.StateReady)
		close(stop)
		if sent := <-done; sent == 0 {
			t.Error("nothing was sent meanwhile")
		}
		s.attack("Ready", forged)
	}
}

// entryOf returns room for a value of a table.
func entryOf(m *ebpf.Map) any {
	if m.Type() == ebpf.PerCPUHash {
		return new([]uint64)
	}
	return new([]byte)
}

// TestEndpointsLeaveNothing: deleted pods leave no entry in any table.
func TestEndpointsLeaveNothing(t *testing.T) {
	s := newEndpoints(t)
	s.reach(s.pods["a"].ns, "10.72.0.3:4660")
	entries := func() map[string]uint64 {
		used := map[string]uint64{}
		for _, table := range []string{"ll_guard", "ll_bridge_port", "ll_device", "ll_port_drops"} {
			m, err := ebpf.LoadPinnedMap(s.PinDir+"/layout-1/"+table, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			for it, key, value := m.Iterate(), []byte(nil), entryOf(m); it.Next(&key, value); {
				used[table]++
			}
		}
		return used
	}
	forged := s.forged()
	churn := func() {
		s.LLCLI("delete", "endpoint", "shop/x")
		s.t.Run("unplug", func(t *testing.T) { testnet.Named(t, s.name).DeleteLink(t, "hs3") })
		s.plugIn("x")
		s.LLCLI("apply", "--wait", "20s", "-f", s.File(s.pods["x"].endpoint()))
		s.attack("again", forged)
	}
	churn()
	before := entries()
	for range 10 {
		churn()
	}
	testnet.Eventually(t, endpointPatience, "as many entries as before", func() bool { return maps.Equal(entries(), before) })
	if before["ll_guard"] != 12 {
		t.Errorf("%d entries of guards, want 12: of three devices, with three addresses each", before["ll_guard"])
	}
	s.Kill()
	s.Start()
	s.ready(endpointPatience, "taken over")
	if now := entries(); !maps.Equal(now, before) {
		t.Errorf("entries %v after a restart, %v before", now, before)
	}
}

// TestEndpointsByLabels: rules for a group selected by labels apply to the pods with these labels
// as soon as the change is committed.
func TestEndpointsByLabels(t *testing.T) {
	s := newEndpoints(t)
	talk := func(from string) error {
		_, err := s.pods[from].ns.Dial("tcp", "", "10.72.0.3:4660", time.Second)
		return err
	}
	s.Apply(`
kind: AddressGroup
name: friends
spec: {members: [{labels: {app: a}}]}
---
kind: FirewallRule
name: friends
spec: {priority: 10, match: {source: "group:friends", destination: 10.72.0.3, protocol: tcp}, action: allow}
---
kind: FirewallRule
name: others
spec: {priority: 20, match: {destination: 10.72.0.3, protocol: tcp}, action: reject}
`)
	if err := talk("a"); err != nil {
		t.Errorf("a has the label: %v", err)
	}
	if err := talk("x"); err == nil {
		t.Error("x does not have the label")
	}
	swapped := strings.ReplaceAll(s.pods["a"].endpoint(), "{app: a}", "{app: x}") + strings.ReplaceAll(s.pods["x"].endpoint(), "{app: x}", "{app: a}")
	s.Apply(swapped)
	if err := talk("x"); err != nil {
		t.Errorf("x has the label now: %v", err)
	}
	if err := talk("a"); err == nil {
		t.Error("a no longer has the label")
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"maps"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// bothFrontends contains a frontend of each family, with the addresses of its server and of others.
var bothFrontends = []struct{ name, frontend, server, own, via, client string }{
	{"IPv4", "198.51.100.10:80", "10.0.1.11:8080", "10.0.1.1:6443", "10.0.1.11", "192.0.2.10"},
	{"IPv6", "[2001:db8:53::10]:80", "[2001:db8:2::11]:8080", "[2001:db8:2::1]:6443", "2001:db8:2::11", "2001:db8:1::10"},
}

// frontendRules contains rule sets that all allow packets to the frontends.
var frontendRules = []struct {
	name string
	set  datapath.FirewallSet
}{
	{"no rules", datapath.FirewallSet{}},
	{"allow all", datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{
		"all": {Hooks: datapath.HookAll, Action: datapath.ActionAllow},
	}}},
	{"allow the frontends, deny the rest", datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{
		"frontends": {Hooks: datapath.HookAll, Action: datapath.ActionAllow,
			Match: datapath.Match{Destination: prefixes("198.51.100.10/32", "2001:db8:53::10/128")}},
		"rest": {Priority: 1, Hooks: datapath.HookAll, Action: datapath.ActionDeny},
	}}},
}

// TestClientBehindNoPort: a client behind a device without our programs can use a service with any
// rules in force, even if it sends several packets before the first reply.
//
//	client ─ eth0 ══ in0 (no port) node (port) out0 ══ eth0 ─ backends
func TestClientBehindNoPort(t *testing.T) {
	for _, rules := range frontendRules {
		t.Run(rules.name, func(t *testing.T) {
			n := newNetwork(t)
			n.ok(n.d.Ports().Update(t.Context(), "out0", datapath.Port{Device: "out0"}))
			for _, f := range bothFrontends {
				n.node.Route(t, netip.MustParseAddrPort(f.frontend).Addr().String()+hostBits(f.name), f.via)
				n.put("web"+datapath.ServiceName(f.name), datapath.Service{
					Frontends: []datapath.Frontend{frontend(f.frontend, datapath.TCP), frontend(f.frontend, datapath.UDP)},
					Backends:  backendAddrs(8080, netip.MustParseAddrPort(f.server).Addr().String()),
				})
			}
			if rules.set.Rules != nil {
				n.putRules(rules.set)
			}
			for _, f := range bothFrontends {
				n.questions(f.name, f.frontend, f.server)
			}
			n.nft("add table inet m", "add chain inet m pre { type filter hook prerouting priority 0; }",
				"add rule inet m pre iifname in0 meta mark set 0x17")
			for _, f := range bothFrontends {
				n.questions(f.name+", marked", f.frontend, f.server)
			}
			n.nft("delete table inet m")
			for _, f := range bothFrontends {
				n.backends.ServeTCP(t, f.server, "tcp")
				for try := range 3 { // the first try learns the next hop
					if got, err := testtraffic.TalkTCP(n.client, "", f.frontend, []byte("hello")); err != nil || got != "tcp" {
						t.Errorf("%s, TCP %d: %q, %v; drops %v", f.name, try, got, err, n.dropped())
					}
				}
			}
		})
	}
}

// questions makes the client send two datagrams from one socket before the server answers either.
func (n *network) questions(name, target, server string) {
	n.t.Helper()
	s := n.backends.ListenUDP(n.t, server)
	defer s.Close()
	for try := range 3 {
		c := n.dialUDP(target)
		var from [2]net.Addr
		var b [64]byte
		for i := range from {
			_, err := c.Write([]byte{byte('0' + i)})
			n.ok(err)
			n.ok(s.SetReadDeadline(time.Now().Add(2 * time.Second)))
			if _, from[i], err = s.ReadFrom(b[:]); err != nil {
				n.t.Errorf("%s, UDP %d: question %d does not arrive: %v; drops %v", name, try, i, err, n.dropped())
				return
			}
		}
		if from[0].String() != from[1].String() {
			n.t.Errorf("%s, UDP %d: the questions come from %v", name, try, from)
		}
		for i := range from {
			_, err := s.WriteTo([]byte{byte('0' + i)}, from[i])
			n.ok(err)
			n.ok(c.SetReadDeadline(time.Now().Add(2 * time.Second)))
			if _, err := c.Read(b[:]); err != nil {
				n.t.Errorf("%s, UDP %d: answer %d does not arrive: %v; drops %v", name, try, i, err, n.dropped())
				return
			}
		}
	}
}

// hostBits returns the length of a host prefix.
func hostBits(family string) string {
	if family == "IPv4" {
		return "/32"
	}
	return "/128"
}

// dropped returns the non-zero drop counters.
func (n *network) dropped() map[string]uint64 {
	n.t.Helper()
	c, err := n.d.Telemetry().NodeCounters(n.t.Context())
	n.ok(err)
	maps.DeleteFunc(c.Drops, func(_ string, count uint64) bool { return count == 0 })
	return c.Drops
}

// TestNodeIsItsOwnBackend: the node reaches a frontend whose backend is the node itself, whether
// the frontend's address is on a device of the node or not, with any rules in force.
func TestNodeIsItsOwnBackend(t *testing.T) {
	for _, rules := range frontendRules {
		t.Run(rules.name, func(t *testing.T) {
			n := newNetwork(t)
			n.attach()
			for _, f := range bothFrontends {
				n.node.Route(t, netip.MustParseAddrPort(f.frontend).Addr().String()+hostBits(f.name), f.client)
				n.put("web"+datapath.ServiceName(f.name), datapath.Service{
					Frontends: []datapath.Frontend{frontend(f.frontend, datapath.TCP), frontend(f.frontend, datapath.UDP)},
					Backends:  backendAddrs(6443, netip.MustParseAddrPort(f.own).Addr().String()),
				})
			}
			if rules.set.Rules != nil {
				n.putRules(rules.set)
			}
			for _, f := range bothFrontends {
				n.node.ServeTCP(t, f.own, "tcp")
				n.node.ServeUDP(t, f.own, "udp")
				for try := range 3 {
					if got, err := testtraffic.TalkTCP(n.node, "", f.frontend, []byte("hello")); err != nil || got != "tcp" {
						t.Errorf("%s, TCP %d: %q, %v; drops %v", f.name, try, got, err, n.dropped())
					}
					if got, err := testtraffic.TalkUDP(n.node, "", f.frontend, []byte("hello")); err != nil || got != "udp" {
						t.Errorf("%s, UDP %d: %q, %v; drops %v", f.name, try, got, err, n.dropped())
					}
				}
			}
		})
	}
}

// TestRulesChangeForClientBehindNoPort: after a change the rules evaluate the connection of a
// client behind a device without our programs as forwarded, not as a connection of the node.
func TestRulesChangeForClientBehindNoPort(t *testing.T) {
	n := newNetwork(t)
	n.ok(n.d.Ports().Update(t.Context(), "out0", datapath.Port{Device: "out0"}))
	n.serve()
	n.node.Route(t, "198.51.100.10/32", "10.0.1.11")
	n.put("web", web(1))
	c := n.dial("198.51.100.10:80")
	c.echo(t, "without rules")
	deny := func(hook datapath.FirewallHook) datapath.FirewallSet {
		return datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{
			"deny": {Hooks: hook, Action: datapath.ActionDeny, Match: datapath.Match{Destination: prefixes("198.51.100.10/32")}},
		}}
	}
	n.putRules(deny(datapath.HookOutput))
	c.echo(t, "with a rule about what the node sends")
	n.putRules(deny(datapath.HookForward))
	_ = c.SetDeadline(time.Now().Add(time.Second)) // the read reports an error
	_, err := c.Write([]byte("x"))
	n.ok(err)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a rule that denies forwarded packets does not end the connection")
	}
}

// TestLateAfterReopened: the egress hook is about to reopen a connection of a client behind a
// device that is not a port, and rules deny it. The next connection on that CPU, which has the same
// remote and gets SNAT at egress, must get an outer port of its own.
//
//	client ─ eth0 ══ in0 (port)    node (port) out0 ══ eth0 ─ backends
//	aside  ─ eth0 ══ side0 (no port) ┘
func TestLateAfterReopened(t *testing.T) {
	n, aside := newNetwork(t), testnet.New(t, "aside")
	testnet.Veth(t,
		testnet.Port{NS: n.node, Name: "side0", Addrs: []string{"192.0.3.1/24", "2001:db8:3::1/64"}},
		testnet.Port{NS: aside, Name: "eth0", Addrs: []string{"192.0.3.10/24", "2001:db8:3::10/64"}})
	n.attach()
	n.nft("add table inet m", "add chain inet m c { type filter hook forward priority 0; }",
		"add rule inet m c counter accept") // else the ingress hook translates
	n.told("has 1 rule")
	n.translate(map[datapath.NATName]datapath.NAT{"out": masquerade("out0")})
	n.putRules(datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{
		"expedited": {Hooks: datapath.HookAll, Action: datapath.ActionDeny, Match: datapath.Match{DSCP: []uint8{46}}},
	}})
	begin := kernel.NowTick() // packets in the same tick as the change of rules are evaluated again
	testnet.Eventually(t, 5*time.Second, "the rules are two ticks old", func() bool { return kernel.NowTick()-begin >= 2 })
	stay := onOneCPU(t)
	defer stay()
	wires := map[*testnet.NS]*testnet.Wire{n.client: n.client.Wire(t, "eth0"), aside: aside.Wire(t, "eth0")}
	send := func(ns *testnet.NS, device string, source, target netip.AddrPort, dscp uint8) {
		t.Helper()
		var ip testpkt.Layer = testpkt.IPv4{Source: source.Addr(), Destination: target.Addr(), TOS: dscp << 2}
		if source.Addr().Is6() {
			ip = testpkt.IPv6{Source: source.Addr(), Destination: target.Addr(), Class: dscp << 2}
		}
		wires[ns].Send(t, testpkt.Build(testpkt.Ethernet{Source: ns.MAC(t, "eth0"), Destination: n.node.MAC(t, device)}, ip,
			testpkt.TCP{Source: source.Port(), Destination: target.Port(), Seq: 1, Window: 501, Flags: testpkt.SYN, Options: synOptions}))
	}
	reset := func(ns *testnet.NS, source netip.AddrPort) {
		t.Helper()
		wires[ns].Await(t, 5*time.Second, "a reset for "+source.String(), func(frame []byte) bool {
			tcp := testpkt.Parse(frame).TCP
			return tcp != nil && tcp.Flags&testpkt.RST != 0 && tcp.Destination == source.Port()
		})
	}
	for family, f := range []struct{ client, aside, server string }{
		{"192.0.2.10", "192.0.3.10", "10.0.1.11:7"}, {"2001:db8:1::10", "2001:db8:3::10", "[2001:db8:2::11]:7"},
	} {
		server := netip.MustParseAddrPort(f.server)
		for try := range 4 {
			port := uint16(20_000 + 10*family + try)
			first, other := netip.AddrPortFrom(netip.MustParseAddr(f.aside), port), netip.AddrPortFrom(netip.MustParseAddr(f.client), port)
			send(aside, "side0", first, server, 0)
			reset(aside, first)
			send(aside, "side0", first, server, 46)
			send(n.client, "in0", other, server, 0)
			reset(n.client, other)
		}
	}
	if drops := n.dropped(); drops["no_port"] != 0 || drops["firewall"] < 8 {
		t.Errorf("drops %v", drops)
	}
}

// onOneCPU keeps this goroutine, and the kernel's work for its packets, on one CPU until the
// returned function is called.
func onOneCPU(t *testing.T) (end func()) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if before.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	set := func(cpus *unix.CPUSet) {
		if err := unix.SchedSetaffinity(0, cpus); err != nil {
			t.Error(err)
		}
	}
	set(&one)
	return func() {
		set(&before)
		runtime.UnlockOSThread()
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"maps"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// bothFrontends are the frontends of a service of both families and protocols, and one
// server address for each.
var bothFrontends = []struct{ name, frontend, server, own, via, client string }{
	{"IPv4", "198.51.100.10:80", "10.0.1.11:8080", "10.0.1.1:6443", "10.0.1.11", "192.0.2.10"},
	{"IPv6", "[2001:db8:53::10]:80", "[2001:db8:2::11]:8080", "[2001:db8:2::1]:6443", "2001:db8:2::11", "2001:db8:1::10"},
}

// frontendRules are rule sets that all allow what goes to the frontends.
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

// TestClientBehindNoPort: a client that comes in by a device without our programs uses a
// service whatever rules are in force, also with several packets before the first answer.
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
				for try := range 3 { // the first one learns the next hop
					if got, err := testtraffic.TalkTCP(n.client, "", f.frontend, []byte("hello")); err != nil || got != "tcp" {
						t.Errorf("%s, TCP %d: %q, %v; drops %v", f.name, try, got, err, n.dropped())
					}
				}
			}
		})
	}
}

// questions has the client send two datagrams by one socket before the server answers either.
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

// hostBits is the length of the prefix of one address.
func hostBits(family string) string {
	if family == "IPv4" {
		return "/32"
	}
	return "/128"
}

// dropped returns the counters of drops that are not zero.
func (n *network) dropped() map[string]uint64 {
	n.t.Helper()
	c, err := n.d.Telemetry().NodeCounters(n.t.Context())
	n.ok(err)
	maps.DeleteFunc(c.Drops, func(_ string, count uint64) bool { return count == 0 })
	return c.Drops
}

// TestNodeIsItsOwnBackend: the node reaches a frontend, on no device of its own and on one,
// whose backend is the node itself, whatever rules are in force.
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

// TestRulesChangeForClientBehindNoPort: after a change the rules are evaluated for such a
// connection as for one that is forwarded, and not as for one of the node.
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
	_ = c.SetDeadline(time.Now().Add(time.Second)) // the read tells
	_, err := c.Write([]byte("x"))
	n.ok(err)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a rule that denies what is forwarded does not end the connection")
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestMirrorOfRuleOnce: a packet that crosses between switch and host is copied once, although a rule
// allows it in both namespaces and copies for a Peer are taken in both.
//
//	pod eth0 ── p0 [switch] slink ── hlink [node] out0 ── eth0 backends
func TestMirrorOfRuleOnce(t *testing.T) {
	n := newMirrorNetwork(t)
	n.ok(n.d.Close())
	n.config.SwitchNamespace, n.config.HostDevice, n.config.SwitchDevice = testnet.UniqueName("switch"), "hlink", "slink"
	testnet.MakeNamed(t, n.config.SwitchNamespace)
	t.Cleanup(func() { testnet.DeleteNamed(t, n.config.SwitchNamespace) })
	sw := testnet.Named(t, n.config.SwitchNamespace)
	pod := testnet.New(t, "pod")
	testnet.Veth(t, testnet.Port{NS: n.node, Name: "hlink", MTU: 1600, Addrs: []string{"10.8.0.1/24"}}, testnet.Port{NS: sw, Name: "slink", MTU: 1600, Addrs: []string{"10.8.0.2/24"}})
	testnet.Veth(t, testnet.Port{NS: sw, Name: "tun0"}, testnet.Port{NS: sw, Name: "tun0-e"})
	testnet.Veth(t, testnet.Port{NS: sw, Name: "p0", Addrs: []string{"10.9.0.1/24"}}, testnet.Port{NS: pod, Name: "eth0", Addrs: []string{"10.9.0.2/24"}})
	n.node.Run(t, "ip", "link", "set", "out0", "mtu", "1600")
	n.backends.Run(t, "ip", "link", "set", "eth0", "mtu", "1600")
	sw.Forward(t)
	sw.Route(t, "default", "10.8.0.1")
	pod.Route(t, "default", "10.9.0.1")
	n.node.Route(t, "10.9.0.0/24", "10.8.0.2")
	n.open()
	n.attach()
	ctx := t.Context()
	n.ok(n.d.Endpoints().Update(ctx, "pod", datapath.Endpoint{Device: "p0", MAC: pod.MAC(t, "eth0"), Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.2")}}))
	n.ok(n.d.Tunnels().Update(ctx, "overlay", datapath.Tunnel{Device: "tun0", Type: datapath.TunnelVXLAN, VNI: 7, Port: 4789}))
	n.ok(n.d.Peers().Update(ctx, "collector", datapath.Peer{Tunnel: "overlay", Underlay: []netip.Addr{netip.MustParseAddr("10.0.1.13")}}))
	n.ok(n.d.Firewall().Update(ctx, datapath.NodeSet, datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{
		"any": {Priority: 1, Hooks: datapath.HookAll, Action: datapath.ActionAllow},
	}}))
	n.mirror("m", datapath.Mirror{Rule: "any", Direction: bothDirections, Match: datapath.Match{Protocols: []datapath.Protocol{datapath.ICMP}}, To: datapath.MirrorTarget{Peer: "collector", VNI: 9}})
	n.node.Run(t, "ping", "-c", "1", "-W", "2", "10.0.1.13")
	for what, of := range map[string]struct {
		from *testnet.NS
		to   string
	}{"pod to backend": {pod, "10.0.1.11"}, "node to pod": {n.node, "10.9.0.2"}, "backend to pod": {n.backends, "10.9.0.2"}, "node to backend": {n.node, "10.0.1.11"}} {
		n.ok(n.ping(of.from, of.to, 50))
		n.settle()
		at := n.mark()
		for range 2 {
			n.ok(n.ping(of.from, of.to, 100))
			n.settle()
		}
		copies := 0
		for _, f := range n.backends0.Frames()[at.backends:] {
			if o, inner, ok := unwrap(f, datapath.TunnelVXLAN); ok && o.header[6] == 9 {
				if p := testpkt.Parse(inner); p.ICMP != nil && p.ICMP.ID == 0x3141 {
					copies++
				}
			}
		}
		if copies != 4 {
			t.Errorf("%s: %d copies of 4 packets", what, copies)
		}
	}
	n.ok(n.d.Close())
	n.node.Do(t, func() error { return Detach(n.config, slog.New(slog.DiscardHandler)) })
	n.open()
}

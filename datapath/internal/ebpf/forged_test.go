// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// skbTCIndex is the offset of tc_index in struct __sk_buff.
const skbTCIndex = 44

// forge sets skb->tc_index of all packets that leave through a device to a word, which the peer of
// a veth receives unchanged.
func forge(t *testing.T, ns *testnet.NS, device string, word int32) (stop func()) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: asm.Instructions{
		asm.StoreImm(asm.R1, skbTCIndex, int64(word), asm.Word),
		asm.Mov.Imm(asm.R0, actUnspec),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	var l link.Link
	ns.Do(t, func() error {
		dev, err := net.InterfaceByName(device)
		if err == nil {
			l, err = link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: prog, Attach: ebpf.AttachTCXEgress})
		}
		return err
	})
	return func() { l.Close() }
}

// TestForgedWords: other programs cannot forge the marks that our programs pass in skb->tc_index.
// Otherwise a container with access to tc could bypass the rules.
func TestForgedWords(t *testing.T) {
	requireTCX(t)
	n := newNetwork(t)
	n.attach()
	n.backends.ServeTCP(t, "10.0.1.11:8080", "server")
	n.backends.ServeTCP(t, "10.0.1.12:8080", "server")
	n.putRules(datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{"no": ruleFor(10, "10.0.1.11", datapath.ActionDeny)}})
	side := testnet.New(t, "side") // behind a device that is not a port
	testnet.Veth(t, testnet.Port{NS: n.node, Name: "side0", Addrs: []string{"172.30.1.1/24"}},
		testnet.Port{NS: side, Name: "eth0", Addrs: []string{"172.30.1.2/24"}})
	side.Route(t, "default", "172.30.1.1")
	entry := kernel.Peer{Local: kernel.AddrOf(netip.MustParseAddr("10.0.1.1")), Remote: kernel.AddrOf(netip.MustParseAddr("10.0.1.34")), TunnelId: 1}
	n.ok(n.d.maps[kernel.MapLlPeer].Put(uint32(tunnelPeer), entry))
	for from, ns := range map[string]*testnet.NS{"a port": n.client, "another device": side} {
		for _, word := range []int32{0, 0x4c01, 0x4c02, 0x4c03, 0x4c06, 0x4c07, 0x4d00, 0x4d01, 0x4d02, 0x4d03, 0x4d06, 0x4d07, 0x4e00, 0x8000 | tunnelPeer, 0xc000 | tunnelPeer} {
			t.Run(fmt.Sprintf("%s/%#x", from, word), func(t *testing.T) {
				defer forge(t, ns, "eth0", word)()
				if c, err := ns.Dial("tcp", "", "10.0.1.11:8080", 300*time.Millisecond); err == nil {
					c.Close()
					t.Error("a connection came about that a rule denies")
				}
				c, err := ns.Dial("tcp", "", "10.0.1.12:8080", 3*time.Second)
				if err != nil {
					t.Fatalf("what rules allow: %v", err)
				}
				c.Close()
				var way uint32
				n.ok(n.d.maps[kernel.MapLlPeerNexthop].Lookup(uint32(tunnelPeer), &way))
				if way != 0 {
					t.Error("packets to a peer would go to where these went")
				}
			})
		}
	}
}

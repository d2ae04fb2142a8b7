// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// bulk sends a lot of data between pod1 and pod2, in both directions and in both families.
func (m *mesh) bulk(what string) {
	m.t.Helper()
	data := bytes.Repeat([]byte("sixteen bytes ok"), 1<<18) // 4 MiB
	to := m.nodes[1]
	for _, addr := range []string{to.pod4(), "[" + to.pod6() + "]"} {
		begin := time.Now()
		if _, err := testtraffic.TalkTCP(m.nodes[0].pod, "", addr+":4660", data); err != nil {
			m.t.Errorf("%s, %s: %s: %v", m, what, addr, err)
		}
		m.t.Logf("%s, %s: %s: %d MB/s", m, what, addr, 2*len(data)/1e6*1000/int(time.Since(begin).Milliseconds()+1))
	}
}

// TestOverlayBulk: bulk TCP passes with and without offloads, and all checksums that are seen in
// the underlay are correct.
func TestOverlayBulk(t *testing.T) {
	testnet.RequireRoot(t)
	for _, kind := range []meshKind{
		{tunnel: "vxlan", split: true, queued: true}, {tunnel: "vxlan", over6: true, queued: true}, {tunnel: "geneve", over6: true, split: true, queued: true},
		{tunnel: "gre", split: true, queued: true}, {tunnel: "gre", over6: true, queued: true}, {tunnel: "vxlan", split: true},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			m := newMesh(t, 2, kind)
			m.bulk("with offloads")
			for _, n := range m.nodes {
				n.ns.Offload(t, "eth0", false, testnet.TxChecksum, testnet.TSO, testnet.GSO)
				n.ns.Offload(t, "eth0", false, testnet.GRO)
			}
			m.bulk("cut before the underlay")
			if kind.queued { // else checksums are not completed before they are seen
				wire := m.lan.Wire(t, "n1")
				m.bulk("cut before the underlay, seen")
				m.checked(wire.Frames())
			}
			for _, n := range m.nodes {
				n.pod.Offload(t, "eth0", false, testnet.TxChecksum, testnet.TSO, testnet.GSO)
			}
			m.bulk("cut by the pods")
			m.counted()
		})
	}
}

// checked verifies the inner and outer packets that are seen in the underlay.
func (m *mesh) checked(frames [][]byte) {
	m.t.Helper()
	outer := map[bool]int{false: 34, true: 54}[m.over6]
	inside := 0
	for _, f := range frames {
		if len(f) < outer+16 {
			continue
		}
		inner := f[min(len(f), outer+16):]
		if m.tunnel == "gre" {
			if f[outer] != 0x20 || f[outer+1] != 0 {
				continue
			}
			inner = append(append(make([]byte, 12), f[outer+2], f[outer+3]), f[outer+8:]...)
		} else if port := int(f[outer+2])<<8 | int(f[outer+3]); port != 4789 && port != 6081 {
			continue
		}
		inside++
		// Over IPv6, too, UDP has no checksum in a tunnel (RFC 6935).
		if err := testpkt.Parse(f).CheckOuter(); err != nil && !(m.over6 && strings.Contains(err.Error(), "wrong UDP checksum 0000")) {
			m.t.Fatalf("%s: outer packet: %v\n%s", m, err, testpkt.Parse(f))
		}
		if err := testpkt.Check(inner); err != nil {
			m.t.Fatalf("%s: inner packet: %v\n%s", m, err, testpkt.Parse(inner))
		}
		if !m.over6 && f[20]&0x40 == 0 {
			m.t.Fatalf("%s: without DF:\n%s", m, testpkt.Parse(f))
		}
	}
	if inside < 1000 {
		m.t.Errorf("%s: of %d frames only %d were encapsulated", m, len(frames), inside)
	}
}

// deviceMTU returns the MTU of a node's tunnel device.
func (n *meshNode) deviceMTU() string {
	for _, line := range strings.Split(n.LLCLI("get", "tunnels", "-o", "json"), "\n") {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), `"mtu": `); ok {
			return strings.TrimSuffix(rest, ",")
		}
	}
	return "none"
}

// TestOverlayMTU: packets that just fit pass, larger ones are reported to the sender, and the MTU
// follows changes in the underlay.
func TestOverlayMTU(t *testing.T) {
	testnet.RequireRoot(t)
	for kind, want := range map[meshKind][2]string{
		{tunnel: "vxlan", split: true}: {"1450", "1350"}, {tunnel: "vxlan", over6: true}: {"1430", "1330"}, {tunnel: "gre", split: true, over6: true}: {"1452", "1352"},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			m := newMesh(t, 2, kind)
			for i, mtu := range []int{1500, 1400} {
				for _, n := range m.nodes {
					n.ns.MTU(t, "eth0", mtu)
				}
				begin := time.Now()
				for _, n := range m.nodes {
					testnet.Eventually(t, patience, "the tunnel's MTU follows", func() bool { return n.deviceMTU() == want[i] })
				}
				if took := time.Since(begin); took > testnet.OnThisMachine(5*time.Second) {
					t.Errorf("the tunnel's MTU follows after %s", took)
				}
				var fits int
				fmt.Sscan(want[i], &fits)
				m.datagrams(fits)
				m.bulk(fmt.Sprintf("underlay with MTU %d", mtu))
			}
		})
	}
}

// datagrams sends a datagram that just fits, and another that is larger by a byte: the pod gets an
// error for the larger one, and fragments the next one.
func (m *mesh) datagrams(mtu int) {
	m.t.Helper()
	from, to := m.nodes[0], m.nodes[1]
	for addr, header := range map[string]int{to.pod4(): 28, to.pod6(): 48} {
		target := addr + ":4660"
		if header == 48 {
			target = "[" + addr + "]:4660"
		}
		if _, err := testtraffic.TalkUDP(from.pod, "", target, make([]byte, mtu-header-8)); err != nil { // the answer has a name, too
			m.t.Errorf("%s: a datagram that fits %d: %v", m, mtu, err)
		}
		testnet.Eventually(m.t, patience, fmt.Sprintf("a datagram to %s that does not fit %d passes in pieces", target, mtu), func() bool {
			c, err := from.pod.Dial("udp", "", target, time.Second)
			if err != nil {
				return false
			}
			defer c.Close()
			if _, err := c.Write(make([]byte, mtu-header+1)); err != nil {
				return false
			}
			_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond)) // cannot fail
			_, err = c.Read(make([]byte, 2048))
			return err == nil
		})
		if out := from.pod.Run(m.t, "ip", "route", "get", addr); !strings.Contains(out, fmt.Sprintf("mtu %d", mtu)) {
			m.t.Errorf("%s: the pod did not learn the MTU %d:\n%s", m, mtu, out)
		}
	}
}

// TestOverlayRestart: a daemon that is killed and started again harms no traffic.
func TestOverlayRestart(t *testing.T) {
	testnet.RequireRoot(t)
	m := newMesh(t, 2, meshKind{tunnel: "vxlan", split: true})
	m.allPairs()
	traffic := testtraffic.Start(t, m.nodes[0].pod, m.nodes[1].pod4()+":4660", testtraffic.Load{Flows: 8, Packets: 2000, Connections: 20, Lasting: 4})
	for _, n := range m.nodes {
		n.Kill()
		n.Start()
		m.ready(n)
		n.Stop()
		n.Start()
		m.ready(n)
	}
	traffic.End()
	traffic.ExpectUnharmed(t)
	m.counted()
	for _, n := range m.nodes {
		n.Stop()
		n.Detach()
		if out, _ := n.ns.TryRun("ip", "-o", "link"); strings.Contains(out, "hstunnel") || strings.Contains(out, "loxi_") {
			t.Errorf("detached, and left:\n%s", out)
		}
	}
}

// whoAnswers returns the name of the server that answers a datagram from the node's pod, or why
// none does.
func (n *meshNode) whoAnswers(target string) string {
	c, err := n.pod.Dial("udp", "", target, time.Second)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond)) // cannot fail
	answer := make([]byte, 64)
	if _, err = c.Write([]byte("where are you?")); err != nil {
		return err.Error()
	}
	k, err := c.Read(answer)
	if err != nil {
		return err.Error()
	}
	name, _, _ := strings.Cut(string(answer[:k]), " ")
	return name
}

// TestOverlayMove: an address that moves to another node is reached there within a second.
func TestOverlayMove(t *testing.T) {
	testnet.RequireRoot(t)
	m := newMesh(t, 3, meshKind{tunnel: "geneve", split: true})
	const moving = "10.74.2.77"
	for _, n := range m.nodes[1:] {
		n.pod.Addr(t, "eth0", moving+"/32")
		n.LLCLI("apply", "-f", n.File(fmt.Sprintf("kind: Route\nname: moving\nspec: {prefix: %s/32, netns: switch, via: %s}", moving, n.pod4())))
		n.pod.ServeUDP(t, moving+":4661", fmt.Sprintf("pod%d", n.id))
	}
	ask := func() string { return m.nodes[0].whoAnswers(moving + ":4661") }
	testnet.Eventually(t, patience, "the address is reached where it is at first", func() bool { return ask() == "pod2" })
	first := m.nodes[0]
	first.Apply(`kind: Peer
name: node3
spec: {underlay: 192.0.2.3, prefixes: [10.74.3.0/24, "fd74:3::/64", ` + moving + `/32], tunnel: mesh}`)
	begin := time.Now()
	testnet.Eventually(t, patience, "the address is reached where it is now", func() bool { return ask() == "pod3" })
	if took := time.Since(begin); took > testnet.OnThisMachine(time.Second) {
		t.Errorf("reached after %s", took)
	}
	// And back.
	first.Apply("kind: Peer\nname: node3\nspec: {underlay: 192.0.2.3, prefixes: [10.74.3.0/24, \"fd74:3::/64\"], tunnel: mesh}")
	begin = time.Now()
	testnet.Eventually(t, patience, "the address is reached where it was", func() bool { return ask() == "pod2" })
	if took := time.Since(begin); took > testnet.OnThisMachine(time.Second) {
		t.Errorf("reached again after %s", took)
	}
	if _, code, _ := first.TryLLCLI("peer", "set", "node2", "--add-prefix", "10.74.3.0/24"); code == 0 {
		t.Error("a prefix of two peers is taken")
	}
}

// TestOverlayKernel: a node without loxilight, with a kernel vxlan device, is a Peer like any
// other.
func TestOverlayKernel(t *testing.T) {
	testnet.RequireRoot(t)
	m := newMesh(t, 2, meshKind{tunnel: "vxlan", split: true})
	other := testnet.New(t, "kernel")
	testnet.Veth(t, testnet.Port{NS: m.lan, Name: "n9"}, testnet.Port{NS: other, Name: "eth0", Addrs: []string{"192.0.2.9/24"}})
	m.lan.Run(t, "ip", "link", "set", "n9", "master", "br0")
	if out, err := other.TryRun("ip", "link", "add", "vx0", "type", "vxlan", "id", "4660", "local", "192.0.2.9", "remote", "192.0.2.1", "dstport", "4789", "dev", "eth0"); err != nil {
		t.Skipf("this kernel has no vxlan: %s", out)
	}
	for _, words := range []string{
		"link set vx0 address 02:4c:4c:00:00:01", "link set vx0 arp off", "link set vx0 up", "link set lo up",
		"addr add 10.74.9.2/32 dev lo", "route add 10.74.1.0/24 dev vx0 src 10.74.9.2",
		"-6 addr add fd74:9::2/128 dev lo nodad", "-6 route add fd74:1::/64 dev vx0 src fd74:9::2",
	} {
		other.Run(t, "ip", strings.Fields(words)...)
	}
	first := m.nodes[0]
	first.Apply("kind: Peer\nname: kernel\nspec: {underlay: 192.0.2.9, prefixes: [10.74.9.0/24, \"fd74:9::/64\"], tunnel: mesh}")
	data := bytes.Repeat([]byte("sixteen bytes ok"), 1<<16)
	for _, addr := range []string{"10.74.9.2:4660", "[fd74:9::2]:4660"} {
		other.ServeTCP(t, addr, "kernel")
		other.ServeUDP(t, addr, "kernel")
		if name, err := testtraffic.TalkUDP(first.pod, "", addr, []byte("a datagram")); err != nil || name != "kernel" {
			t.Errorf("UDP to %s: %s %v", addr, name, err)
		}
		if name, err := testtraffic.TalkTCP(first.pod, "", addr, data); err != nil || name != "kernel" {
			t.Errorf("TCP to %s: %s %v", addr, name, err)
		}
	}
	if name, err := testtraffic.TalkTCP(other, "", first.pod4()+":4660", data); err != nil || name != "pod1" {
		t.Errorf("from the kernel's: %s %v", name, err)
	}
	// Packets that are from no Peer, or from outside the Peer's prefixes, are dropped.
	first.LLCLI("peer", "set", "kernel", "--remove-prefix", "10.74.9.0/24", "--wait", "10s")
	if name, err := testtraffic.TalkTCP(other, "", first.pod4()+":4660", nil); err == nil {
		t.Errorf("a source that is not the peer's is let in: %s", name)
	}
	first.LLCLI("peer", "delete", "kernel", "--wait", "10s")
	if name, err := testtraffic.TalkUDP(other, "", "["+first.pod6()+"]:4660", nil); err == nil {
		t.Errorf("one who is no peer is let in: %s", name)
	}
	c := first.Counters("", "")
	if c.Drops["tunnel_source"] == 0 || c.Drops["tunnel_unknown_peer"] == 0 {
		t.Errorf("drops are %v", c.Drops)
	}
}

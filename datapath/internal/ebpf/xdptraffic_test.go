// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// TestXDPOfJumboFrames: if the MTU exceeds one buffer, packets in one buffer still take XDP, and
// larger packets arrive.
func TestXDPOfJumboFrames(t *testing.T) {
	n := newXDPNetwork(t, datapath.XDPOff)
	n.requireXDPTargets()
	n.client.MTU(t, "eth0", 9000)
	n.backends.MTU(t, "eth0", 9000)
	for _, device := range []string{"in0", "out0"} {
		n.node.MTU(t, device, 9000)
	}
	n.update(datapath.XDPNative)
	if !n.xdpOf("in0").Frags() {
		t.Error("the program does not accept frames in several buffers")
	}
	n.serve()
	n.ok(n.d.Services().Update(context.Background(), "web", web(1)))
	c := n.dial("198.51.100.10:80")
	n.wantXDP("small", true, func(word string) { c.echo(t, word) })
	c.echo(t, strings.Repeat("abcdefg", 99_999))
	udp := n.dialUDP("198.51.100.10:80")
	for _, size := range []int{100, 4000, 8900} {
		if _, err := testtraffic.ExchangeUDP(udp, []byte(strings.Repeat("x", size))); err != nil {
			t.Errorf("a datagram of %d bytes: %v", size, err)
		}
	}
	n.restartIn(datapath.XDPNative)
	n.wantXDP("after a start", true, func(word string) { c.echo(t, word) })
	n.noDrops()
}

// TestXDPUnderTraffic: starts, builds that replace each other, and replaced programs and tables
// lose no packet.
func TestXDPUnderTraffic(t *testing.T) {
	n := newXDPNetwork(t, datapath.XDPNative)
	n.config.Tables.Connections = 1 << 16
	n.restartIn(datapath.XDPNative)
	n.serve()
	n.ok(n.d.Services().Update(context.Background(), "web", web(3)))
	_, before := n.runs()
	traffic := testtraffic.Start(t, n.client, "198.51.100.10:80", testtraffic.Load{Flows: 8, Packets: brief(4000, 200), Connections: brief(50, 5), Lasting: 4})
	for i := range brief(6, 1) {
		build(t, uint32(36+i%2), func() { n.restartIn(datapath.XDPNative) })
	}
	n.config.Tables.Connections = 1 << 17 // tables are replaced, too
	n.restartIn(datapath.XDPNative)
	for range brief(50, 5) {
		n.ok(n.eachHook(func(h hook.Attachment) error { return h.Replace() }))
	}
	if _, after := n.runs(); after <= before {
		t.Errorf("%d runs in XDP before, %d after", before, after)
	}
	traffic.ExpectUnharmed(t)
	n.noDrops()
}

// restartIn restarts, and updates the ports.
func (n *xdpNetwork) restartIn(mode datapath.XDPMode) {
	n.t.Helper()
	n.ok(n.d.Close())
	n.open()
	n.update(mode)
}

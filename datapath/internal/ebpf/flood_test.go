// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestFloodTeachesNothing: frames that a bridge floods because it does not know the host's port
// still go to all ports, even if replies came from one of the ports before.
//
//	here p0 ─┐
//	there p1 ─┤ br0
//	      p2 ─┤       the host moves here, and then this port is set down
//	      p3 ─┘       flooded frames arrive here as well
func TestFloodTeachesNothing(t *testing.T) {
	n := newNetwork(t)
	n.bridgesAlone()
	var taps [4]*testnet.Tap
	names := []string{"p0", "p1", "p2", "p3"}
	for i, name := range names {
		station := testnet.New(t, "station"+name)
		testnet.Veth(t, testnet.Port{NS: n.node, Name: name}, testnet.Port{NS: station, Name: "eth0"})
		taps[i] = station.Tap(t, "eth0")
	}
	for _, order := range [][]string{names, {"p0", "p2", "p3", "p1"}} { // the kernel floods in the order of ports
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			n.t = t
			f := flood{network: n, taps: taps, here: [6]byte{2, 0, 0, 0x31, 0x32, 1}, there: [6]byte{2, 0, 0, 0x31, 0x32, 2}}
			n.node.Bridge(t, "br0", order...)
			defer n.node.DeleteLink(t, "br0")
			for _, name := range names {
				n.ok(n.d.Ports().Update(context.Background(), datapath.PortName(name), datapath.Port{Device: name}))
			}
			f.run()
		})
		n.t = t
	}
}

type flood struct {
	*network
	taps        [4]*testnet.Tap
	here, there [6]byte
	sent        int
}

// say sends a numbered datagram into a port: from here to there if forth, else back.
func (f *flood) say(port int, forth bool) (text string) {
	f.t.Helper()
	a, b := netip.MustParseAddrPort("10.9.0.1:4660"), netip.MustParseAddrPort("10.9.0.2:22136")
	eth := testpkt.Ethernet{Source: f.here, Destination: f.there}
	if !forth {
		a, b = b, a
		eth = testpkt.Ethernet{Source: f.there, Destination: f.here}
	}
	f.sent++
	text = fmt.Sprintf("number %d of these", f.sent)
	f.ok(f.taps[port].Send(testpkt.Build(eth, ipHeader(a.Addr(), b.Addr(), 61),
		testpkt.UDP{Source: a.Port(), Destination: b.Port()}, testpkt.Payload(text))))
	return text
}

// comes reports whether a datagram with text leaves through a port within a time.
func (f *flood) comes(port int, text string, within time.Duration) (seen bool) {
	f.t.Helper()
	for end := time.Now().Add(within); !seen && time.Now().Before(end); time.Sleep(time.Millisecond) {
		f.ok(f.taps[port].Receive(func(frame []byte) { seen = seen || strings.Contains(string(frame), text) }))
	}
	return seen
}

func (f *flood) run() {
	t := f.t
	testnet.Eventually(t, 5*time.Second, "it takes the fast path", func() bool {
		text := f.say(0, true)
		if !f.comes(1, text, time.Second) || !f.comes(0, f.say(1, false), time.Second) {
			return false
		}
		before, _ := f.verdicts()
		f.comes(1, f.say(0, true), time.Second)
		now, _ := f.verdicts()
		return now > before
	})
	// The host moves, which the bridge learns from a frame of no connection.
	f.ok(f.taps[2].Send(testpkt.Build(testpkt.Ethernet{Source: f.there, Destination: f.here, Type: 0x88b5}, testpkt.Raw("not by IP"))))
	testnet.Eventually(t, 5*time.Second, "its packets arrive at its new port", func() bool {
		return f.comes(2, f.say(0, true), 100*time.Millisecond)
	})
	f.node.Run(t, "ip", "link", "set", "p2", "down")
	testnet.Eventually(t, 5*time.Second, "its packets are flooded", func() bool {
		return f.comes(3, f.say(0, true), 100*time.Millisecond)
	})
	for range 20 {
		text := f.say(0, true)
		for _, port := range []int{1, 3} {
			if !f.comes(port, text, time.Second) {
				t.Fatalf("%q does not come to port %d", text, port)
			}
		}
	}
	f.node.Up(t, "p2")
	if !f.comes(0, f.say(1, false), time.Second) {
		t.Error("its packets do not arrive")
	}
	testnet.Eventually(t, 5*time.Second, "it takes the fast path again, to the first port alone", func() bool {
		text := f.say(0, true)
		before, _ := f.verdicts()
		f.comes(1, f.say(0, true), time.Second)
		now, _ := f.verdicts()
		return now > before && !f.comes(3, text, 10*time.Millisecond)
	})
}

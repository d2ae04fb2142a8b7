// SPDX-License-Identifier: Apache-2.0

package security

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// bridged is one of two hosts behind a bridge that attack together.
type bridged struct {
	wire *testnet.Wire
	mac  [6]byte
	addr [2]netip.Addr // IPv4, IPv6
}

// talk makes host a establish count connections with host b. Each has a different MAC for b: as the
// destination of a's frames, and, if answersToo, as the source of b's.
func talk(t *testing.T, a, b bridged, first, count int, answersToo bool) {
	t.Helper()
	for i := first; i < first+count; i++ {
		mac := [6]byte{0x02, 0x53, 0x16}
		binary.BigEndian.PutUint16(mac[4:], uint16(i))
		from, to := netip.AddrPortFrom(a.addr[i%2], uint16(1024+i)), netip.AddrPortFrom(b.addr[i%2], 7)
		forth := udpFrame(testpkt.Ethernet{Source: a.mac, Destination: mac}, from, to, "forth")
		source := b.mac
		if answersToo {
			source = mac
		}
		a.wire.Send(t, forth)
		b.wire.Send(t, udpFrame(testpkt.Ethernet{Source: source, Destination: a.mac}, to, from, "back"))
		a.wire.Send(t, forth)
		a.wire.Send(t, forth)
	}
}

// taken returns how many next hops have one of the MACs that talk uses.
func (s *podsSite) taken() (count int) {
	s.t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(s.PinDir, "layout-1", "ll_nexthop_id"), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer m.Close()
	key, index := make([]byte, m.KeySize()), uint32(0)
	it := m.Iterate()
	for it.Next(&key, &index) {
		if bytes.Contains(key, []byte{0x02, 0x53, 0x16}) {
			count++
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) { // the sweep deletes entries
		s.t.Fatal(err)
	}
	return count
}

// expectTracked sends a request from a pod to the LAN host right after each attack, and expects
// that its connections take the fast path, and that the attack has not taken more next hops than
// most allows.
func (s *podsSite) expectTracked(victim *podsPod, what string, most int, attack func()) {
	s.t.Helper()
	for family, host := range hosts {
		target := netip.AddrPortFrom(host, 7001).String()
		c, err := victim.Dial("tcp", "", target, 5*time.Second)
		if err != nil {
			s.t.Fatalf("%s: %s: %v", what, family, err)
		}
		defer c.Close()
		var last api.Connection
		b := make([]byte, 64)
		tracked := func() bool {
			attack()
			if n := s.taken(); n > most {
				s.t.Errorf("%s: %s: %d next hops are taken, want at most %d", what, family, n, most)
			}
			for range 8 {
				if _, err := fmt.Fprint(c, "ping"); err != nil {
					return false
				}
				if _, err := c.Read(b); err != nil {
					return false
				}
			}
			for _, last = range s.Connections(api.ConnectionFilter{Protocol: "tcp"}) {
				if last.Original.Source == c.LocalAddr().String() {
					return last.Path == "fast"
				}
			}
			return false
		}
		for end := time.Now().Add(5 * time.Second); !tracked(); {
			if time.Now().After(end) {
				s.t.Errorf("%s: %s: a connection of another pod takes the slow path: %+v", what, family, last)
				break
			}
		}
	}
}

// newNextHopsSite returns a site whose LAN host answers expectTracked.
func newNextHopsSite(t *testing.T) *podsSite {
	t.Helper()
	s := newPodsSite(t, "tables: {connections: 131072}")
	for _, host := range hosts {
		s.lan.ServeTCP(t, netip.AddrPortFrom(host, 7001).String(), "lan")
	}
	return s
}

// TestS16NextHops: two hosts behind ports without a guard, or two pods, send to and from as many
// MACs as they can. The ports leave a quarter of the next hops free, the pods take none, and
// connections of another pod still take the fast path.
func TestS16NextHops(t *testing.T) {
	const all = 16383
	t.Run("ports without a guard", func(t *testing.T) {
		s := newNextHopsSite(t)
		sw := testnet.Named(t, s.name)
		var vms [2]bridged
		for i := range vms {
			vm := testnet.New(t, "vm")
			testnet.Veth(t, testnet.Port{NS: sw, Name: fmt.Sprintf("vm%d", i)}, testnet.Port{NS: vm, Name: "eth0"})
			vms[i] = bridged{vm.Wire(t, "eth0"), vm.MAC(t, "eth0"), [2]netip.Addr{
				netip.AddrFrom4([4]byte{10, 9, 8, byte(7 + i)}), netip.MustParseAddr(fmt.Sprintf("fd09:8::%d", 7+i)),
			}}
		}
		s.Apply("kind: Bridge\nname: vms\nspec: {device: br9, ports: [{device: vm0}, {device: vm1}]}")
		s.expectTracked(s.addPod(nil), "ports without a guard", all*3/4, func() { talk(t, vms[0], vms[1], 0, 17_000, true) })
	})
	t.Run("pods", func(t *testing.T) {
		s := newNextHopsSite(t)
		victim := s.addPod(nil) // first: a bridge floods to its newest port first, from which the attack is answered
		var pods [2]bridged
		for i := range pods {
			p := s.addPod(nil)
			pods[i] = bridged{wire: p.Wire(t, "eth0"), mac: p.MAC(t, "eth0")}
			for _, ip := range p.ips {
				a := netip.MustParseAddr(ip)
				pods[i].addr[(a.BitLen()-32)/96] = a
			}
		}
		s.expectTracked(victim, "pods", 0, func() { talk(t, pods[0], pods[1], 0, 17_000, false) })
	})
}

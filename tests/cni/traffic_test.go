// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testpkt"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// TestPodToPod connects each of four pods with every other one, in both families, over TCP, UDP,
// SCTP and ICMP, and prints the results.
func TestPodToPod(t *testing.T) {
	s := newSite(t)
	list := s.list("1.0.0", nil)
	var pods []*pod
	for i := range 4 {
		p := s.addPod(list, fmt.Sprint("pod-", i))
		p.ServeTCP(t, ":4660", p.rt.ContainerID)
		p.ServeUDP(t, ":4661", p.rt.ContainerID)
		pods = append(pods, p)
	}
	data := bytes.Repeat([]byte("loxilight"), 3000)
	talks := []struct {
		name string
		talk func(from, to *pod, a netip.Addr) error
	}{
		{"tcp", func(from, to *pod, a netip.Addr) error {
			return named(to)(testtraffic.TalkTCP(from.NS, "", netip.AddrPortFrom(a, 4660).String(), data))
		}},
		{"udp", func(from, to *pod, a netip.Addr) error {
			return named(to)(testtraffic.TalkUDP(from.NS, "", netip.AddrPortFrom(a, 4661).String(), data[:1000]))
		}},
		{"udp in fragments", func(from, to *pod, a netip.Addr) error {
			return named(to)(testtraffic.TalkUDP(from.NS, "", netip.AddrPortFrom(a, 4661).String(), data[:9000]))
		}},
		{"icmp", func(from, _ *pod, a netip.Addr) error { return from.ping(a) }},
		{"sctp", func(from, to *pod, a netip.Addr) error { return sctp(from, to, a) }},
	}
	for _, x := range talks {
		for _, is4 := range []bool{true, false} {
			good, count := 0, 0
			for _, from := range pods {
				for _, to := range pods {
					if from == to {
						continue
					}
					count++
					if err := x.talk(from, to, to.address(is4)); err != nil {
						t.Errorf("%s from %s to %s (%s): %v", x.name, from.rt.ContainerID, to.rt.ContainerID, to.address(is4), err)
						continue
					}
					good++
				}
			}
			t.Logf("%-18s IPv%d: %d of %d pairs", x.name, map[bool]int{true: 4, false: 6}[is4], good, count)
		}
	}
}

// named checks that the answer is from a pod.
func named(to *pod) func(string, error) error {
	return func(name string, err error) error {
		if err == nil && name != to.rt.ContainerID {
			err = fmt.Errorf("%q answers", name)
		}
		return err
	}
}

// sctp sends an INIT, which the pods' kernels need not understand, and waits until it arrives.
func sctp(from, to *pod, a netip.Addr) error {
	network := "ip4:132"
	if a.Is6() {
		network = "ip6:132"
	}
	var in net.PacketConn
	var out net.Conn
	if err := to.Try(func() (err error) {
		in, err = net.ListenPacket(network, a.String())
		return err
	}); err != nil {
		return err
	}
	defer in.Close() // no longer needed
	if err := from.Try(func() (err error) {
		out, err = net.Dial(network, a.String())
		return err
	}); err != nil {
		return err
	}
	defer out.Close() // likewise
	b := testpkt.Build(testpkt.SCTP{Source: 4662, Destination: 4663, Chunks: []testpkt.Chunk{
		{Type: chunkInit, Value: []byte{0x12, 0x34, 0x56, 0x78, 0, 1, 0, 0, 0, 1, 0, 1, 0x9a, 0xbc, 0xde, 0xf0}},
	}})
	if _, err := out.Write(b); err != nil {
		return err
	}
	if err := in.SetReadDeadline(time.Now().Add(testtraffic.Patience)); err != nil {
		return err
	}
	for got := make([]byte, 1500); ; {
		n, _, err := in.ReadFrom(got)
		if err != nil {
			return err
		}
		if bytes.Equal(got[:n], b) {
			return nil
		}
	}
}

// TestGuardedFromTheFirstMoment: a process in the pod sends with another pod's address from
// the moment that its device exists, and none of its packets ever arrives, neither when the pod is
// added nor when it is removed.
func TestGuardedFromTheFirstMoment(t *testing.T) {
	s := newSite(t)
	list := s.list("1.0.0", nil)
	witness := s.addPod(list, "witness")
	wire := witness.Wire(t, "eth0")
	var sent atomic.Uint64
	for i := range 15 {
		p := s.newPod(fmt.Sprint("liar-", i))
		stop, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- p.Try(func() error { return lie(stop, &sent) }) }()
		if err := s.tryAdd(list, p); err != nil {
			t.Fatal(err)
		}
		p.reaches(t, witness.address(true)) // permitted packets arrive
		s.del(list, p)
		close(stop)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if sent.Load() < 1000 {
		t.Errorf("only %d frames were sent: that shows little", sent.Load())
	}
	for _, f := range wire.Frames() {
		if bytes.Contains(f, lieText) {
			t.Fatalf("a frame with another's address came through: %x", f)
		}
	}
	drops := s.Counters("", "").Drops["spoofed"]
	t.Logf("%d frames sent with another's address, %d of them dropped as spoofed", sent.Load(), drops)
	if drops == 0 {
		t.Error("none was dropped as spoofed")
	}
}

var lieText = []byte("this address is another's")

// lie sends frames with an address that is not the pod's through eth0, from the moment that eth0
// exists until stop is closed.
func lie(stop chan struct{}, sent *atomic.Uint64) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	frame := testpkt.Build(testpkt.Ethernet{Destination: [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
		testpkt.IPv4{Source: netip.MustParseAddr("10.73.3.250"), Destination: netip.MustParseAddr("10.73.3.255")},
		testpkt.UDP{Source: 0x1234, Destination: 0x5678}, testpkt.Payload(lieText))
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			continue // it does not exist yet, or no longer
		}
		copy(frame[6:12], dev.HardwareAddr)
		for range 20 {
			if unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index}) == nil {
				sent.Add(1)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package snat

import (
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestSocketsOfTheNode: ports of new listening and UDP sockets are known at once. Connected TCP
// sockets are read less often, since the kernel walks all sockets of the machine for it.
func TestSocketsOfTheNode(t *testing.T) {
	testnet.RequireRoot(t)
	ns := testnet.New(t, "node")
	ns.Up(t, "lo")
	s := New(Options{InNamespaces: ns.Try, FrontendPorts: func() []uint16 { return []uint16{5010} }, Interval: time.Hour})
	listen := func(addr string) {
		l := ns.Listen(t, addr)
		t.Cleanup(func() { l.Close() }) // the port was taken until then
		go func() {
			for {
				if _, err := l.Accept(); err != nil {
					return
				}
			}
		}()
	}
	connect := func(local, remote string) {
		c, err := ns.Dial("tcp", local, remote, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() }) // as above
	}
	want := func(when string, ports map[int]bool) {
		t.Helper()
		taken, own, err := s.takenPorts()
		if err != nil {
			t.Fatal(err)
		}
		for port, is := range ports {
			if taken[port] != is || own[port] {
				t.Errorf("%s: port %d: taken %t, assigned by the kernel %t; want %t, false", when, port, taken[port], own[port], is)
			}
		}
	}
	listen("127.0.0.1:5001")
	listen("[::1]:5002")
	ns.ListenUDP(t, "127.0.0.1:5003")
	connect("127.0.0.1:5004", "127.0.0.1:5001")
	connect("[::1]:5005", "[::1]:5002")
	want("at first", map[int]bool{5001: true, 5002: true, 5003: true, 5004: true, 5005: true, 5006: false, 5010: true})
	listen("[::1]:5006")
	ns.ListenUDP(t, "[::1]:5007")
	connect("127.0.0.1:5008", "127.0.0.1:5001")
	want("soon afterwards", map[int]bool{5001: true, 5004: true, 5006: true, 5007: true, 5008: false})
	s.connectedDue = time.Time{}
	want("when it is time", map[int]bool{5001: true, 5004: true, 5006: true, 5007: true, 5008: true})
}

// TestConnectedRest: all TCP sockets are read at least every five minutes, unless that would take more than
// a thousandth of a processor.
func TestConnectedRest(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond: 5 * time.Second, 10 * time.Millisecond: 50 * time.Second,
		100 * time.Millisecond: 5 * time.Minute, time.Second: 1000 * time.Second,
	} {
		if got := connectedRest(took); got != want {
			t.Errorf("after %s: %s, want %s", took, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

// TestLeapVisitsAll: every connection has its turn, and consecutive connections are far apart.
func TestLeapVisitsAll(t *testing.T) {
	for _, count := range []int{1, 2, 3, 10, 1000, 1024, 65536, 100000} {
		leap := leapOf(count)
		seen := make([]bool, count)
		for i, index := 0, 0; i < count; i++ {
			if seen[index] {
				t.Fatalf("count %d, leap %d: connection %d is visited twice", count, leap, index)
			}
			seen[index] = true
			index = (index + leap) % count
		}
		if count >= 1000 && (leap < count/2 || leap > count*3/4) {
			t.Errorf("count %d: leap %d", count, leap)
		}
	}
}

// testRig is a rig that only routes.
func testRig(t *testing.T) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_BPF")
	}
	r, err := newRig("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// TestFrames: the generator's frames equal a socket's, including checksums.
func TestFrames(t *testing.T) {
	r := testRig(t)
	g := r.generator
	if err := g.objects.Measured.Put(uint32(0), uint32(g.objects.Idle.FD())); err != nil {
		t.Fatal(err)
	}
	f := flows{connections: 100000, sourceOffset: 5, target: "10.96.3.1", targets: 300, port: 5003}
	if err := g.aim(f); err != nil {
		t.Fatal(err)
	}
	leap := leapOf(f.connections)
	for i, index := 0, 0; i < 1000; i++ {
		out := make([]byte, 256)
		options := &ebpf.RunOptions{Data: make([]byte, frameSize), DataOut: out}
		if _, err := g.objects.Replay.Run(options); err != nil {
			t.Fatal(err)
		}
		frame := options.DataOut
		if len(frame) != frameSize || string(frame[:6]) != string(g.hop) || string(frame[6:12]) != string(g.own) {
			t.Fatalf("frame of %d bytes: % x", len(frame), frame)
		}
		if sum := wireCheck(frame[14:34]); sum != 0xffff {
			t.Fatalf("sum of the IP header is %#x: % x", sum, frame)
		}
		pseudo := append(append([]byte{}, frame[26:34]...), 0, 17, 0, udpSize)
		if sum := wireCheck(append(pseudo, frame[34:]...)); sum != 0xffff {
			t.Fatalf("sum of the UDP packet is %#x: % x", sum, frame)
		}
		source := netip.AddrPortFrom(netip.AddrFrom4([4]byte(frame[26:30])), binary.BigEndian.Uint16(frame[34:]))
		target := netip.AddrPortFrom(netip.AddrFrom4([4]byte(frame[30:34])), binary.BigEndian.Uint16(frame[36:]))
		wantSource := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, 0, byte(5 + index/32768)}), uint16(16384+index%32768))
		host := 1 + index%300
		wantTarget := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(3 + host/256), byte(host % 256)}), 5003)
		if source != wantSource || target != wantTarget {
			t.Fatalf("connection %d is %s to %s, want %s to %s", index, source, target, wantSource, wantTarget)
		}
		index = (index + leap) % f.connections
	}
}

// wireCheck is the ones' complement sum of b: 0xffff if its checksum is right.
func wireCheck(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// TestPacketsArrive: packets cross the node and are answered; none is lost or counted twice.
func TestPacketsArrive(t *testing.T) {
	r := testRig(t)
	const connections, packets = 3000, 20000
	for _, p := range places {
		if err := establish(r, p, r.flowsTo(p, connections, 1)); err != nil {
			t.Fatal(err)
		}
		answered, err := r.generator.sink.count()
		if err != nil || answered < connections {
			t.Errorf("%s: %d answers, %v, want %d at least", p, answered, err, connections)
		}
		rate, err := packetRate(r, p, packets)
		if err != nil {
			t.Fatal(err)
		}
		arrived, err := r.receivers[p].count()
		if err != nil || arrived != packets {
			t.Errorf("%s: %d packets arrived, %v, want %d", p, arrived, err, packets)
		}
		const least, most = 1e4, 1e8 // on any machine
		if rate < least || rate > most {
			t.Errorf("%s: %g packets a second", p, rate)
		}
	}
}

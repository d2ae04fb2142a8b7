// SPDX-License-Identifier: Apache-2.0

// Package gratuitous sends unsolicited announcements of the hardware address of an IP address: ARP
// announcements (RFC 5227) and neighbour advertisements (RFC 4861). It replies to no requests and
// keeps no state.
package gratuitous

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Send announces to the neighbours on a device in the calling thread's namespace that mac is the
// hardware address of addrs.
func Send(index int, mac net.HardwareAddr, addrs []netip.Addr) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // 0: receives nothing
	if err != nil {
		return err
	}
	// Close waits for an RCU grace period, about 10 ms; the caller need not wait.
	defer func() { go unix.Close(fd) }()
	to := &unix.SockaddrLinklayer{Ifindex: index}
	var errs error
	for _, a := range addrs {
		frame := arpAnnouncement
		if a.Is6() {
			frame = neighbourAdvertisement
		}
		errs = errors.Join(errs, unix.Sendto(fd, frame(mac, a), 0, to))
	}
	return errs
}

// arpAnnouncement is an ARP request for the sender's own address (RFC 5227, 2.3).
func arpAnnouncement(mac net.HardwareAddr, a netip.Addr) []byte {
	f := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac...)
	f = append(f, 0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4, 0, 1)
	f = append(append(f, mac...), a.AsSlice()...)
	f = append(append(f, 0, 0, 0, 0, 0, 0), a.AsSlice()...)
	return append(f, make([]byte, 60-len(f))...)
}

// neighbourAdvertisement returns an unsolicited neighbour advertisement to all nodes (RFC 4861,
// 7.2.6).
func neighbourAdvertisement(mac net.HardwareAddr, a netip.Addr) []byte {
	allNodes := netip.MustParseAddr("ff02::1")
	body := []byte{136, 0, 0, 0, 0x20, 0, 0, 0} // override
	body = append(body, a.AsSlice()...)
	body = append(append(body, 2, 1), mac...)
	src, dst := a.As16(), allNodes.As16()
	sum := uint32(len(body)) + 58
	for _, part := range [][]byte{src[:], dst[:], body} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(body[2:], ^uint16(sum))
	f := append([]byte{0x33, 0x33, 0, 0, 0, 1}, mac...)
	f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(body)), 58, 255)
	return append(append(append(f, src[:]...), dst[:]...), body...)
}

// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// announce tells the neighbours of a pod which hardware address its addresses have
// now: who had one of them before may have had another.
func (l *Links) announce(pod *end, p *datapath.PodLink) error {
	if len(p.Addresses) == 0 {
		return nil
	}
	return within(pod.ns, l.home, func() error { return sendAll(p) })
}

// within runs f on a thread in a network namespace, which it leaves again. One that
// cannot is not used any more.
func within(ns, home netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(ns)
		if err == nil {
			err = f()
		}
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

func sendAll(p *datapath.PodLink) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // 0: receives nothing
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	dev, err := net.InterfaceByName(p.IfName)
	if err != nil {
		return err
	}
	to := &unix.SockaddrLinklayer{Ifindex: dev.Index}
	var errs error
	for _, a := range p.Addresses {
		frame := arpAnnouncement
		if a.Addr().Is6() {
			frame = neighbourAdvertisement
		}
		errs = errors.Join(errs, unix.Sendto(fd, frame(p.MAC, a.Addr()), 0, to))
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

// neighbourAdvertisement is one that nobody asked for (RFC 4861, 7.2.6), to all nodes.
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

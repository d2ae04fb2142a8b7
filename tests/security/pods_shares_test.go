// SPDX-License-Identifier: Apache-2.0

package security

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testnet"
)

// hosts are the LAN host's addresses by family.
var hosts = map[string]netip.Addr{
	"IPv4": netip.MustParseAddr("192.0.2.77"), "IPv6": netip.MustParseAddr("2001:db8:2::77"),
}

// flood sends a datagram to a destination from each source port from first to last.
func flood(t *testing.T, from *testnet.NS, to netip.AddrPort, first, last int) {
	t.Helper()
	from.Do(t, func() error {
		family, sockaddr := unix.AF_INET, unix.Sockaddr(nil)
		if to.Addr().Is4() {
			sockaddr = &unix.SockaddrInet4{Addr: to.Addr().As4()}
		} else {
			family, sockaddr = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.Addr().As16()}
		}
		fd, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_UDP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if family == unix.AF_INET6 { // the kernel fills in the checksum
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, 6); err != nil {
				return err
			}
		}
		datagram := make([]byte, 8+4)
		binary.BigEndian.PutUint16(datagram[2:], to.Port())
		binary.BigEndian.PutUint16(datagram[4:], uint16(len(datagram)))
		for port := first; port <= last; port++ {
			binary.BigEndian.PutUint16(datagram, uint16(port))
			if err := unix.Sendto(fd, datagram, 0, sockaddr); err != nil {
				return fmt.Errorf("from port %d: %w", port, err)
			}
		}
		return nil
	})
}

// TestS7SourcePorts: a pod repeatedly sends datagrams to one address and port outside from all of
// its ports. Another pod still reaches that address and port.
func TestS7SourcePorts(t *testing.T) {
	s := newPodsSite(t, "tables: {connections: 131072}")
	evil, victim := s.addPod(nil), s.addPod(nil)
	for family, host := range hosts {
		s.lan.ServeUDP(t, netip.AddrPortFrom(host, 7000).String(), "lan")
		for range 2 {
			flood(t, evil.NS, netip.AddrPortFrom(host, 7000), 1, 65535)
		}
		lost := 0
		for range 20 {
			if got := answers(victim.NS, host.String(), 7000); len(got) == 0 {
				lost++
			}
		}
		status, err := s.Client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		told := strings.Join(status.Health.Messages, "\n")
		towards := netip.AddrPortFrom(host, 7000).String()
		if !strings.Contains(told, "no source port is left for new connections to "+towards) ||
			!strings.Contains(told, "pod shop/"+evil.rt.ContainerID+" ") {
			t.Errorf("%s: health %q, which should name %s and the pod that has the ports", family, told, towards)
		}
		if lost > 1 {
			t.Errorf("%s: %d of 20 questions of another pod were not answered", family, lost)
		}
	}
}

// TestS8Connections: two pods establish as many connections as they can. A connection that
// another pod opens afterwards outlives a flood of opening packets.
func TestS8Connections(t *testing.T) {
	const room = 8192
	s := newPodsSite(t, fmt.Sprintf("tables: {connections: %d}", room))
	victim := s.addPod(nil)
	for family, host := range hosts {
		t.Run(family, func(t *testing.T) { outliveFlood(t, s, victim, host) })
	}
}

// outliveFlood lets two new pods fill the table of connections, and the victim use a connection
// across a flood of opening packets.
func outliveFlood(t *testing.T, s *podsSite, victim *podsPod, host netip.Addr) {
	s.lan.ServeUDP(t, netip.AddrPortFrom(host, 7000).String(), "lan")
	s.lan.ServeTCP(t, netip.AddrPortFrom(host, 7001).String(), "lan")
	var evil *podsPod
	for range 2 {
		evil = s.addPod(nil)
		for first := 1; first < 10_000; first += 1000 { // the second datagram follows the answer
			for range 3 {
				flood(t, evil.NS, netip.AddrPortFrom(host, 7000), first, first+999)
			}
		}
	}
	var c net.Conn
	victim.Do(t, func() (err error) {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(host, 7001).String(), 5*time.Second)
		return err
	})
	defer c.Close()
	ask := func(what string) {
		t.Helper()
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(what)); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	read := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Fatalf("read %q, %v; want %q", got, err, want)
		}
	}
	ask("before")
	read("lan\nbefore")
	flood(t, evil.NS, netip.AddrPortFrom(host, 7999), 1, 30_000)
	ask("after")
	read("after")
}

// TestS8HalfOpen: a pod opens as many connections as it can while another pod waits for an answer,
// which still arrives.
func TestS8HalfOpen(t *testing.T) {
	s := newPodsSite(t, "tables: {connections: 8192}")
	evil, victim := s.addPod(nil), s.addPod(nil)
	for family, host := range hosts {
		server := s.lan.ListenUDP(t, netip.AddrPortFrom(host, 7000).String())
		c, err := victim.Dial("udp", "", netip.AddrPortFrom(host, 7000).String(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("question")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 64)
		if err := server.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		_, from, err := server.ReadFromUDPAddrPort(b)
		if err != nil {
			t.Fatal(err)
		}
		for port := range uint16(3) {
			flood(t, evil.NS, netip.AddrPortFrom(host, 7997+port), 1, 20_000)
		}
		if _, err := server.WriteToUDPAddrPort([]byte("answer"), from); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(b); err != nil || string(b[:n]) != "answer" {
			t.Errorf("%s: read %q, %v, after another pod opened 60,000 connections", family, b[:n], err)
		}
	}
}

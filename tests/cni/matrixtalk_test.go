// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/loxilight/loxilight/internal/testpkt"
)

const matrixPort = 4660

// atMatrix is the address and port at which a station answers.
func atMatrix(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, matrixPort) }

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// serve answers over TCP, UDP and SCTP on both addresses of a station, with the address of the
// client as seen by the server.
func (c *cluster) serve(s *station) {
	c.t.Helper()
	for family, addr := range s.addr {
		at := netip.AddrPortFrom(addr, matrixPort).String()
		l := s.Listen(c.t, at)
		u := s.ListenUDP(c.t, at)
		raw := c.listenSCTP(s, family, addr.String())
		c.t.Cleanup(func() { _ = errors.Join(l.Close(), u.Close(), raw.Close()) }) // end of the test
		go serveTCP(l)
		go serveUDP(u)
		go serveSCTP(raw)
	}
}

func serveTCP(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close() // no longer needed
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			fmt.Fprintln(conn, netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr())
			_, _ = io.Copy(conn, conn) // the client checks the data
		}()
	}
}

func serveUDP(u *net.UDPConn) {
	b := make([]byte, 1<<16)
	for {
		n, from, err := u.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = u.WriteToUDPAddrPort(fmt.Appendf(nil, "%s %s", from.Addr().Unmap(), b[:n]), from) // the client retries
		}
	}
}

// talkAll connects every station with every other one.
func (c *cluster) talkAll() *matrix {
	c.t.Helper()
	m := &matrix{cells: map[[2]string][2]int{}}
	for _, s := range c.stations {
		c.serve(s)
	}
	var wg sync.WaitGroup
	turns := make(chan struct{}, 8)
	for i, from := range c.stations {
		for family := range from.addr {
			sctp, icmp := c.listenSCTP(from, family, ""), c.listenICMP(from, family)
			wg.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				defer sctp.Close()
				defer icmp.Close()
				for k, to := range c.stations {
					if from == to {
						continue
					}
					number := i*len(c.stations) + k
					for protocol, talk := range map[string]func(*station, netip.Addr) (netip.Addr, error){
						"TCP": func(_ *station, a netip.Addr) (netip.Addr, error) { return talkTCP(from, atMatrix(a)) },
						"UDP": func(_ *station, a netip.Addr) (netip.Addr, error) { return talkUDP(from, atMatrix(a)) },
						"SCTP": func(_ *station, a netip.Addr) (netip.Addr, error) {
							return talkSCTP(sctp, atMatrix(a), uint16(clientPorts+number))
						},
						"ICMP": func(_ *station, a netip.Addr) (netip.Addr, error) { return talkICMP(icmp, a, uint16(number)) },
					} {
						seen, err := talk(from, to.addr[family])
						if err == nil && seen.IsValid() && !c.expected(from, to, seen) {
							err = fmt.Errorf("seen as %s", seen)
						}
						if err != nil {
							err = fmt.Errorf("%s to %s %s: %w", from.name, to.name, to.addr[family], err)
						}
						m.note(relation(from, to), protocol+map[int]string{0: "v4", 1: "v6"}[family], err)
					}
				}
			})
		}
	}
	wg.Wait()
	return m
}

// talkMuch sends datagrams that just fit, datagrams that are fragmented, and a lot of TCP data,
// between pods on different nodes, and from pods to the outside and to the nodes.
func (c *cluster) talkMuch() {
	c.t.Helper()
	var some []*station
	for _, s := range c.stations {
		if s.kind != aPod || strings.HasSuffix(s.name, "-1") {
			some = append(some, s)
		}
	}
	var wg sync.WaitGroup
	turns := make(chan struct{}, 8)
	for _, from := range some {
		for _, to := range some {
			if from == to || from.kind != aPod && to.kind != aPod {
				continue
			}
			wg.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				c.talkMuchTo(from, to)
			})
		}
	}
	wg.Wait()
}

func (c *cluster) talkMuchTo(from, to *station) {
	for _, addr := range to.addr {
		for _, size := range []int{1372, 1400, 1472, 4000, 20000} {
			if err := ask(from, addr, size, 5); err != nil {
				c.t.Errorf("%s to %s %s, datagram of %d bytes: %v", from.name, to.name, addr, size, err)
			}
		}
		if err := bulk(from, addr, 2<<20); err != nil {
			c.t.Errorf("%s to %s %s, much by TCP: %v", from.name, to.name, addr, err)
		}
	}
}

func talkUDP(from *station, to netip.AddrPort) (netip.Addr, error) {
	conn, err := from.Dial("udp", "", to.String(), time.Second)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close() // no longer needed
	var seen netip.Addr
	for round := range 3 {
		if seen, err = exchange(conn, fmt.Appendf(nil, "round %d", round), 3); err != nil {
			return seen, fmt.Errorf("round %d: %w", round, err)
		}
	}
	return seen, nil
}

// exchange sends a datagram up to the given number of times, until the answer arrives: the first
// datagram to a station may be lost during neighbour resolution. The patience is a second for each
// time, most of it for the last.
func exchange(conn net.Conn, data []byte, times int) (seen netip.Addr, err error) {
	b := make([]byte, 1<<16)
	for i := range times {
		if _, err = conn.Write(data); err != nil {
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(patienceOf(i, times))) // cannot fail
		for {
			var n int
			if n, err = conn.Read(b); err != nil {
				break
			}
			name, rest, _ := strings.Cut(string(b[:n]), " ")
			if rest == string(data) {
				return netip.ParseAddr(name)
			}
		}
	}
	return seen, err
}

// patienceOf returns how long to wait for the answer to attempt i (from 0) of times: little at
// first, and a second for each attempt in total.
func patienceOf(i, times int) time.Duration {
	const first = 200 * time.Millisecond
	if i < times-1 {
		return first
	}
	return time.Duration(times)*time.Second - time.Duration(times-1)*first
}

// ask exchanges one datagram of the given size.
func ask(from *station, to netip.Addr, size, times int) error {
	conn, err := from.Dial("udp", "", netip.AddrPortFrom(to, matrixPort).String(), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close() // no longer needed
	_, err = exchange(conn, bytes.Repeat([]byte("x"), size), times)
	return err
}

func talkTCP(from *station, to netip.AddrPort) (netip.Addr, error) {
	return stream(from, to, []byte("a few bytes"))
}

func bulk(from *station, to netip.Addr, size int) error {
	_, err := stream(from, atMatrix(to), bytes.Repeat([]byte("sixteen bytes ok"), size/16))
	return err
}

func stream(from *station, to netip.AddrPort, data []byte) (seen netip.Addr, err error) {
	conn, err := from.Dial("tcp", "", to.String(), 5*time.Second)
	if err != nil {
		return seen, err
	}
	defer conn.Close() // no longer needed
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil {
		return seen, err
	}
	if seen, err = netip.ParseAddr(strings.TrimSpace(line)); err != nil {
		return seen, err
	}
	go func() { _, _ = conn.Write(data) }() // unread data is not an error
	got := make([]byte, len(data))
	if n, err := io.ReadFull(in, got); err != nil {
		return seen, fmt.Errorf("after %d bytes: %w", n, err)
	}
	if !bytes.Equal(got, data) {
		return seen, errors.New("other bytes came back")
	}
	return seen.Unmap(), nil
}

// Chunks of SCTP (RFC 9260, section 3.2).
const (
	chunkData       = 0
	chunkInit       = 1
	chunkInitAck    = 2
	chunkCookieEcho = 10
	chunkCookieAck  = 11

	clientTag, serverTag = 0x01010101, 0x02020202

	// The first source port of the raw sockets, from the kernel's range: no port is taken twice.
	clientPorts = 33000
)

// sctpPacket is an SCTP packet with one chunk.
func sctpPacket(source, destination uint16, tag uint32, kind byte, value []byte) []byte {
	return testpkt.Build(testpkt.SCTP{Source: source, Destination: destination, Tag: tag, Chunks: []testpkt.Chunk{{Type: kind, Flags: 3, Value: value}}})
}

// sctpInit is the body of INIT and INIT ACK.
func sctpInit(tag uint32) []byte {
	return append(binary.BigEndian.AppendUint32(nil, tag), 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
}

// sctpSound reports whether the checksum is correct.
func sctpSound(b []byte) bool {
	if len(b) < 16 {
		return false
	}
	b = bytes.Clone(b)
	want := binary.LittleEndian.Uint32(b[8:])
	copy(b[8:12], make([]byte, 4))
	return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) == want
}

// listenSCTP opens a raw socket: the kernel may not support SCTP.
func (c *cluster) listenSCTP(s *station, family int, at string) net.PacketConn {
	c.t.Helper()
	return c.listenRaw(s, []string{"ip4:132", "ip6:132"}[family], at)
}

func (c *cluster) listenICMP(s *station, family int) net.PacketConn {
	c.t.Helper()
	return c.listenRaw(s, []string{"ip4:1", "ip6:58"}[family], "")
}

// listenRaw opens a raw socket at an address; empty: any.
func (c *cluster) listenRaw(s *station, network, at string) (conn net.PacketConn) {
	c.t.Helper()
	s.Do(c.t, func() (err error) {
		conn, err = (&net.ListenConfig{}).ListenPacket(context.Background(), network, at)
		return err
	})
	return conn
}

func serveSCTP(raw net.PacketConn) {
	b := make([]byte, 2048)
	for {
		n, from, err := raw.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || !sctpSound(b[:n]) || binary.BigEndian.Uint16(b[2:]) != matrixPort {
			continue
		}
		client := binary.BigEndian.Uint16(b)
		var answer []byte
		switch b[12] {
		case chunkInit:
			answer = sctpPacket(matrixPort, client, clientTag, chunkInitAck, sctpInit(serverTag))
		case chunkCookieEcho:
			answer = sctpPacket(matrixPort, client, clientTag, chunkCookieAck, nil)
		case chunkData:
			answer = sctpPacket(matrixPort, client, clientTag, chunkData, append(make([]byte, 12), from.String()+" "...))
		default:
			continue
		}
		_, _ = raw.WriteTo(answer, from) // the client retries
	}
}

func talkSCTP(raw net.PacketConn, to netip.AddrPort, port uint16) (seen netip.Addr, err error) {
	for _, step := range []struct {
		tag          uint32
		kind, answer byte
		value        []byte
	}{
		{0, chunkInit, chunkInitAck, sctpInit(clientTag)},
		{serverTag, chunkCookieEcho, chunkCookieAck, []byte("cookie")},
		{serverTag, chunkData, chunkData, make([]byte, 13)},
		{serverTag, chunkData, chunkData, make([]byte, 14)},
	} {
		value, err := exchangeRaw(raw, to.Addr(), sctpPacket(port, to.Port(), step.tag, step.kind, step.value), func(b []byte) bool {
			return sctpSound(b) && binary.BigEndian.Uint16(b) == to.Port() && binary.BigEndian.Uint16(b[2:]) == port && b[12] == step.answer
		})
		if err != nil {
			return seen, fmt.Errorf("chunk %d: %w", step.kind, err)
		}
		if step.kind == chunkData {
			name, _, _ := strings.Cut(string(value[min(len(value), 28):]), " ")
			if seen, err = netip.ParseAddr(name); err != nil {
				return seen, err
			}
		}
	}
	return seen, nil
}

// talkICMP sends three echo requests.
func talkICMP(raw net.PacketConn, to netip.Addr, id uint16) (netip.Addr, error) {
	request, reply := byte(8), byte(0)
	if to.Is6() {
		request, reply = 128, 129
	}
	for seq := range uint16(3) {
		// The kernel writes the checksum of ICMPv6.
		b := testpkt.Build(testpkt.ICMP{Type: request, ID: id, Seq: seq}, testpkt.Payload("ping"))
		if _, err := exchangeRaw(raw, to, b, func(got []byte) bool {
			return len(got) >= 12 && got[0] == reply && bytes.Equal(got[4:12], b[4:12])
		}); err != nil {
			return netip.Addr{}, fmt.Errorf("sequence %d: %w", seq, err)
		}
	}
	return netip.Addr{}, nil
}

// exchangeRaw sends a packet up to three times, until the answer arrives.
func exchangeRaw(raw net.PacketConn, to netip.Addr, packet []byte, isAnswer func([]byte) bool) ([]byte, error) {
	b := make([]byte, 2048)
	var err error
	const times = 3
	for i := range times {
		if _, err = raw.WriteTo(packet, &net.IPAddr{IP: to.AsSlice()}); err != nil {
			continue
		}
		_ = raw.SetReadDeadline(time.Now().Add(patienceOf(i, times))) // cannot fail
		for {
			n, from, readErr := raw.ReadFrom(b)
			if err = readErr; err != nil {
				break
			}
			if got, ok := netip.AddrFromSlice(from.(*net.IPAddr).IP); ok && got.Unmap() == to && isAnswer(b[:n]) {
				return b[:n], nil
			}
		}
	}
	return nil, err
}

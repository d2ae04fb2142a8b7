// SPDX-License-Identifier: Apache-2.0

package endure

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// pattern is a frame that a generator sends with different sources. Its checksums stay correct: for
// each change, another field changes by as much.
type pattern struct {
	frame  []byte
	source int // offset of the last four bytes of the source address
	port   int // offset of the source port
	spare  int // offset of a word that the transport checksum covers
	id     int // offset of the IPv4 identification, which only the header checksum covers; 0: none
}

// newPattern returns a pattern for the layers of a packet to target: a UDP datagram, or a TCP segment
// with flags.
func (s *site) newPattern(target netip.AddrPort, flags uint8) *pattern {
	source := netip.MustParsePrefix(s.family.forged).Addr()
	var ip testpkt.Layer = testpkt.IPv4{Source: source, Destination: target.Addr(), TTL: 60}
	p := &pattern{source: 14 + 12, port: 14 + 20, id: 14 + 4}
	if source.Is6() {
		ip = testpkt.IPv6{Source: source, Destination: target.Addr(), HopLimit: 60}
		p = &pattern{source: 14 + 8 + 12, port: 14 + 40}
	}
	eth := testpkt.Ethernet{Source: s.clients.MAC(s.t, "eth0"), Destination: s.node.MAC(s.t, "in0")}
	if flags == 0 {
		p.frame = testpkt.Build(eth, ip, testpkt.UDP{Source: 1024, Destination: target.Port()}, testpkt.Payload("\x00\x00question"))
		p.spare = p.port + 8
	} else {
		p.frame = testpkt.Build(eth, ip, testpkt.TCP{Source: 1024, Destination: target.Port(), Flags: flags, Seq: 1 << 30, Ack: 1 << 29})
		p.spare = p.port + 4
	}
	return p
}

// from sets the source.
func (p *pattern) from(source uint32, port uint16) {
	was := binary.BigEndian.Uint32(p.frame[p.source:])
	binary.BigEndian.PutUint32(p.frame[p.source:], source)
	addr := less(was>>16+was&0xffff, source>>16+source&0xffff)
	if p.id != 0 {
		p.add(p.id, addr)
	}
	p.add(p.spare, less(addr+uint32(binary.BigEndian.Uint16(p.frame[p.port:])), uint32(port)))
	binary.BigEndian.PutUint16(p.frame[p.port:], port)
}

// less returns a-b in one's complement arithmetic of 16 bits (RFC 1071).
func less(a, b uint32) uint32 { return fold(fold(a) + 0xffff - fold(b)) }

func fold(n uint32) uint32 {
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	return n
}

func (p *pattern) add(at int, n uint32) {
	binary.BigEndian.PutUint16(p.frame[at:], uint16(fold(uint32(binary.BigEndian.Uint16(p.frame[at:]))+n)))
}

// generator sends packets from a number of sources that changes with each packet, and counts answers.
type generator struct {
	sent, answered atomic.Uint64
	end            chan struct{} // closed: it no longer counts
	sending        chan struct{} // closed: it no longer sends
	running        sync.WaitGroup
}

// generate sends rate packets per second with the source that next returns for each.
func (s *site) generate(p *pattern, rate int, next func(n uint64) (source uint32, port uint16)) *generator {
	s.t.Helper()
	g := &generator{end: make(chan struct{}), sending: make(chan struct{})}
	out := packetSocket(s.t, s.clients, "eth0")
	g.running.Go(func() {
		begin := time.Now()
		for n := uint64(0); ; n++ {
			select {
			case <-g.sending:
				return
			default:
			}
			if ahead := time.Duration(n)*time.Second/time.Duration(rate) - time.Since(begin); ahead > time.Millisecond {
				select {
				case <-g.sending:
					return
				case <-time.After(ahead):
				}
			}
			p.from(next(n))
			if _, err := unix.Write(out, p.frame); err == nil {
				g.sent.Add(1)
			}
		}
	})
	s.t.Cleanup(func() {
		g.stop()
		unix.Close(out)
	})
	return g
}

// count counts the UDP packets that arrive from a port.
func (s *site) count(g *generator, port uint16) {
	s.t.Helper()
	in := packetSocket(s.t, s.clients, "eth0")
	protocol, at := 14+9, 14+20
	if s.family.clientAddr().Is6() {
		protocol, at = 14+6, 14+40
	}
	g.running.Go(func() {
		defer unix.Close(in)
		b := make([]byte, 128)
		for {
			select {
			case <-g.end:
				return
			default:
			}
			n, _, err := unix.Recvfrom(in, b, 0)
			if err == nil && n >= at+8 && b[protocol] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(b[at:]) == port {
				g.answered.Add(1)
			}
		}
	})
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// stopSending ends the packets, but not the count of answers. It may be called twice, as stop.
func (g *generator) stopSending() { closeOnce(g.sending) }

func (g *generator) stop() {
	g.stopSending()
	closeOnce(g.end)
	g.running.Wait()
}

// packetSocket returns a socket for frames on a device, which does not receive its own.
func packetSocket(t *testing.T, ns *testnet.NS, device string) (fd int) {
	t.Helper()
	const ignoreOutgoing = 23 // PACKET_IGNORE_OUTGOING
	ns.Do(t, func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		wait := unix.Timeval{Usec: 100_000}
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_PACKET, ignoreOutgoing, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}))
	})
	return fd
}

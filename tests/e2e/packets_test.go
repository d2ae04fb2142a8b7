// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// upload sends size bytes to a server that echoes them and returns how long it took; the echo must
// equal the bytes sent.
func upload(ns *testnet.NS, target string, size int) (time.Duration, error) {
	c, err := ns.Dial("tcp", "", target, patience)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return 0, err
	}
	begin := time.Now()
	chunk := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	sent := make(chan error, 1)
	hash := sha256.New()
	go func() {
		var err error
		for n := 0; n < size && err == nil; n += len(chunk) {
			hash.Write(chunk)
			_, err = c.Write(chunk)
		}
		sent <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	for b := make([]byte, 1); b[0] != '\n'; { // the server's name
		if err := testtraffic.ReadFull(c, b); err != nil {
			return 0, err
		}
	}
	back := sha256.New()
	n, err := io.Copy(back, c)
	if err := errors.Join(err, <-sent); err != nil {
		return 0, fmt.Errorf("after %d bytes: %w", n, err)
	}
	if !bytes.Equal(hash.Sum(nil), back.Sum(nil)) {
		return 0, fmt.Errorf("%d bytes came back, and not those that were sent", n)
	}
	return time.Since(begin), nil
}

// TestPathMTU: with a narrow link behind the node, the ICMP errors about it reach the client
// as the frontend's, and a large transfer gets through.
func TestPathMTU(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		for _, source := range []string{"keep", "snat"} {
			t.Run(source, func(t *testing.T) {
				s := newSite(t).start()
				// b1 becomes a router to the backend, over a link with an MTU of 1280 bytes.
				far := testnet.New(t, "far")
				testnet.Veth(t,
					testnet.Port{NS: s.backends[0], Name: "narrow", Addrs: []string{"10.0.9.1/24", "2001:db8:9::1/64"}, MTU: 1280},
					testnet.Port{NS: far, Name: "eth0", Addrs: []string{"10.0.9.2/24", "2001:db8:9::2/64"}, MTU: 1280})
				s.backends[0].Forward(t)
				s.node.Route(t, "10.0.9.0/24", "10.0.1.2")
				s.node.Route(t, "2001:db8:9::/64", "2001:db8:1::2")
				// The backend's MSS does not reflect the narrow link.
				for _, via := range []string{"10.0.9.1", "2001:db8:9::1"} {
					far.Run(t, "ip", "route", "add", "default", "via", via, "advmss", "1420")
				}
				backend := map[string]string{"IPv4": "10.0.9.2:8080", "IPv6": "[2001:db8:9::2]:8080"}[family]
				far.ServeTCP(t, backend, "far")
				front := vip + ":9000"
				s.Apply(serviceYAML("web", []string{front + "/tcp"}, []string{backend}, "source: "+source))
				took, err := upload(s.client, front, 10<<20)
				if err != nil || took > 5*time.Second {
					t.Errorf("10 MB took %s: %v", took, err)
				}
				route := s.client.Run(t, "ip", "route", "get", strings.Trim(vip, "[]"))
				if !strings.Contains(route, "mtu 1280") {
					t.Errorf("the client's route to the frontend is %q, want mtu 1280", strings.TrimSpace(route))
				}
			})
		}
	})
}

// TestChecksums: packets that leave the node have correct checksums, whether the sender's
// device completes them or not.
func TestChecksums(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		for _, offload := range []bool{true, false} {
			t.Run(fmt.Sprintf("offload %t", offload), func(t *testing.T) {
				s, backends := site3(t, family)
				front := vip + ":9000"
				for _, port := range []string{"p1", "in0"} { // a queue prevents bypassing the device
					s.node.Run(t, "tc", "qdisc", "add", "dev", port, "root", "pfifo")
				}
				for _, source := range []string{"keep", "snat"} {
					s.Apply(serviceYAML(source, []string{front + "/tcp", front + "/udp"}, backends[:1], "source: "+source))
					for _, ns := range []*testnet.NS{s.client, s.backends[0]} {
						ns.Offload(t, "eth0", offload, testnet.TxChecksum)
					}
					// The node's devices complete checksums before packets leave.
					s.node.Offload(t, "p1", false, testnet.TxChecksum)
					s.node.Offload(t, "in0", false, testnet.TxChecksum)
					there, back := s.backends[0].Wire(t, "eth0"), s.client.Wire(t, "eth0")
					for protocol, talk := range talk {
						for _, size := range []int{0, 1, 999, 1200} {
							if got, err := talk(s.client, "", front, bytes.Repeat([]byte("x"), size)); err != nil || got != "b1" {
								t.Errorf("%s %s, %d bytes: %q, %v", source, protocol, size, got, err)
							}
						}
					}
					talkOn(t, s, source, front)
					if !offload {
						checkFrames(t, there, netip.MustParseAddrPort(backends[0]))
						checkFrames(t, back, netip.MustParseAddrPort(front))
					}
					s.LLCLI("delete", "Service", source, "--wait", "5s")
				}
			})
		}
	})
}

// talkOn continues existing connections, which take the fast path.
func talkOn(t *testing.T, s *site, source, front string) {
	t.Helper()
	for protocol, greeting := range map[string]string{"tcp": "b1\n", "udp": ""} {
		c, err := s.client.Dial(protocol, "", front, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience)) // if this fails, the next read fails, too
		if _, err := io.ReadFull(c, make([]byte, len(greeting))); err != nil {
			t.Errorf("%s %s, its greeting: %v", source, protocol, err)
		}
		for i := range 20 {
			want := bytes.Repeat([]byte{'a' + byte(i)}, 100+i)
			if _, err := c.Write(want); err != nil {
				t.Errorf("%s %s: %v", source, protocol, err)
			}
			if protocol == "udp" {
				want = append([]byte("b1 "), want...)
			}
			got := make([]byte, len(want))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s %s, exchange %d: %q, %v", source, protocol, i, got, err)
				break
			}
		}
	}
}

// TestNarrowPort: the narrow link is the node's own, and the backend's MSS does not
// reflect it. With SNAT, only the data plane can report it to the client.
func TestNarrowPort(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		for _, source := range []string{"keep", "snat"} {
			t.Run(source, func(t *testing.T) {
				s, backends := site3(t, family)
				s.node.MTU(t, "p1", 1280)
				s.backends[0].MTU(t, "eth0", 1280)
				s.backends[0].Run(t, "ip", "route", "replace", "default", "via", nodeAddr(family, 0).String(), "advmss", "1420")
				near := map[string]string{"IPv4": "10.0.1.0/24 metric 0", "IPv6": "2001:db8:1::/64 metric 256"}[family] // route to the node
				s.backends[0].Run(t, "ip", append([]string{"route", "replace", "dev", "eth0", "advmss", "1420"}, strings.Fields(near)...)...)
				front := vip + ":9000"
				s.Apply(serviceYAML("web", []string{front + "/tcp"}, backends[:1], "source: "+source))
				if took, err := upload(s.client, front, 10<<20); err != nil || took > 5*time.Second {
					t.Errorf("10 MB took %s: %v", took, err)
				}
				route := s.client.Run(t, "ip", "route", "get", strings.Trim(vip, "[]"))
				if !strings.Contains(route, "mtu 1280") {
					t.Errorf("the client's route to the frontend is %q, want mtu 1280", strings.TrimSpace(route))
				}
			})
		}
	})
}

// TestFragments: a fragmented datagram, in both directions, on every path.
func TestFragments(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s, backends := site3(t, family)
		near := map[string]string{"IPv4": "192.0.2.77:8080", "IPv6": "[2001:db8:0:2::77]:8080"}[family]
		s.serve(s.near, near, "near")
		for i, tt := range []struct{ name, backend, source string }{
			{"b1", backends[0], "keep"}, {"b2", backends[1], "snat"}, {"near", near, "auto"},
		} {
			front := fmt.Sprintf("%s:%d", vip, 9000+i)
			s.Apply(serviceYAML(tt.name, []string{front + "/udp"}, []string{tt.backend}, "source: "+tt.source))
			for _, size := range []int{1600, 4000, 60000} {
				if got, err := talkUDP(s.client, "", front, bytes.Repeat([]byte("x"), size)); got != tt.name || err != nil {
					t.Errorf("%s, %d bytes: %q, %v", tt.source, size, got, err)
				}
			}
		}
	})
}

// checkFrames waits for frames to and from a service and fails the test if a checksum
// is wrong.
func checkFrames(t *testing.T, w *testnet.Wire, service netip.AddrPort) {
	t.Helper()
	var seen []*testpkt.Packet
	testnet.Eventually(t, patience, fmt.Sprintf("ten frames of %s are seen", service), func() bool {
		seen = nil
		for _, frame := range w.Frames() {
			if p := testpkt.Parse(frame); p.Source() == service || p.Destination() == service {
				seen = append(seen, p)
			}
		}
		return len(seen) >= 10
	})
	for _, p := range seen {
		if err := p.Check(); err != nil {
			t.Errorf("%v\n%s", err, p)
		}
	}
}

// TestBulk: large segments, segmented by the sender's device or not, lose nothing, on every
// path.
func TestBulk(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s, backends := site3(t, family)
		near := map[string]string{"IPv4": "192.0.2.77:8080", "IPv6": "[2001:db8:0:2::77]:8080"}[family]
		s.serve(s.near, near, "near")
		for name, spec := range map[string][2]string{
			"keep": {backends[0], "keep"}, "snat": {backends[1], "snat"}, "one-armed": {near, "auto"},
		} {
			port := map[string]string{"keep": "9001", "snat": "9002", "one-armed": "9003"}[name]
			front := vip + ":" + port
			s.Apply(serviceYAML(name, []string{front + "/tcp"}, []string{spec[0]}, "source: "+spec[1]))
			for _, offload := range []bool{true, false} {
				s.client.Offload(t, "eth0", offload, testnet.TSO, testnet.GSO)
				size := 64 << 20
				if !offload {
					size = 8 << 20
				}
				took, err := upload(s.client, front, size)
				if err != nil {
					t.Errorf("%s, offload %t: %v", name, offload, err)
				}
				t.Logf("%s, offload %t: %d MB there and back in %s", name, offload, size>>20, took)
			}
		}
		for reason, n := range s.Counters("", "").Drops {
			if n != 0 {
				t.Errorf("%d packets were dropped: %s", n, reason)
			}
		}
	})
}

// TestSCTP sends the packets of an association by hand: no kernel module is needed. The
// association continues while its backend is down.
func TestSCTP(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s, backends := site3(t, family)
		front := netip.MustParseAddrPort(vip + ":9000")
		backend := netip.MustParseAddrPort(backends[0])
		client := netip.MustParseAddrPort(map[string]string{"IPv4": "192.0.2.17:40123", "IPv6": "[2001:db8:0:2::17]:40123"}[family])
		s.Apply(serviceYAML("sctp", []string{front.String() + "/sctp"}, backends[:1]))
		// The kernels resolve each other first, because hand-made frames do not cause that.
		for _, talk := range talk {
			s.Apply(serviceYAML("warm", []string{vip + ":9001/tcp", vip + ":9001/udp"}, backends[:1]))
			if _, err := talk(s.client, "", vip+":9001", nil); err != nil {
				t.Fatal(err)
			}
		}
		here, there := s.client.Wire(t, "eth0"), s.backends[0].Wire(t, "eth0")
		sent := 0
		carry := func(what string, from, to *testnet.Wire, eth testpkt.Ethernet, src, dst, seenSrc, seenDst netip.AddrPort, kind uint8) {
			t.Helper()
			sent++
			chunk := testpkt.Chunk{Type: kind, Value: fmt.Appendf(nil, "chunk %4d, %s", sent, what)}
			from.Send(t, testpkt.Build(eth, ipOf(src.Addr(), dst.Addr()), testpkt.SCTP{Source: src.Port(), Destination: dst.Port(),
				Tag: 0x21222324, Chunks: []testpkt.Chunk{chunk}}))
			frame := to.Await(t, patience, what, func(b []byte) bool {
				p := testpkt.Parse(b)
				return p.SCTP != nil && p.Destination() == seenDst && len(p.SCTP.Chunks) > 0 && p.SCTP.Chunks[0].Type == kind && bytes.Equal(p.SCTP.Chunks[0].Value, chunk.Value)
			})
			p := testpkt.Parse(frame)
			if err := p.Check(); err != nil || p.Source() != seenSrc || p.TTL() != 63 {
				t.Errorf("%s: %v, source %s, TTL %d\n%s", what, err, p.Source(), p.TTL(), p)
			}
		}
		forth := testpkt.Ethernet{Source: s.client.MAC(t, "eth0"), Destination: s.node.MAC(t, "in0")}
		back := testpkt.Ethernet{Source: s.backends[0].MAC(t, "eth0"), Destination: s.node.MAC(t, "p1")}
		carry("INIT", here, there, forth, client, front, client, backend, 1)
		carry("INIT ACK", there, here, back, backend, client, front, client, 2)
		carry("COOKIE ECHO", here, there, forth, client, front, client, backend, 10)
		carry("COOKIE ACK", there, here, back, backend, client, front, client, 11)
		for range 3 {
			carry("DATA", here, there, forth, client, front, client, backend, 0)
			carry("SACK", there, here, back, backend, client, front, client, 3)
		}
		out := s.LLCLI("connections", "--protocol", "sctp", "-o", "json")
		if !strings.Contains(out, `"established"`) || !strings.Contains(out, `"fast"`) {
			t.Errorf("the association is not established and tracked:\n%s", out)
		}
		fronts := []string{front.String() + "/sctp", front.String() + "/udp"}
		s.Apply(serviceYAML("sctp", fronts, backends[:1]))
		asker := s.asker(front.String())
		s.LLCLI("apply", "--wait", "5s", "-f", s.File(serviceYAML("sctp", fronts, []string{backends[0] + ",state: down", backends[1]})))
		asker.leaves(s)
		for end := time.Now().Add(settles); time.Now().Before(end); {
			carry("DATA", here, there, forth, client, front, client, backend, 0)
			carry("SACK", there, here, back, backend, client, front, client, 3)
		}
	})
}

func ipOf(src, dst netip.Addr) testpkt.Layer {
	if src.Is4() {
		return testpkt.IPv4{Source: src, Destination: dst, DontFragment: true}
	}
	return testpkt.IPv6{Source: src, Destination: dst}
}

// TestUnrelatedTrafficPasses: traffic without services passes as if there were no daemon: pings,
// traffic between the machines, fragments.
func TestUnrelatedTrafficPasses(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s, backends := site3(t, family)
		s.Apply(serviceYAML("web", []string{vip + ":9000/tcp"}, backends))
		for protocol, talk := range talk {
			if got, err := talk(s.client, "", backends[1], []byte("direct")); got != "b2" || err != nil {
				t.Errorf("%s directly: %q, %v", protocol, got, err)
			}
			if got, err := talk(s.backends[0], "", backends[1], []byte("direct")); got != "b2" || err != nil {
				t.Errorf("%s between backends: %q, %v", protocol, got, err)
			}
		}
		if got, err := talkUDP(s.client, "", backends[1], bytes.Repeat([]byte("x"), 9000)); got != "b2" || err != nil {
			t.Errorf("a fragmented datagram: %q, %v", got, err)
		}
		for _, target := range []string{strings.Trim(backends[1][:strings.LastIndex(backends[1], ":")], "[]"), nodeAddr(family, 0).String()} {
			if err := ping(s.client, target); err != nil {
				t.Errorf("ping %s: %v", target, err)
			}
		}
	})
}

// ping sends an echo request from ns and waits for the reply.
func ping(ns *testnet.NS, target string) error {
	network, request := "ip4:icmp", testpkt.ICMP{Type: testpkt.EchoRequest, ID: 0x1234, Seq: 1}
	if strings.Contains(target, ":") {
		network, request.V6, request.Type = "ip6:ipv6-icmp", true, testpkt.V6EchoRequest
	}
	var c net.Conn
	err := ns.Try(func() (err error) {
		c, err = net.DialTimeout(network, target, patience)
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	message := testpkt.Build(request, testpkt.Payload("echo")) // the kernel sets ICMPv6 checksums
	if _, err := c.Write(message); err != nil {
		return err
	}
	for b := make([]byte, 1500); ; {
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, err := c.Read(b)
		if err != nil || bytes.HasSuffix(b[:n], message[4:]) && b[0] != message[0] {
			return err
		}
	}
}

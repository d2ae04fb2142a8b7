// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// responseTo answers a query for a resolved name, with some text records.
func responseTo(query []byte, texts int) []byte {
	r, err := resolvedOf(query)
	if err != nil {
		return nil
	}
	b := testpkt.DNSResponse(query, resolveTTL, texts, r.addr())
	if testpkt.DNSKind(query) != testpkt.DNSHTTPS {
		return b
	}
	hint, key := r.addr().AsSlice(), byte(4)
	if r.is6 {
		key = 6
	}
	data := append([]byte{0, 1, 0, 0, 1, 0, 3, 2, 'h', '2', 0, key, 0, byte(len(hint))}, hint...) // alpn, hint
	b = slices.Clone(query)
	b[2], b[3] = 0x81, 0x80
	return testpkt.DNSRecord(b, []byte{0xc0, 12}, testpkt.DNSHTTPS, resolveTTL, data)
}

// serveParts answers queries at an address: over UDP with large responses, and over TCP with responses
// that cut divides into writes.
func serveParts(t *testing.T, ns *testnet.NS, at string, texts int, cut func([]byte) [][]byte) {
	t.Helper()
	u, l := ns.ListenUDP(t, at), ns.Listen(t, at)
	t.Cleanup(func() { u.Close(); l.Close() })
	go func() {
		for b := make([]byte, 1000); ; {
			n, client, err := u.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = u.WriteToUDPAddrPort(responseTo(b[:n], texts), client) // the client asks again
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerTCP(c, texts, cut)
		}
	}()
}

// answerTCP answers all queries in a connection, as soon as no further query follows.
func answerTCP(c net.Conn, texts int, cut func([]byte) [][]byte) {
	defer c.Close()
	var answers []byte
	for {
		var prefix [2]byte
		wait := 5 * time.Second
		if len(answers) > 0 {
			wait = 50 * time.Millisecond
		}
		_ = c.SetReadDeadline(time.Now().Add(wait)) // if this fails, the read does
		if _, err := io.ReadFull(c, prefix[:]); err == nil {
			query := make([]byte, binary.BigEndian.Uint16(prefix[:]))
			if _, err := io.ReadFull(c, query); err != nil {
				return
			}
			answers = append(answers, prefix2(responseTo(query, texts))...)
			continue
		}
		if len(answers) == 0 {
			return
		}
		for _, part := range cut(answers) {
			if _, err := c.Write(part); err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond) // so that each part is a segment
		}
		answers = nil
	}
}

// prefix2 puts the length of a message before it.
func prefix2(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
}

// resolveTCP asks for names in one connection, at once, and reads all responses.
func (r *resolving) resolveTCP(server string, names ...resolved) {
	r.t.Helper()
	c, err := r.Dial("tcp", "", server, 5*time.Second)
	if err != nil {
		r.t.Errorf("%s: %v", server, err)
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second)) // if this fails, the read does
	var queries []byte
	for _, n := range names {
		queries = append(queries, prefix2(testpkt.DNSQuery(n.name(), n.kind()))...)
	}
	if _, err = c.Write(queries); err != nil {
		r.t.Error(err)
	}
	for range names {
		var prefix [2]byte
		if _, err = io.ReadFull(c, prefix[:]); err == nil {
			_, err = io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint16(prefix[:])))
		}
		if err != nil {
			r.t.Errorf("%s: %v", server, err)
			return
		}
	}
}

// TestNamesInParts: the pod connects at once to addresses from responses over TCP, in one segment and in
// several, from responses in fragments, and from the hints of HTTPS records; from the DNS server itself
// and through a Service; while the daemon runs, and while it does not.
func TestNamesInParts(t *testing.T) {
	s, r := newResolving(t)
	whole := func(b []byte) [][]byte { return [][]byte{b} }
	s.LLCLI("apply", "-f", s.File(strings.NewReplacer("D4", r.dns.address(true).String(), "D6", r.dns.address(false).String()).Replace(`
kind: Service
name: dns
spec: {frontends: ["10.96.0.10:53/udp", "10.96.0.10:53/tcp"], backends: [{address: "D4:5353"}]}
---
kind: Service
name: dns6
spec: {frontends: ["[2001:db8:96::a]:53/udp", "[2001:db8:96::a]:53/tcp"], backends: [{address: "[D6]:5353"}]}
`)))
	testnet.Eventually(t, 10*time.Second, "the Services are Ready", func() bool {
		return strings.Count(s.LLCLI("get", "services", "-o", "json"), `"Ready"`) >= 2
	})
	number := 0
	next := func(is6 bool) resolved { number++; return resolved{number, is6, 0} }
	connects := func(what string, names ...resolved) {
		t.Helper()
		for _, n := range names {
			if !r.connects(n, 900*time.Millisecond) {
				t.Errorf("%s: %s is denied", what, n.addr())
			}
		}
	}
	ways := func(state string) {
		for i, is4 := range []bool{true, false} {
			for texts, cuts := range map[int]map[string]func([]byte) [][]byte{
				0:  {"one segment": whole, "bytes": bytewise, "length in two": func(b []byte) [][]byte { return [][]byte{b[:1], b[1:9], b[9:]} }},
				12: {"two segments": whole, "three segments": func(b []byte) [][]byte { return [][]byte{b[:2], b[2:1200], b[1200:]} }},
				60: {"many segments": whole},
			} {
				for name, cut := range cuts {
					t.Run(state+" "+name+map[bool]string{true: " IPv4", false: " IPv6"}[is4], func(t *testing.T) {
						r := &resolving{pod: r.pod, dns: r.dns, t: t}
						serveParts(t, r.dns.NS, netip.AddrPortFrom(r.dns.address(is4), 53).String(), texts, cut)
						serveParts(t, r.dns.NS, netip.AddrPortFrom(r.dns.address(is4), 5353).String(), texts, cut)
						for server, at := range map[string]string{"DNS server": netip.AddrPortFrom(r.dns.address(is4), 53).String(), "Service": []string{"10.96.0.10:53", "[2001:db8:96::a]:53"}[i]} {
							a, b := next(false), next(true)
							r.resolveTCP(at, a, b)
							connects("TCP, "+server, a, b)
							hint := next(number%2 == 0) // as in the response
							hint.https = testpkt.DNSHTTPS
							r.servers = [2]string{at, at}
							if texts <= 12 {
								if a = next(number%2 == 1); r.resolve(a) != nil || r.resolve(hint) != nil {
									t.Errorf("no response over UDP, %s", server)
								}
								connects("UDP, "+server, a, hint)
							}
						}
					})
				}
			}
		}
	}
	ways("running")
	if unknown := next(false); r.connects(unknown, 500*time.Millisecond) {
		t.Errorf("%s is allowed, and was in no response", unknown.addr())
	}
	s.Kill()
	ways("killed")
}

// bytewise divides a response into the first bytes, one by one, and the rest.
func bytewise(b []byte) (parts [][]byte) {
	for i := range 14 {
		parts = append(parts, b[i:i+1])
	}
	return append(parts, b[14:])
}

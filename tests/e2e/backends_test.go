// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// site3 starts a site whose three backends serve on port 8080, and returns the
// backends of a family.
func site3(t *testing.T, family string, more ...string) (s *site, backends []string) {
	t.Helper()
	s = newSite(t, more...).start()
	for i, b := range s.backends {
		s.serve(b, backendAddr(family, i, 8080), fmt.Sprintf("b%d", i+1))
		backends = append(backends, backendAddr(family, i, 8080))
	}
	return s, backends
}

// indexOf turns the name of a backend's server into its index.
func indexOf(t *testing.T, name string) int {
	t.Helper()
	var i int
	if _, err := fmt.Sscanf(name, "b%d", &i); err != nil || i < 1 || i > 3 {
		t.Fatalf("%q answered", name)
	}
	return i - 1
}

// asker is a client that keeps its UDP port.
type asker struct {
	t     *testing.T
	conn  net.Conn
	first string // the server that answered first
}

// asker returns a client that has sent its first request to a service.
func (s *site) asker(front string) *asker {
	s.t.Helper()
	conn, err := s.client.Dial("udp", "", front, patience)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	c := &asker{t: s.t, conn: conn}
	if c.first, err = c.ask(); err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (c *asker) ask() (string, error) { return exchangeUDP(c.conn, []byte("query")) }

// leaves waits until a server other than the first one answers. It repeats its request: the answer
// of the first server is lost if the connection ends while it is under way.
func (c *asker) leaves(s *site) {
	c.t.Helper()
	testnet.Eventually(c.t, time.Second, "another backend than "+c.first+" answers", func() bool {
		name, err := s.quickUDP(c.conn)
		return err == nil && !strings.HasPrefix(name, c.first+" ")
	})
}

// TestUDPBackendGoes: a client that keeps its port continues with a different backend within
// a second; without the service it is no longer served, and with the service restored it is served
// again.
func TestUDPBackendGoes(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s, backends := site3(t, family)
		front := vip + ":9000"
		s.Apply(serviceYAML("dns", []string{front + "/udp"}, backends))
		c := s.asker(front)
		first := c.first
		for range 10 {
			if name, err := c.ask(); name != first || err != nil {
				t.Fatalf("%q answered, then %q, %v", first, name, err)
			}
		}
		gone := indexOf(t, first)
		s.LLCLI("service", "backend", "remove", "dns", backends[gone], "--wait", "5s")
		c.leaves(s)
		s.LLCLI("delete", "Service", "dns", "--wait", "5s")
		testnet.Eventually(t, time.Second, "no host answers without the service", func() bool {
			_, err := s.quickUDP(c.conn)
			return err != nil
		})
		s.Apply(serviceYAML("dns", []string{front + "/udp"}, backends[gone:gone+1]))
		if name, err := c.ask(); name != first || err != nil {
			t.Errorf("with the service again: %q answered, %v; want %q", name, err, first)
		}
	})
}

func (s *site) quickUDP(c net.Conn) (string, error) {
	s.t.Helper()
	b := make([]byte, 2048)
	if _, err := c.Write([]byte("query")); err != nil {
		return "", err
	}
	if err := c.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		s.t.Fatal(err)
	}
	n, err := c.Read(b)
	return string(b[:n]), err
}

// greeted opens a TCP connection from the client, and returns it with the name of its backend.
func (s *site) greeted(front string) (net.Conn, string) {
	s.t.Helper()
	c, err := s.client.Dial("tcp", "", front, patience)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	name := make([]byte, 3)
	if err := errors.Join(c.SetDeadline(time.Now().Add(patience)), testtraffic.ReadFull(c, name)); err != nil {
		s.t.Fatal(err)
	}
	return c, string(name[:2])
}

// echo sends a word over a connection, and waits for its echo.
func echo(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := c.Write([]byte("word"))
	return errors.Join(err, testtraffic.ReadFull(c, make([]byte, 4)))
}

// TestDraining: a draining backend keeps its connections and gets no new ones, unless all
// drain.
func TestDraining(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s, backends := site3(t, family)
		front := vip + ":9000"
		s.Apply(serviceYAML("web", []string{front + "/tcp"}, backends))
		c, name := s.greeted(front)
		drained := indexOf(t, name)
		s.LLCLI("service", "drain", "web", backends[drained], "--wait", "5s")
		for range 60 {
			if got, err := talkTCP(s.client, "", front, nil); err != nil || got == name {
				t.Fatalf("new connection while %s drains: %q, %v", name, got, err)
			}
		}
		if err := echo(c); err != nil {
			t.Errorf("the draining backend's connection: %v", err)
		}
		for i := range backends {
			s.LLCLI("service", "drain", "web", backends[i], "--wait", "5s")
		}
		if got, err := talkTCP(s.client, "", front, nil); err != nil {
			t.Errorf("new connection while all drain: %q, %v", got, err)
		}
		if err := echo(c); err != nil {
			t.Errorf("the draining backend's connection: %v", err)
		}
	})
}

// TestSpread: the algorithms and weights, as seen by clients.
func TestSpread(t *testing.T) {
	s, backends := site3(t, "IPv4")
	for i, algorithm := range api.Algorithms {
		front := fmt.Sprintf("%s:%d", vip4, 9000+i)
		weighted := []string{backends[0] + ",weight: 1", backends[1] + ",weight: 2", backends[2] + ",weight: 0"}
		s.Apply(serviceYAML(algorithm, []string{front + "/udp"}, weighted, "algorithm: "+algorithm))
		got := make(map[string]int)
		for n := range 300 {
			// Each has its own source port: the kernel would use some twice.
			name, err := talkUDP(s.client, fmt.Sprintf("192.0.2.17:%d", 20000+n), front, nil)
			if err != nil {
				t.Fatal(err)
			}
			got[name]++
		}
		if got["b3"] != 0 {
			t.Errorf("%s: the backend of weight 0 got %d", algorithm, got["b3"])
		}
		if algorithm == "source-hash" {
			if len(got) != 1 {
				t.Errorf("%s: one client got %v", algorithm, got)
			}
		} else if got["b1"] < 60 || got["b1"] > 140 {
			t.Errorf("%s: weights 1 and 2 got %v", algorithm, got)
		}
		opened := uint64(0)
		for _, b := range s.Counters(api.KindService, algorithm).Backends {
			opened += b.Connections
			if want := uint64(got["b"+strings.Split(b.Address, ".")[2]]); b.Connections != want {
				t.Errorf("%s: backend %s counts %d connections, its server %d", algorithm, b.Address, b.Connections, want)
			}
		}
		if opened != 300 {
			t.Errorf("%s: %d connections are counted, want 300", algorithm, opened)
		}
	}
}

// TestAffinityAndRanges: a client stays with its backend, and a client outside the source ranges is
// rejected.
func TestAffinityAndRanges(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s, backends := site3(t, family)
		own := map[string]string{"IPv4": "192.0.2.17/32", "IPv6": "2001:db8:0:2::17/128"}[family]
		front := vip + ":9000"
		s.Apply(serviceYAML("sticky", []string{front + "/tcp"}, backends,
			"algorithm: round-robin", "affinity: {timeout: 1h}", fmt.Sprintf("sourceRanges: [%q]", own)))
		first := ""
		for range 20 {
			name, err := talkTCP(s.client, "", front, nil)
			if err != nil || first != "" && name != first {
				t.Fatalf("%q answered, then %q, %v", first, name, err)
			}
			first = name
		}
		c, err := s.near.Dial("tcp", "", front, 300*time.Millisecond)
		if err == nil {
			c.Close()
			t.Error("a client that is not in sourceRanges got through")
		}
		if n := s.Counters(api.KindService, "sticky").Drops["source_range"]; n == 0 {
			t.Error("source_range counts nothing")
		}
	})
}

// TestOnePortAgainAndAgain: a client that uses one source port for one connection after
// another, while backends are added and removed, is never reset.
func TestOnePortAgainAndAgain(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s := newSite(t).start()
		var backends []string
		for i, b := range s.backends {
			backends = append(backends, backendAddr(family, i, 80))
			b.ServeHTTP(t, backends[i], fmt.Sprintf("b%d", i+1))
		}
		front := vip + ":9000"
		local := map[string]string{"IPv4": "192.0.2.17:40123", "IPv6": "[2001:db8:0:2::17]:40123"}[family]
		seen := make(map[string]int)
		for i := range 1000 {
			if i%100 == 0 {
				s.Apply(serviceYAML("web", []string{front + "/tcp"}, []string{backends[i/100%3], backends[(i/100+1)%3]}))
			}
			var name string
			var err error
			// The last acknowledgement of the previous connection may still be in flight; a lost
			// one would be repeated after 200 ms.
			testnet.Eventually(t, 150*time.Millisecond, "the client's port is free again", func() bool {
				name, err = serverEnds(s.client, local, front)
				return !errors.Is(err, syscall.EADDRNOTAVAIL)
			})
			if err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
			seen[name]++
		}
		if len(seen) < 2 {
			t.Errorf("the backends came and went, and only %v answered", seen)
		}
	})
}

// serverEnds lets an HTTP server answer and close the connection: the client's port is free at
// once, while the server's side is in TIME_WAIT.
func serverEnds(ns *testnet.NS, local, target string) (string, error) {
	c, err := ns.Dial("tcp", local, target, patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_, err = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
	if err := errors.Join(c.SetDeadline(time.Now().Add(patience)), err); err != nil {
		return "", err
	}
	all, err := io.ReadAll(c)
	_, body, _ := strings.Cut(string(all), "\r\n\r\n")
	name, _, found := strings.Cut(body, " ")
	if err == nil && !found {
		err = fmt.Errorf("the answer is %q", all)
	}
	return name, err
}

// TestIdleTooLong: a connection that was idle for longer than its timeout continues or is
// reset: it never hangs.
func TestIdleTooLong(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s, backends := site3(t, family, "datapath: {sweepInterval: 100ms}")
		front := vip + ":9000"
		s.Apply(serviceYAML("web", []string{front + "/tcp"}, backends, "idleTimeout: {tcp: 1s}"))
		c, _ := s.greeted(front)
		testnet.Eventually(t, 10*time.Second, "the connection is forgotten", func() bool {
			return len(s.Connections(api.ConnectionFilter{Service: "web"})) == 0
		})
		if err := echo(c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after its timeout: %v", err)
		}
	})
}

// TestTwoFrontendsOnePort: a client may use one source port towards two
// frontends of one backend at the same time.
func TestTwoFrontendsOnePort(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s, backends := site3(t, family)
		local := map[string]string{"IPv4": "192.0.2.17:40123", "IPv6": "[2001:db8:0:2::17]:40123"}[family]
		var all []net.Conn
		for i := range 3 {
			front := fmt.Sprintf("%s:%d", vip, 9000+i)
			s.Apply(serviceYAML(fmt.Sprintf("web-%d", i), []string{front + "/tcp"}, backends[:1]))
			c, err := s.client.Dial("tcp", local, front, patience)
			if err != nil {
				t.Fatalf("frontend %d: %v", i, err)
			}
			defer c.Close()
			all = append(all, c)
		}
		for round := range 3 {
			for i, c := range all {
				word := fmt.Appendf(nil, "word %d of %d", round, i)
				want := word
				if round == 0 {
					want = append([]byte("b1\n"), word...)
				}
				back := make([]byte, len(want))
				_, err := c.Write(word)
				err = errors.Join(c.SetDeadline(time.Now().Add(patience)), err, testtraffic.ReadFull(c, back))
				if err != nil || !bytes.Equal(back, want) {
					t.Errorf("frontend %d: %q, %v", i, back, err)
				}
			}
		}
	})
}

// TestSourcePorts: connections that are translated to the node's address have different
// ports, and none that the node itself uses or may use.
func TestSourcePorts(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s := newSite(t)
		s.node.Sysctl(t, "net.ipv4.ip_local_port_range", "1100 60999") // few are left
		taken := make(map[uint16]bool)
		for port := uint16(61000); port < 65000; port += 8 {
			c := s.node.ListenUDP(t, netip.AddrPortFrom(nodeAddr(family, 0), port).String())
			t.Cleanup(func() { c.Close() })
			taken[port] = true
		}
		s.start()
		s.serve(s.backends[0], backendAddr(family, 0, 8080), "b1")
		front := vip + ":9000"
		s.Apply(serviceYAML("dns", []string{front + "/udp"}, []string{backendAddr(family, 0, 8080)}, "source: snat"))
		client := map[string]string{"IPv4": "192.0.2.17", "IPv6": "2001:db8:0:2::17"}[family]
		for n := range 1000 {
			if name, err := talkUDP(s.client, net.JoinHostPort(client, fmt.Sprint(20000+n)), front, nil); name != "b1" || err != nil {
				t.Fatalf("connection %d: %q, %v", n, name, err)
			}
		}
		used := make(map[string]bool)
		for _, c := range s.Connections(api.ConnectionFilter{Service: "dns"}) {
			to, err := netip.ParseAddrPort(c.Reply.Destination)
			if err != nil || to.Addr() != nodeAddr(family, 0) || used[c.Reply.Destination] {
				t.Fatalf("connection %+v: %v", c, err)
			}
			used[c.Reply.Destination] = true
			if p := to.Port(); taken[p] || p < 1024 || p >= 1100 && p <= 60999 {
				t.Errorf("connection %+v has a port that is the node's", c)
			}
		}
		if len(used) != 1000 {
			t.Errorf("%d connections are tracked, want 1000", len(used))
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package endure

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

var programs testdaemon.Programs

func TestMain(m *testing.M) { os.Exit(testdaemon.Main(m, "endure", &programs)) }

// long reports whether the whole versions of the tests run, which take minutes.
func long() bool { return os.Getenv("LOXILIGHT_ENDURE") != "" }

// family is an address family: the addresses of a [site].
type family struct {
	name                                        string
	client, gateway, clients, forged            string // forged: addresses that no machine has
	backend, backendGateway, frontend, question string // question: the frontend of the echo service
}

var families = []family{
	{"IPv4", "192.0.2.17/24", "192.0.2.1/24", "10.61.0.0/16", "10.128.0.0/9",
		"10.0.1.2/24", "10.0.1.1/24", "198.51.100.10:9000", "198.51.100.11:53"},
	{"IPv6", "2001:db8:0:2::17/64", "2001:db8:0:2::1/64", "2001:db8:61::/96", "2001:db8:a000::/96",
		"2001:db8:0:1::2/64", "2001:db8:0:1::1/64", "[2001:db8:0:6464::10]:9000", "[2001:db8:0:6464::11]:53"},
}

func (f *family) clientAddr() netip.Addr { return netip.MustParsePrefix(f.client).Addr() }

// site is a node with a daemon, clients, and a backend.
//
//	clients 192.0.2.17 ── 192.0.2.1 in0 [node] p1 10.0.1.1 ── 10.0.1.2 backend
//
// All addresses of clients, and forged addresses, are behind 192.0.2.17.
type site struct {
	t                      *testing.T
	family                 family
	clients, node, backend *testnet.NS
	*testdaemon.Daemon
}

// newSite creates the namespaces and starts the daemon, whose connection table has the given size,
// with two Services: web, and echo, whose backend repeats datagrams of any length.
func newSite(t *testing.T, f family, connections int) *site {
	t.Helper()
	s := &site{t: t, family: f, clients: testnet.New(t, "clients"), node: testnet.New(t, "node"), backend: testnet.New(t, "backend")}
	testnet.Veth(t, testnet.Port{NS: s.clients, Name: "eth0", Addrs: []string{f.client}}, testnet.Port{NS: s.node, Name: "in0", Addrs: []string{f.gateway}})
	testnet.Veth(t, testnet.Port{NS: s.backend, Name: "eth0", Addrs: []string{f.backend}}, testnet.Port{NS: s.node, Name: "p1", Addrs: []string{f.backendGateway}})
	s.clients.Route(t, "default", addrOf(f.gateway))
	s.backend.Route(t, "default", addrOf(f.backendGateway))
	for _, prefix := range []string{f.clients, f.forged} {
		s.node.Route(t, prefix, addrOf(f.client))
	}
	s.node.Forward(t)
	s.Daemon = testdaemon.New(t, s.node, programs,
		fmt.Sprintf("tables: {connections: %d, services: 64, backends: 64, affinity: 64, ranges: 64}", connections))
	s.Start()
	web := netip.AddrPortFrom(netip.MustParsePrefix(f.backend).Addr(), 8080)
	echo := netip.AddrPortFrom(web.Addr(), 5353)
	s.Apply(fmt.Sprintf(`
kind: Interface
name: in0
spec: {device: in0}
---
kind: Interface
name: p1
spec: {device: p1, role: port}
---
kind: Service
name: web
spec: {frontends: ["%[1]s/tcp", "%[1]s/udp"], source: keep, backends: [{address: "%[2]s"}]}
---
kind: Service
name: echo
spec: {frontends: ["%[3]s/udp"], source: keep, backends: [{address: "%[4]s"}]}
`, f.frontend, web, f.question, echo))
	s.backend.ServeTCP(t, web.String(), "web")
	s.backend.ServeUDP(t, web.String(), "web")
	s.serveEcho(echo)
	return s
}

func addrOf(prefix string) string { return netip.MustParsePrefix(prefix).Addr().String() }

// serveEcho repeats datagrams, without keeping anything about their senders.
func (s *site) serveEcho(at netip.AddrPort) {
	s.t.Helper()
	fd, domain := -1, unix.AF_INET6
	var local unix.Sockaddr = &unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())}
	if at.Addr().Is4() {
		domain, local = unix.AF_INET, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}
	}
	s.backend.Do(s.t, func() (err error) {
		if fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		wait := unix.Timeval{Usec: 100_000} // the loop notices the end
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait), unix.Bind(fd, local))
	})
	done, end := make(chan struct{}), make(chan struct{})
	s.t.Cleanup(func() {
		close(end)
		<-done
		unix.Close(fd)
	})
	go func() {
		defer close(done)
		b := make([]byte, 2048)
		for {
			select {
			case <-end:
				return
			default:
			}
			n, from, err := unix.Recvfrom(fd, b, 0)
			if err == nil {
				_ = unix.Sendto(fd, b[:n], 0, from) // lost like any datagram
			}
		}
	}()
}

// logCounters logs how many packets the node has dropped, by reason, and handled, by verdict.
func (s *site) logCounters() {
	s.t.Helper()
	c := s.Counters("", "")
	maps.DeleteFunc(c.Drops, func(_ string, n uint64) bool { return n == 0 })
	s.t.Logf("dropped %v, handled %v", c.Drops, c.Verdicts)
}

// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// resolveTTL is the TTL of responses, in seconds.
const resolveTTL = 2

// resolved is a name that a pod resolves; each has its own address.
type resolved struct {
	number int
	is6    bool
	https  uint16 // the type of a query for an HTTPS record with the address as a hint; 0: for the address
}

// kind returns the type of records for which a query asks.
func (r resolved) kind() uint16 {
	switch {
	case r.https != 0:
		return r.https
	case r.is6:
		return testpkt.DNSAAAA
	}
	return testpkt.DNSA
}

func (r resolved) name() string { return fmt.Sprintf("n%d.w%d.example.org", r.number, r.number%20) }

func (r resolved) addr() netip.Addr {
	if r.is6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:18::%x", r.number+1))
	}
	return netip.AddrFrom4([4]byte{198, 18, byte(r.number >> 8), byte(r.number)})
}

// resolvedOf returns the name for which a query asks.
func resolvedOf(query []byte) (r resolved, err error) {
	text, _, _ := strings.Cut(string(query[14:]), "\x02") // behind the length and n
	text, _, _ = strings.Cut(text, "\x03")
	r.number, err = strconv.Atoi(text)
	r.is6 = testpkt.DNSKind(query) == testpkt.DNSAAAA || testpkt.DNSKind(query) == testpkt.DNSHTTPS && r.number%2 == 1
	return r, err
}

// serveResolved answers queries for resolved names.
func serveResolved(t *testing.T, ns *testnet.NS, at string) {
	t.Helper()
	l := ns.ListenUDP(t, at)
	t.Cleanup(func() { l.Close() })
	go func() {
		for b := make([]byte, 1000); ; {
			n, client, err := l.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if r, err := resolvedOf(b[:n]); err == nil {
				_, _ = l.WriteToUDPAddrPort(testpkt.DNSResponse(b[:n], resolveTTL, 0, r.addr()), client) // the client asks again
			}
		}
	}()
}

// resolving is a pod that resolves names.
type resolving struct {
	*pod
	dns     *pod
	t       *testing.T
	servers [2]string // by family
}

// connects reports whether a connection to a name is possible; it sends one SYN.
func (r *resolving) connects(n resolved, wait time.Duration) bool {
	c, err := r.Dial("tcp", "", net.JoinHostPort(n.addr().String(), "4660"), wait)
	if err != nil {
		return false
	}
	if err := c.(*net.TCPConn).SetLinger(0); err != nil { // leaves no port in TIME_WAIT
		r.t.Error(err)
	}
	return c.Close() == nil
}

// all calls f for the names from first on, with some at a time, and returns for how many it is true.
func all(first, count, workers int, f func(resolved) bool) int {
	var done, next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				if f(resolved{number: first + i, is6: i%2 == 1}) {
					done.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return int(done.Load())
}

// resolve asks a DNS server for the address of a name.
func (r *resolving) resolve(n resolved) error {
	c, err := r.Dial("udp", "", r.servers[n.number/2%2], time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	for range 10 {
		_, _ = c.Write(testpkt.DNSQuery(n.name(), n.kind())) // if this fails, no answer arrives
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err = c.Read(make([]byte, 5000)); err == nil {
			return nil
		}
	}
	return err
}

// newResolving starts a daemon with a pod that may reach the addresses of names, and a pod for a DNS
// server. Behind them, a machine accepts connections to all these addresses.
func newResolving(t *testing.T) (*site, *resolving) {
	t.Helper()
	s := newBareSite(t, "policy: {nameGrace: 1s}")
	s.Start()
	s.Apply(siteObjects)
	list := s.list("1.1.0", nil)
	s.mustSetEntity("dns", "u1", "dns")
	s.mustSetEntity("client", "u2", "client")
	dns, client := s.newPodOf("dns", "u1"), s.newPodOf("client", "u2")
	for _, p := range []*pod{dns, client} {
		if err := s.tryAdd(list, p); err != nil {
			t.Fatal(err)
		}
	}
	r := &resolving{pod: client, dns: dns, t: t}
	for i, is4 := range []bool{true, false} {
		r.servers[i] = netip.AddrPortFrom(dns.address(is4), 53).String()
	}
	for family, prefix := range map[string]string{"-4": "198.18.0.0/15", "-6": "2001:db8:18::/64"} {
		s.outside.Run(t, "ip", family, "route", "add", "local", prefix, "dev", "lo")
	}
	s.node.Route(t, "198.18.0.0/15", "192.0.2.77")
	s.node.Route(t, "2001:db8:18::/64", "2001:db8:2::77")
	acceptAll(t, s.outside)
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf(`"*.w%d.example.org"`, i))
	}
	s.LLCLI("podnetwork", "set", "default", "--resolver", dns.address(true).String(), "--resolver", dns.address(false).String(),
		"--resolver", "10.96.0.10", "--resolver", "2001:db8:96::a")
	s.LLCLI("apply", "-f", s.File(`
kind: Tier
name: main
spec: {order: 200}
---
kind: Policy
name: names
spec:
  tier: main
  isolate: [egress]
  appliedTo: [{entities: {matchLabels: {app: client}}}]
  egress:
    - {action: allow, to: [{entities: {matchLabels: {app: dns}}}], ports: [{protocol: udp, port: 53}, {protocol: tcp, port: 53}, {protocol: udp, port: 5353}, {protocol: tcp, port: 5353}]}
    - {action: allow, to: [{names: [`+strings.Join(names, ", ")+`]}], ports: [{protocol: tcp, port: 4660}]}
`))
	testnet.Eventually(t, 10*time.Second, "the policy is in force", func() bool { return strings.Contains(s.LLCLI("get", "policies"), "Ready") })
	return s, r
}

// TestResolveAndConnect: a pod resolves a name and connects at once to its address, which no response
// has contained before, while the daemon runs, is stopped, or is killed. No connection is denied, and
// after TTL and grace period none is allowed. LOXILIGHT_NAMES is the number of names.
func TestResolveAndConnect(t *testing.T) {
	count := 300
	if v := os.Getenv("LOXILIGHT_NAMES"); v != "" {
		var err error
		if count, err = strconv.Atoi(v); err != nil {
			t.Fatalf("LOXILIGHT_NAMES=%s: %v", v, err)
		}
	}
	s, r := newResolving(t)
	for _, server := range r.servers {
		serveResolved(t, r.dns.NS, server)
	}

	first := 0
	for i, state := range []string{"running", "stopped", "killed"} {
		switch state {
		case "stopped":
			s.Process().Signal(syscall.SIGSTOP)
		case "killed":
			s.Process().Signal(syscall.SIGCONT)
			s.Kill()
		}
		n := (count*(i+1))/3 - first
		begin := time.Now()
		allowed := all(first, n, 4, func(name resolved) bool {
			if err := r.resolve(name); err != nil {
				t.Errorf("%s: %s: %v", state, name.name(), err)
			}
			return r.connects(name, 900*time.Millisecond)
		})
		took := time.Since(begin)
		if allowed != n {
			t.Errorf("%s: %d of %d connections to a resolved name are denied", state, n-allowed, n)
		}
		time.Sleep(resolveTTL*time.Second + time.Second + 500*time.Millisecond)
		late := all(first, n, 100, func(name resolved) bool { return r.connects(name, 500*time.Millisecond) })
		if late != 0 {
			t.Errorf("%s: %d of %d connections are allowed after TTL and grace period", state, late, n)
		}
		t.Logf("%s: %d names in %s, %d denied; %d allowed after TTL and grace period", state, n, took.Round(time.Millisecond), n-allowed, late)
		first += n
	}
}

// acceptAll accepts connections to any address on port 4660.
func acceptAll(t *testing.T, ns *testnet.NS) {
	t.Helper()
	var l net.Listener
	ns.Do(t, func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", ":4660")
		return err
	})
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close() // the client only opens the connection
		}
	}()
}

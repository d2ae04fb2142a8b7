// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// nameObjects allow pod a to ask any DNS server, and to reach the addresses of two names.
const nameObjects = `
kind: Tier
name: main
spec: {order: 200, always: [self, node]}
---
kind: Policy
name: names
spec:
  tier: main
  isolate: [egress]
  appliedTo: [{entities: {matchLabels: {app: a}}}]
  egress:
    - action: allow
      ports: [{protocol: udp, port: 53}]
    - name: partners
      action: allow
      to: [{names: [db.example.org, "*.wild.example.org"]}]
      ports: [{protocol: tcp, port: 4660}]
`

// serveNames answers DNS queries to a pod for the addresses of another one.
func (s *policySite) serveNames(at string, ttl uint32, of *endpointPod) {
	p := s.pods[at]
	for _, addr := range []string{p.addr.String() + ":53", "[" + p.addr6.String() + "]:53"} {
		l := p.ns.ListenUDP(s.t, addr)
		s.t.Cleanup(func() { l.Close() })
		go func() {
			for b := make([]byte, 1000); ; {
				n, client, err := l.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				to := of.addr
				if testpkt.DNSKind(b[:n]) == testpkt.DNSAAAA {
					to = of.addr6
				}
				_, _ = l.WriteToUDPAddrPort(testpkt.DNSResponse(b[:n], ttl, 0, to), client) // the client asks again
			}
		}()
	}
}

// resolve asks a DNS server, from pod a.
func (s *policySite) resolve(server, name string, kind uint16) {
	s.t.Helper()
	c, err := s.pods["a"].ns.Dial("udp", "", net.JoinHostPort(server, "53"), patience)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	for range 10 {
		_, _ = c.Write(testpkt.DNSQuery(name, kind)) // if this fails, no answer arrives
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err = c.Read(make([]byte, 1000)); err == nil {
			return
		}
	}
	s.t.Fatalf("%s does not resolve %s: %v", server, name, err)
}

// quick is less than the time after which TCP sends a SYN again.
const quick = 800 * time.Millisecond

// TestPolicyNames: pod a may use the addresses that a resolver returns for the names in its policy: from
// the response on, until the TTL and the grace period end, also while the daemon does not run.
func TestPolicyNames(t *testing.T) {
	const grace, ttl = time.Second, 2
	s := &policySite{newEndpoints(t, "policy: {nameGrace: 1s}")}
	a, b, x := s.pods["a"], s.pods["b"], s.pods["x"]
	targets := map[uint16]string{1: b.addr.String() + ":4660", 28: "[" + b.addr6.String() + "]:4660"}
	b.ns.ServeTCP(t, targets[28], "b")
	x.ns.ServeTCP(t, x.addr.String()+":4660", "x")
	s.serveNames("x", ttl, b)
	s.serveNames("b", ttl, x)
	wants := func(when string, kind uint16, want string) {
		t.Helper()
		if got := try(a.ns, "tcp", targets[kind], quick); got != want {
			t.Errorf("%s: to %s: %s, want %s", when, targets[kind], got, want)
		}
	}

	s.LLCLI("apply", "-f", s.File(nameObjects))
	testnet.Eventually(t, patience, "the policy waits for resolvers", func() bool {
		return strings.Contains(s.LLCLI("get", "policy", "names", "-o", "yaml"), "names are not learnt for Endpoint/shop/a, because its network has no resolvers")
	})
	s.resolve(x.addr.String(), "db.example.org", 1)
	wants("without resolvers", 1, silent)
	s.change("bridge", "set", "pods", "--resolver", x.addr.String(), "--resolver", x.addr6.String())
	testnet.Eventually(t, patience, "the policy is in force", func() bool {
		return strings.Contains(s.LLCLI("get", "policies"), "Ready")
	})
	s.ready(patience, "the pods are ready")

	wants("before a response", 1, silent)
	s.resolve(b.addr.String(), "db.example.org", 1) // a server that is no resolver, with the address of x
	if got := try(a.ns, "tcp", x.addr.String()+":4660", quick); got != silent {
		t.Errorf("an address from a server that is no resolver: %s", got)
	}
	s.resolve(x.addr.String(), "wild.example.org", 1)
	s.resolve(x.addr6.String(), "other.example.org", 28)
	wants("names of no policy", 1, silent)
	wants("names of no policy", 28, silent)

	s.resolve(x.addr6.String(), "DB.Example.ORG", 1)
	wants("after a response", 1, let)
	wants("after a response of the other family", 28, silent)
	if got := try(a.ns, "udp", targets[1], quick); got != silent {
		t.Errorf("another protocol: %s", got)
	}
	s.resolve(x.addr.String(), "far.below.wild.example.org", 28)
	wants("after a response", 28, let)
	if out := s.LLCLI("policy", "check", "shop/a", b.addr.String(), "tcp/4660"); !strings.Contains(out, "name:db.example.org") {
		t.Errorf("llcli policy check:\n%s", out)
	}
	if out := s.LLCLI("policy", "check", "shop/a", "db.Example.org", "tcp/4660"); !strings.Contains(out, "allow") || !strings.Contains(out, b.addr.String()+" (db.example.org)") {
		t.Errorf("llcli policy check of a name:\n%s", out)
	}
	if out := s.LLCLI("policy", "check", "shop/a", "n1.wild.example.org", "tcp/4661"); !strings.Contains(out, "deny") || !strings.Contains(out, "n1.wild.example.org (no address of it is learnt now)") {
		t.Errorf("llcli policy check of a name that is not resolved:\n%s", out)
	}
	if out := s.LLCLI("capacity", "nameAddresses"); !strings.Contains(out, "nameAddresses") || !strings.Contains(out, " 2 ") {
		t.Errorf("llcli capacity:\n%s", out)
	}
	var held []net.Conn
	for _, target := range targets {
		c, err := a.ns.Dial("tcp", "", target, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	time.Sleep(ttl*time.Second + grace + 500*time.Millisecond)
	wants("after TTL and grace period", 1, silent)
	wants("after TTL and grace period", 28, silent)
	for _, c := range held {
		echoes(t, c, true)
	}
	s.hasEvent("a", "tcp", targets[1], "policy:", "the address no longer belongs to db.example.org")

	const times = 50
	for _, state := range []string{"running", "killed", "started again"} {
		switch state {
		case "killed":
			s.Kill()
		case "started again":
			s.Start()
			s.ready(endpointPatience, "pods are ready again")
		}
		for i := range times {
			kind := []uint16{1, 28}[i%2]
			s.resolve([]string{x.addr.String(), x.addr6.String()}[i/2%2], fmt.Sprintf("n%d.wild.example.org", i), kind)
			wants(fmt.Sprint("resolved, ", state), kind, let)
		}
		time.Sleep(ttl*time.Second + grace + 500*time.Millisecond)
		wants("expired, "+state, 1, silent)
		wants("expired, "+state, 28, silent)
		for _, c := range held {
			echoes(t, c, true)
		}
	}
	s.hasEvent("a", "tcp", targets[1], "policy:", "the address no longer belongs to *.wild.example.org")
	s.change("bridge", "set", "pods", "--resolver", x.addr6.String())
	s.change("policy", "set", "names", "--priority", "7") // in force after the change of the bridge
	s.resolve(x.addr.String(), "db.example.org", 1)
	wants("no longer a resolver", 1, silent)
	s.LLCLI("delete", "policy", "names", "--wait", "5s")
	wants("without the policy", 1, let)
}

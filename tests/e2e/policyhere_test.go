// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// hereObjects deny everything that the node itself receives and sends.
const hereObjects = `
kind: Entity
name: this-node
spec: {set: nodes, labels: {role: gateway}, here: true}
---
kind: Tier
name: main
spec: {order: 200}
---
kind: Policy
name: lock
spec:
  tier: main
  isolate: [ingress, egress]
  appliedTo: [{set: nodes, entities: {matchLabels: {role: gateway}}}]
`

// pair is a connection of which the test holds both ends.
type pair struct {
	name           string
	client, server net.Conn
}

// hold opens a TCP connection between two hosts.
func hold(t *testing.T, name string, from, to *testnet.NS, addr string) pair {
	t.Helper()
	l := to.Listen(t, addr)
	accepted := make(chan net.Conn, 1)
	go func() {
		defer close(accepted)
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	client, err := from.Dial("tcp", "", addr, patience)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	server := <-accepted
	if server == nil {
		t.Fatalf("%s: no connection was accepted", name)
	}
	t.Cleanup(func() {
		client.Close()
		server.Close()
		l.Close()
	})
	return pair{name, client, server}
}

// passes reports whether what one end of a connection writes reaches the other end.
func passes(from, to net.Conn, wait time.Duration) bool {
	said++
	line := fmt.Sprintf("line %d\n", said)
	if _, err := from.Write([]byte(line)); err != nil {
		return false
	}
	_ = to.SetReadDeadline(time.Now().Add(wait)) // if this fails, the read fails, too
	heard, more := "", make([]byte, 100)
	for !strings.Contains(heard, line) {
		n, err := to.Read(more)
		heard += string(more[:n])
		if err != nil {
			return false
		}
	}
	return true
}

// rawPasses reports whether an IP packet of a protocol reaches the other host.
func rawPasses(t *testing.T, protocol int, from, to *testnet.NS, addr string, payload []byte) bool {
	t.Helper()
	network := fmt.Sprint("ip4:", protocol)
	if strings.Contains(addr, ":") {
		network = fmt.Sprint("ip6:", protocol)
	}
	var l net.PacketConn
	to.Do(t, func() (err error) {
		l, err = net.ListenPacket(network, addr)
		return err
	})
	defer l.Close()
	var c net.Conn
	from.Do(t, func() (err error) {
		c, err = net.Dial(network, addr)
		return err
	})
	defer c.Close()
	if _, err := c.Write(payload); err != nil {
		return false // denied at once, and the sender is notified
	}
	_ = l.SetReadDeadline(time.Now().Add(silence)) // if this fails, the read fails, too
	_, _, err := l.ReadFrom(make([]byte, 100))
	return err == nil
}

// sctpInit is an INIT chunk to a port.
func sctpInit(port uint16) []byte {
	return []byte{0x9c, 0x41, byte(port >> 8), byte(port), 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0, 0, 1, 0, 1, 5, 6, 7, 8}
}

// hereSite is a node with servers on it and beside it.
type hereSite struct {
	*site
	families []hereFamily
}

type hereFamily struct{ name, node, client string }

func newHere(t *testing.T, more ...string) *hereSite {
	s := &hereSite{newSite(t, more...), []hereFamily{{"IPv4", "192.0.2.1", "192.0.2.17"}, {"IPv6", "2001:db8:0:2::1", "2001:db8:0:2::17"}}}
	for _, f := range s.families {
		for _, port := range []string{"22", "68", "10250", "8080"} {
			s.serve(s.node, net.JoinHostPort(f.node, port), "node")
		}
		for _, port := range []string{"53", "6443", "8080"} {
			s.serve(s.client, net.JoinHostPort(f.client, port), "client")
		}
	}
	s.start()
	return s
}

// wants compares which traffic of the node passes.
func (s *hereSite) wants(when string, isOpen bool) {
	s.t.Helper()
	check := func(what string, got, want bool) {
		s.t.Helper()
		if got != want {
			s.t.Errorf("%s: %s passes: %t, want %t", when, what, got, want)
		}
	}
	for _, f := range s.families {
		for _, x := range []struct {
			from          *testnet.NS
			network, addr string
			port          string
			failsafe      bool
		}{
			{s.client, "tcp", f.node, "22", true}, {s.client, "tcp", f.node, "10250", true}, {s.client, "tcp", f.node, "8080", false},
			{s.client, "udp", f.node, "68", true}, {s.client, "udp", f.node, "22", false}, {s.client, "udp", f.node, "8080", false},
			{s.node, "tcp", f.client, "53", true}, {s.node, "tcp", f.client, "6443", true}, {s.node, "tcp", f.client, "8080", false},
			{s.node, "udp", f.client, "53", true}, {s.node, "udp", f.client, "6443", false}, {s.node, "udp", f.client, "8080", false},
		} {
			wait, want := patience, isOpen || x.failsafe
			if !want {
				wait = silence
			}
			got := try(x.from, x.network, net.JoinHostPort(x.addr, x.port), wait) == let
			check(fmt.Sprintf("%s %s from %s to port %s", f.name, x.network, x.from.Name(), x.port), got, want)
		}
		for what, got := range map[string]bool{
			"SCTP to the node":               rawPasses(s.t, 132, s.client, s.node, f.node, sctpInit(8080)),
			"SCTP of the node":               rawPasses(s.t, 132, s.node, s.client, f.client, sctpInit(8080)),
			"another protocol to the node":   rawPasses(s.t, 253, s.client, s.node, f.node, []byte("experiment")),
			"another protocol of the node":   rawPasses(s.t, 253, s.node, s.client, f.client, []byte("experiment")),
			"an echo request to the node":    s.pings(s.client, f.node),
			"an echo request of the node":    s.pings(s.node, f.client),
			"the node to itself":             try(s.node, "tcp", net.JoinHostPort(f.node, "8080"), patience) == let,
			"the node to itself, loopback":   s.pings(s.node, map[string]string{"IPv4": "127.0.0.1", "IPv6": "::1"}[f.name]),
			"forwarded packets, to a server": s.pings(s.client, map[string]string{"IPv4": "10.0.1.2", "IPv6": "2001:db8:1::2"}[f.name]),
		} {
			always := strings.HasPrefix(what, "the node to itself") || strings.HasPrefix(what, "forwarded")
			check(f.name+", "+what, got, isOpen || always)
		}
	}
}

// pings reports whether an echo request is answered.
func (s *hereSite) pings(from *testnet.NS, addr string) bool {
	_, err := from.TryRun("ping", "-c1", "-W0.3", "-n", addr)
	return err == nil
}

// TestPoliciesOfNode: a policy that denies everything on the node leaves what the failsafe of the
// configuration lists, and nothing else; also for connections that began before. It stays in force
// while the daemon is killed, and is rolled back unless it is confirmed.
func TestPoliciesOfNode(t *testing.T) {
	s := newHere(t)
	s.wants("without policies", true)
	var stay, end []pair
	for _, f := range s.families {
		in, out := net.JoinHostPort(f.node, "2379"), net.JoinHostPort(f.client, "2379")
		stay = append(stay, hold(t, f.name+" in", s.client, s.node, in), hold(t, f.name+" out", s.node, s.client, out))
		end = append(end, hold(t, f.name+" in", s.client, s.node, net.JoinHostPort(f.node, "8081")), hold(t, f.name+" out", s.node, s.client, net.JoinHostPort(f.client, "8081")))
	}
	running := func(when string) {
		t.Helper()
		for i := range stay {
			// The server first, to which no packet of the client has come since the policy exists.
			if p := &stay[i]; !passes(p.server, p.client, patience) || !passes(p.client, p.server, patience) {
				t.Errorf("%s: the connection %s does not continue", when, p.name)
			}
		}
		for i := range end {
			if p := &end[i]; passes(p.server, p.client, silence) || passes(p.client, p.server, silence) {
				t.Errorf("%s: the connection %s continues", when, p.name)
			}
		}
	}
	s.LLCLI("apply", "--wait", "5s", "-f", s.File(hereObjects))
	running("locked")
	for _, ns := range []*testnet.NS{s.client, s.node} { // the neighbour must be resolved again
		ns.Run(t, "ip", "neigh", "flush", "all")
	}
	s.wants("locked", false)
	if out := s.LLCLI("get", "policies"); !strings.Contains(out, "Ready") {
		t.Errorf("llcli get policies:\n%s", out)
	}
	s.Kill()
	s.wants("with the daemon killed", false)
	s.Start()
	s.LLCLI("apply", "--wait", "5s", "-f", s.File(hereObjects))
	running("after a restart")
	s.LLCLI("delete", "policy", "lock", "--wait", "5s")
	s.wants("without the policy", true)

	lock := hereObjects[strings.LastIndex(hereObjects, "---"):]
	fresh := hold(t, "in", s.client, s.node, "192.0.2.1:8082")
	s.LLCLI("apply", "--wait", "5s", "--confirm", "20s", "-f", s.File(lock))
	s.wants("locked again", false)
	if passes(fresh.client, fresh.server, silence) {
		t.Error("a running connection continues")
	}
	testnet.Eventually(t, startPatience, "the policy is rolled back", func() bool { return try(s.client, "tcp", "192.0.2.1:8080", silence) == let })
	s.wants("not confirmed", true)
}

// TestPolicyOfNodeRules: rules of the node's policies see ports, peers and names; counters, events,
// llcli policy check, policy for and connections name the node, the policy and the failsafe.
func TestPolicyOfNodeRules(t *testing.T) {
	s := newHere(t, "policy: {failsafe: {in: [tcp/22, 192.0.2.77], out: []}}")
	s.LLCLI("apply", "--wait", "5s", "-f", s.File(hereObjects[:strings.LastIndex(hereObjects, "---")]+`---
kind: Entity
name: desk
spec: {labels: {app: desk}, addresses: [192.0.2.17]}
---
kind: Policy
name: lock
spec:
  tier: main
  isolate: [ingress, egress]
  log: [deny]
  appliedTo: [{set: nodes}]
  ingress:
    - {name: web, action: allow, from: [{entities: {matchLabels: {app: desk}}}], ports: [{protocol: tcp, port: 8080, end: 8089}]}
    - {action: reject, from: [{prefixes: ["2001:db8::/32"]}], ports: [{protocol: tcp, port: 8080}]}
  egress:
    - {action: reject, to: [{prefixes: [192.0.2.0/24]}], ports: [{protocol: tcp, port: 8080}]}
`))
	for _, x := range []struct {
		from *testnet.NS
		to   string
		want string
	}{
		{s.client, "192.0.2.1:8080", let}, {s.near, "192.0.2.1:22", let}, {s.near, "192.0.2.1:8080", let},
		{s.client, "192.0.2.1:10250", silent}, {s.client, "[2001:db8:0:2::1]:8080", refused}, {s.near, "[2001:db8:0:2::1]:10250", silent},
		{s.node, "192.0.2.17:8080", refused}, {s.node, "192.0.2.17:53", silent},
	} {
		wait := patience
		if x.want == silent {
			wait = silence
		}
		if got := try(x.from, "tcp", x.to, wait); got != x.want {
			t.Errorf("%s to %s: %s, want %s", x.from.Name(), x.to, got, x.want)
		}
	}
	show := func(want string, args ...string) {
		t.Helper()
		out, _, err := s.TryLLCLI(args...)
		text := strings.Join(strings.Fields(out), " ")
		for part := range strings.SplitSeq(want, "\n") {
			if !strings.Contains(text, part) {
				t.Errorf("llcli %s lacks %q: %v\n%s", strings.Join(args, " "), part, err, out)
			}
		}
	}
	show("allow 203.0.113.7 → node\ningress node policy.failsafe allow policy.failsafe rule tcp/22", "policy", "check", "203.0.113.7", "node", "tcp/22")
	show("allow 192.0.2.77 → node\npolicy.failsafe rule 192.0.2.77", "policy", "check", "192.0.2.77", "this-node", "udp/9")
	show("allow 192.0.2.17 → node\ningress node main allow lock rule web app=desk port tcp/8080-8089 deny", "policy", "check", "desk", "node", "tcp/8080")
	show("deny node → 192.0.2.17\negress node main isolated lock", "policy", "check", "node", "desk", "tcp/53")
	show("allow node → node", "policy", "check", "node", "node", "tcp/53")
	show("Set nodes\ningress policy.failsafe policy.failsafe\ningress main lock\negress main lock", "policy", "for", "node")
	show("ingress web allow 1 1", "counters", "policy", "lock")
	c, err := s.client.Dial("tcp", "", "192.0.2.1:8080", patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	show("lock rule web", "connections", "--destination", "192.0.2.1", "-o", "wide")
	echoes(t, c, true)
	for topic, want := range map[string]string{
		"drops":  "ingress of the node by policy lock, tier main",
		"policy": "deny: tcp 192.0.2.17",
	} {
		events := s.node.Start(t, programs.CLI, "--socket", s.Socket, "events", topic)
		testnet.Eventually(t, patience, "an event of "+topic, func() bool {
			try(s.client, "tcp", "192.0.2.1:10250", silence)
			return slices.ContainsFunc(strings.Split(events.Output(), "\n"), func(line string) bool {
				return strings.Contains(line, want) && strings.Contains(line, "192.0.2.1:10250")
			})
		})
	} // The policy changes, and applies to connections that it has allowed, whichever end sends first.
	held := []pair{hold(t, "the client first", s.client, s.node, "192.0.2.1:8085"), hold(t, "the server first", s.client, s.node, "192.0.2.1:8086")}
	for _, p := range held {
		if !passes(p.client, p.server, patience) || !passes(p.server, p.client, patience) || !passes(p.client, p.server, patience) {
			t.Fatalf("%s: the connection does not pass", p.name)
		}
	}
	s.LLCLI("apply", "--wait", "5s", "-f", s.File(hereObjects[strings.LastIndex(hereObjects, "---"):]))
	if passes(held[0].client, held[0].server, silence) || passes(held[1].server, held[1].client, silence) {
		t.Error("a running connection continues")
	}
	echoes(t, c, false)
}

// TestPolicyOfNodeReady: a Policy of the node is not Ready while a device of the node is not attached.
func TestPolicyOfNodeReady(t *testing.T) {
	s := newHere(t)
	s.LLCLI("delete", "interface", "p2", "--wait", "5s")
	s.LLCLI("apply", "-f", s.File(hereObjects))
	status := func() string { return s.LLCLI("get", "policies", "-o", "wide") }
	testnet.Eventually(t, patience, "the Policy names the device", func() bool { return strings.Contains(status(), `"p2"`) })
	if out := status(); strings.Contains(out, "Ready") {
		t.Errorf("p2 is not attached:\n%s", out)
	}
	s.Apply("kind: Interface\nname: p2\nspec: {device: p2, role: port}")
	testnet.Eventually(t, patience, "the Policy is Ready", func() bool { return strings.Contains(status(), "Ready") })
	s.node.Run(t, "ip", "link", "add", "br7", "type", "bridge")
	s.node.Run(t, "ip", "link", "set", "br7", "up")
	s.node.Run(t, "ip", "address", "add", "10.7.0.1/24", "dev", "br7")
	testnet.Eventually(t, patience, "the Policy names the bridge", func() bool { return strings.Contains(status(), `"br7"`) })
	s.Apply("kind: Interface\nname: br7\nspec: {device: br7, role: port}")
	testnet.Eventually(t, patience, "the Policy is Ready again", func() bool { return strings.Contains(status(), "Ready") })
}

// TestPolicyOfNodeTunnels: policies that deny everything on the nodes do not affect the tunnels between
// them.
func TestPolicyOfNodeTunnels(t *testing.T) {
	testnet.RequireRoot(t)
	eachMesh(t, []meshKind{{tunnel: "vxlan"}, {tunnel: "gre", split: true}}, func(t *testing.T, m *mesh) {
		for _, n := range m.nodes {
			n.LLCLI("apply", "--wait", "5s", "-f", n.File(hereObjects))
		}
		m.allPairs()
		if got := try(m.nodes[0].ns, "tcp", "192.0.2.2:7", silence); got != silent {
			t.Errorf("node to node: %s", got)
		}
	})
}

// TestPolicyByHand: on a host without Kubernetes, Endpoints and Entities that llcli adds, and objects in
// conf.d, are subjects and peers of Policies.
func TestPolicyByHand(t *testing.T) {
	s := newPolicies(t)
	for _, name := range []string{"a", "b", "x"} {
		p := s.pods[name]
		s.LLCLI("delete", "endpoint", "shop/"+name, "--wait", "5s")
		s.change("endpoint", "add", "vm-"+name, "--device", p.device, "--mac", p.macText(), "--address", p.addr.String(), "--address", p.addr6.String(), "--label", "app="+name)
	}
	s.may("without policies", map[string]bool{"a b tcp": true, "x b tcp": true})
	s.change("tier", "add", "main", "--order", "200", "--always", "self,node")
	s.change("policy", "add", "db", "--tier", "main", "--applied-to", "app=b", "--isolate", "ingress", "--ingress", "allow from app=a port tcp/4660")
	only := map[string]bool{"a b tcp": true, "x b tcp": false, "a b udp": false}
	s.may("llcli policy add", only)
	s.change("delete", "policy", "db")
	s.ObjectFile("policies.yaml", `
kind: Tier
name: files
spec: {order: 100}
---
kind: Policy
name: db
spec:
  tier: files
  isolate: [ingress]
  appliedTo: [{entities: {matchLabels: {app: b}}}]
  ingress:
    - {action: allow, from: [{entities: {matchLabels: {app: a}}}], ports: [{protocol: tcp, port: 4660}]}
    - {action: allow, from: [{set: desks, entities: {matchLabels: {owner: me}}}]}
`)
	s.LLCLI("reload")
	testnet.Eventually(t, patience, "the Policy is Ready", func() bool { return strings.Contains(s.LLCLI("get", "policies"), "Ready") })
	s.may("a file in conf.d", only)
	s.change("entity", "add", "desk", "--set", "desks", "--label", "owner=me", "--address", "192.0.2.80")
	if out := s.LLCLI("policy", "check", "desk", "vm-b", "udp/9"); !strings.Contains(out, "owner=me") {
		t.Errorf("llcli policy check:\n%s", out)
	}
}

// TestPolicyOfNodeMasquerade: policies of the node do not decide about forwarded traffic that has an
// address of the node, because netfilter or a NAT has translated its source.
func TestPolicyOfNodeMasquerade(t *testing.T) {
	s := newHere(t)
	s.LLCLI("apply", "--wait", "5s", "-f", s.File(hereObjects))
	through := func(when string) {
		t.Helper()
		for _, f := range s.families {
			for _, network := range []string{"tcp", "udp"} {
				if got := try(s.backends[0], network, net.JoinHostPort(f.client, "8080"), patience); got != let {
					t.Errorf("%s, %s %s: %s", when, f.name, network, got)
				}
			}
			if !s.pings(s.backends[0], f.client) {
				t.Errorf("%s, %s: no answer to an echo request", when, f.name)
			}
		}
		if got := try(s.client, "tcp", "192.0.2.1:8080", silence); got != silent {
			t.Errorf("%s: to the node: %s", when, got)
		}
	}
	s.node.Run(t, "nft", "add table inet m; add chain inet m post { type nat hook postrouting priority 100; }; add rule inet m post oifname in0 masquerade")
	through("netfilter")
	s.node.Run(t, "nft", "delete table inet m")
	s.LLCLI("apply", "--wait", "5s", "-f", s.File("kind: NAT\nname: m\nspec: {type: masquerade, match: {out: [in0], source: [10.0.1.0/24, \"2001:db8:1::/64\"]}}"))
	through("NAT")
}

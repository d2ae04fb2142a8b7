// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// reflector answers each datagram with its source address, as a STUN server does.
func reflector(t *testing.T, ns *testnet.NS, addr string) *net.UDPConn {
	t.Helper()
	c := ns.ListenUDP(t, addr)
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 1500)
		for {
			_, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort([]byte(from.String()), from) // the client detects a failure
		}
	}()
	return c
}

func netUDP(addr string) net.Addr {
	return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr))
}

// seenBy returns the address of c as seen by a reflector.
func seenBy(t *testing.T, c net.PacketConn, server string) netip.AddrPort {
	t.Helper()
	to := netUDP(server)
	b := make([]byte, 1500)
	for range 5 {
		if _, err := c.WriteTo([]byte("who am I"), to); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond)) // the read reports an error
		if n, _, err := c.ReadFrom(b); err == nil {
			return netip.MustParseAddrPort(string(b[:n]))
		}
	}
	t.Fatalf("no answer of %s", server)
	return netip.AddrPort{}
}

// hears sends a datagram from address from to address to, and reports whether c receives it.
func hears(t *testing.T, c net.PacketConn, ns *testnet.NS, from string, to netip.AddrPort) bool {
	t.Helper()
	s, err := ns.Dial("udp", from, to.String(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := make([]byte, 1500)
	for range 3 {
		_, _ = s.Write([]byte("unasked")) // the read reports an error
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		for {
			n, _, err := c.ReadFrom(b)
			if err != nil {
				break
			}
			if string(b[:n]) == "unasked" {
				return true
			}
		}
	}
	return false
}

// TestEndpointIndependence performs the checks of a STUN client (RFC 5780): whether its mapping
// depends on the remote, and which remotes may use the mapping.
func TestEndpointIndependence(t *testing.T) {
	for _, tt := range []struct {
		name               string
		mapping, filtering datapath.NATBehaviour
	}{
		{"port-dependent", datapath.AddressAndPortDependent, datapath.AddressAndPortDependent},
		{"mapping", datapath.EndpointIndependent, datapath.AddressAndPortDependent},
		{"mapping and filtering", datapath.EndpointIndependent, datapath.EndpointIndependent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNetwork(t)
			n.attach()
			rule := masquerade("out0")
			rule.Mapping, rule.Filtering = tt.mapping, tt.filtering
			n.translate(map[datapath.NATName]datapath.NAT{"away": rule})
			for _, addr := range []string{"10.0.1.11:3478", "10.0.1.12:3478", "10.0.1.12:3479"} {
				reflector(t, n.backends, addr)
			}
			c := n.client.ListenUDP(t, "192.0.2.10:5000")
			first := seenBy(t, c, "10.0.1.11:3478")
			if first.Addr().String() != "10.0.1.1" {
				t.Fatalf("seen as %s", first)
			}
			independent := tt.mapping == datapath.EndpointIndependent
			if again := seenBy(t, c, "10.0.1.12:3478"); (again == first) != independent {
				t.Errorf("seen as %s by one address and %s by another", first, again)
			}
			if again := seenBy(t, c, "10.0.1.12:3479"); (again == first) != independent {
				t.Errorf("seen as %s by one address and %s by another of its ports", first, again)
			}
			if got, want := hears(t, c, n.backends, "10.0.1.13:777", first), tt.filtering == datapath.EndpointIndependent; got != want {
				t.Errorf("another host's packet arrives: %t, want %t", got, want)
			}
			if tt.filtering != datapath.EndpointIndependent {
				return
			}
			// Hairpin: two clients behind the same outer address reach each other by that address.
			n.client.Addr(t, "eth0", "192.0.2.20/24")
			other := n.client.ListenUDP(t, "192.0.2.20:5000")
			outer := seenBy(t, other, "10.0.1.11:3478")
			if _, err := other.WriteTo([]byte("neighbour"), net.UDPAddrFromAddrPort(first)); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 100)
			_ = c.SetReadDeadline(time.Now().Add(2 * time.Second)) // the next read reports an error
			k, from, err := c.ReadFrom(b)
			if err != nil || string(b[:k]) != "neighbour" || from.String() != outer.String() {
				t.Errorf("heard %q of %v (%v), want it of %s", b[:k], from, err, outer)
			}
		})
	}
}

// TestMappingUsedByOtherRemotes: a mapping is kept while a remote that opened a connection through
// it still uses it, although the connection that created the mapping is gone (RFC 4787, REQ-6:
// outbound replies refresh it).
func TestMappingUsedByOtherRemotes(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	rule := masquerade("out0")
	rule.Mapping, rule.Filtering = datapath.EndpointIndependent, datapath.EndpointIndependent
	n.translate(map[datapath.NATName]datapath.NAT{"away": rule})
	reflector(t, n.backends, "10.0.1.11:3478")
	c := n.client.ListenUDP(t, "192.0.2.10:5000")
	outer := seenBy(t, c, "10.0.1.11:3478")
	if !hears(t, c, n.backends, "10.0.1.13:777", outer) {
		t.Fatal("another host's packet does not arrive")
	}
	later := func(what string, want int) {
		t.Helper()
		n.passLater(kernel.TicksOf(datapath.MappingTimeout) + 10)
		left := 0
		n.ok(n.d.tables.MappingOuter.Batches(func(keys []kernel.MappingKey, _ []kernel.Mapping) error {
			left += len(keys)
			return nil
		}))
		if left != want {
			t.Errorf("%s: %d mappings, want %d", what, left, want)
		}
	}
	flush := func(addr string) {
		_, err := n.d.Connections().Flush(context.Background(), datapath.ConnectionFilter{Either: []netip.Addr{netip.MustParseAddr(addr)}})
		n.ok(err)
	}
	flush("10.0.1.11")
	later("with the other host's connection", 1)
	flush("10.0.1.13")
	later("without any", 0)
}

// TestFilteringChanges: an existing mapping follows the current rule, which decides which remotes
// may use it, and whether its port is still allowed.
func TestFilteringChanges(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	rule := masquerade("out0")
	rule.Mapping = datapath.EndpointIndependent
	set := func() { n.translate(map[datapath.NATName]datapath.NAT{"away": rule}) }
	set()
	for _, addr := range []string{"10.0.1.11:3478", "10.0.1.12:3478", "10.0.1.12:3479"} {
		reflector(t, n.backends, addr)
	}
	c := n.client.ListenUDP(t, "192.0.2.10:5000")
	outer := seenBy(t, c, "10.0.1.11:3478")
	for i, filtering := range []datapath.NATBehaviour{datapath.AddressAndPortDependent, datapath.EndpointIndependent, datapath.AddressAndPortDependent} {
		rule.Filtering = filtering
		set()
		stranger := fmt.Sprintf("10.0.1.13:%d", 777+i)
		if got, want := hears(t, c, n.backends, stranger, outer), filtering == datapath.EndpointIndependent; got != want {
			t.Errorf("change %d: a packet of %s arrives: %t, want %t", i, stranger, got, want)
		}
	}
	if again := seenBy(t, c, "10.0.1.12:3478"); again != outer {
		t.Errorf("seen as %s, before as %s", again, outer)
	}
	rule.Ports = []datapath.PortRange{{First: 2048, Last: 2111}}
	if outer.Port() < 4096 {
		rule.Ports = []datapath.PortRange{{First: 8192, Last: 8255}}
	}
	set()
	if again := seenBy(t, c, "10.0.1.12:3479"); again.Port() < rule.Ports[0].First || again.Port() > rule.Ports[0].Last {
		t.Errorf("seen as %s, want a port of %v", again, rule.Ports)
	}
}

// TestPortForwarding: port ranges of the node's own address are forwarded to inner hosts, from
// outside and from inside.
func TestPortForwarding(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.translate(map[datapath.NATName]datapath.NAT{
		"in": {
			Type: datapath.DNAT,
			Match: datapath.Match{
				Destination: prefixes("10.0.1.1/32"), Protocols: []datapath.Protocol{datapath.TCP}, Ports: []datapath.PortRange{{First: 8000, Last: 8009}},
			},
			Addresses: prefixes("192.0.2.10/32"), Ports: []datapath.PortRange{{First: 9000, Last: 9009}},
		},
		"away": masquerade("out0"),
	})
	for _, port := range []int{9000, 9009} {
		n.client.ServeTCP(t, fmt.Sprintf("192.0.2.10:%d", port), fmt.Sprint("inside ", port))
	}
	for at, want := range map[string]string{"10.0.1.1:8000": "inside 9000", "10.0.1.1:8009": "inside 9009"} {
		for _, from := range []*testnet.NS{n.backends, n.client} {
			c, err := from.Dial("tcp", "", at, 2*time.Second)
			if err != nil {
				t.Errorf("%s from %s: %v", at, from.Name(), err)
				continue
			}
			b := make([]byte, 64)
			_ = c.SetReadDeadline(time.Now().Add(2 * time.Second)) // the next read reports an error
			if k, err := c.Read(b); err != nil || len(b[:k]) < len(want) || string(b[:len(want)]) != want {
				t.Errorf("%s from %s: %q, %v", at, from.Name(), b[:k], err)
			}
			c.Close()
		}
	}
	if _, err := n.backends.Dial("tcp", "", "10.0.1.1:8010", time.Second); err == nil {
		t.Error("a port behind the range leads somewhere")
	}
}

// TestAddressGoes: when the device loses its address, connections with that source end at once, and
// new connections get the new address.
func TestAddressGoes(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0")})
	reflector(t, n.backends, "10.0.1.11:3478")
	c := n.client.ListenUDP(t, "192.0.2.10:5000")
	if got := seenBy(t, c, "10.0.1.11:3478"); got.Addr().String() != "10.0.1.1" {
		t.Fatalf("seen as %s", got)
	}
	n.node.Addr(t, "out0", "10.0.1.99/24")
	n.node.Run(t, "ip", "addr", "del", "10.0.1.1/24", "dev", "out0")
	n.node.Addr(t, "out0", "10.0.1.99/24")
	testnet.Eventually(t, time.Second, "the connection has ended", func() bool {
		list, _, err := n.d.Connections().List(context.Background(), datapath.ConnectionFilter{}, "", 10)
		n.ok(err)
		return len(list) == 0
	})
	if got := seenBy(t, c, "10.0.1.11:3478"); got.Addr().String() != "10.0.1.99" {
		t.Errorf("seen as %s after the change", got)
	}
}

// TestAddressGoesOfService does the same for a service's connection whose source a rule translates.
func TestAddressGoesOfService(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	ctx := context.Background()
	n.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0")})
	n.backends.ServeUDP(t, "10.0.1.11:8080", "udp-0")
	n.ok(n.d.Services().Update(ctx, "web", web(1)))
	c := n.asker("198.51.100.10:80")
	if n.datagram(c) == "" {
		t.Fatal("no answer")
	}
	list := func() []datapath.Connection {
		list, _, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{}, "", 10)
		n.ok(err)
		return list
	}
	if l := list(); len(l) != 1 || !l[0].SNAT || l[0].Reply.Destination.Addr().String() != "10.0.1.1" {
		t.Fatalf("connections %+v, want one by the address of out0", l)
	}
	n.node.Addr(t, "out0", "10.0.1.99/24")
	n.node.Run(t, "ip", "addr", "del", "10.0.1.1/24", "dev", "out0")
	n.node.Addr(t, "out0", "10.0.1.99/24")
	testnet.Eventually(t, time.Second, "the connection has ended, both directions of it", func() bool {
		n.ok(n.d.sweeper.Whole())
		return n.d.sweeper.Entries() == [2]uint64{}
	})
	// Removing the old address also removed the new one, which has just been added again.
	testnet.Eventually(t, 2500*time.Millisecond, "there is an answer after the change", func() bool { return n.datagram(c) != "" })
	if l := list(); len(l) != 1 || l[0].Reply.Destination.Addr().String() != "10.0.1.99" {
		t.Errorf("connections %+v, want one by the address of now", l)
	}
}

// TestBesideNetfilter: nftables masquerades packets that leave through one device, a NAT packets
// that leave through another; neither affects the other's packets.
func TestBesideNetfilter(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.translate(map[datapath.NATName]datapath.NAT{"inwards": masquerade("in0")})
	rules := "add table ip t; add chain ip t c { type nat hook postrouting priority 100; }; add rule ip t c oifname out0 masquerade"
	if out, err := n.node.TryRun("nft", rules); err != nil {
		t.Skipf("no nftables here: %v: %s", err, out)
	}
	far := n.backends.ServeTCP(t, "10.0.1.11:8080", "server")
	near := n.client.ServeTCP(t, "192.0.2.10:8080", "server")
	for range 3 {
		n.dial("10.0.1.11:8080").echo(t, "outwards")
		c, err := n.backends.Dial("tcp", "", "192.0.2.10:8080", 2*time.Second)
		n.ok(err)
		b := make([]byte, 64)
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second)) // the next read reports an error
		if _, err := c.Read(b); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	wantClients(t, "by nftables", far.Clients(), "10.0.1.1")
	wantClients(t, "by us", near.Clients(), "192.0.2.1")
}

// TestPathMTU: a router behind the node has a smaller MTU than the node. The router's errors
// about packets with SNAT reach the client; so do the node's own errors even if a rule denies
// outgoing packets that belong to no connection.
func TestPathMTU(t *testing.T) {
	for addr, router := range map[string]string{"10.0.1.11": "10.9.9.1/24", "2001:db8:2::11": "2001:db8:9::1/64"} {
		t.Run(addr, func(t *testing.T) {
			n := newNetwork(t)
			n.attach()
			n.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0")})
			n.ok(n.d.Firewall().Update(context.Background(), datapath.NodeSet, datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{
				"nothing-of-the-node": {Hooks: datapath.HookOutput, Action: datapath.ActionDeny},
			}}))
			end := testnet.New(t, "end")
			p := netip.MustParsePrefix(router)
			far := netip.PrefixFrom(p.Addr().Next(), p.Bits())
			testnet.Veth(t, testnet.Port{NS: n.backends, Name: "r0", Addrs: []string{router}}, testnet.Port{NS: end, Name: "eth0", Addrs: []string{far.String()}})
			n.backends.Forward(t)
			// Announced even when its MTU is smaller, or no packet would be too large.
			end.Run(t, "ip", "route", "add", "default", "via", p.Addr().String(), "advmss", "1440")
			n.node.Route(t, p.Masked().String(), addr)
			server := netip.AddrPortFrom(far.Addr(), 8080).String()
			end.ServeTCP(t, server, "server")
			bulk := func(what string) {
				t.Helper()
				c := n.dial(server)
				text := strings.Repeat("0123456789abcdef", 1<<14)
				_ = c.SetDeadline(time.Now().Add(8 * time.Second)) // the next read reports an error
				go func() { _, _ = c.Write([]byte(text)) }()
				got := make([]byte, len(text))
				if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
					t.Errorf("%s: %v", what, err)
				}
			}
			bulk("wide")
			n.backends.MTU(t, "r0", 1300)
			end.MTU(t, "eth0", 1300) // otherwise r0 drops its packets without an error
			bulk("narrow behind the node")
			n.backends.MTU(t, "eth0", 1290)
			n.node.MTU(t, "out0", 1290)
			bulk("narrow at the node")
		})
	}
}

// TestTwoMasqueraded: two sockets send to each other, each with a masqueraded connection of its
// own. A reply on one connection is translated to the tuple of the other connection, and must not
// be taken for a packet of that connection.
func TestTwoMasqueraded(t *testing.T) {
	for client, server := range map[string]string{"192.0.2.10:5000": "10.0.1.11:3478", "[2001:db8:1::10]:5000": "[2001:db8:2::11]:3478"} {
		t.Run(client, func(t *testing.T) {
			n := newNetwork(t)
			n.attach()
			n.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0"), "in": masquerade("in0")})
			c, s := n.client.ListenUDP(t, client), n.backends.ListenUDP(t, server)
			defer c.Close()
			defer s.Close()
			outerS := heardAs(t, s, c, client)
			outerC := heardAs(t, c, s, server)
			if outerS.String() == server || outerC.String() == client {
				t.Fatalf("seen as %s and %s, want both masqueraded", outerS, outerC)
			}
			for range 5 {
				if from := heardAs(t, s, c, outerC.String()); from.String() != server {
					t.Errorf("the client is answered by %s, want %s", from, server)
				}
				if from := heardAs(t, c, s, outerS.String()); from.String() != client {
					t.Errorf("the server is answered by %s, want %s", from, client)
				}
			}
		})
	}
}

// heardAs sends a datagram from one socket to an address and returns the source that the other
// socket sees.
func heardAs(t *testing.T, from, at *net.UDPConn, to string) netip.AddrPort {
	t.Helper()
	b := make([]byte, 100)
	for range 5 {
		if _, err := from.WriteTo([]byte("datagram"), netUDP(to)); err != nil {
			t.Fatal(err)
		}
		_ = at.SetReadDeadline(time.Now().Add(500 * time.Millisecond)) // the read reports an error
		if _, seen, err := at.ReadFromUDPAddrPort(b); err == nil {
			return netip.AddrPortFrom(seen.Addr().Unmap(), seen.Port())
		}
	}
	t.Fatalf("packets to %s do not arrive", to)
	return netip.AddrPort{}
}

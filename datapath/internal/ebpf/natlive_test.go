// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// translate puts rules in force.
func (n *network) translate(rules map[datapath.NATName]datapath.NAT) {
	n.t.Helper()
	n.ok(n.d.NAT().Update(context.Background(), datapath.NodeSet, datapath.NATSet{Rules: rules}))
}

// masquerade returns a rule for packets that leave through a device.
func masquerade(out string) datapath.NAT {
	return datapath.NAT{Type: datapath.Masquerade, Match: datapath.Match{Out: []string{out}}}
}

// wantClients fails the test unless a server saw exactly these clients.
func wantClients(t *testing.T, what string, got []netip.Addr, want ...string) {
	t.Helper()
	var names []string
	for _, a := range got {
		names = append(names, a.Unmap().String())
	}
	slices.Sort(names)
	if names = slices.Compact(names); !slices.Equal(names, want) {
		t.Errorf("%s: the server saw %v, want %v", what, names, want)
	}
}

// TestMasquerade: packets that leave through a device get its address, from the first packet on and
// on the fast path, for sockets and echo requests; packets that leave through another device do
// not.
func TestMasquerade(t *testing.T) {
	for addr, want := range map[string]string{"10.0.1.11": "10.0.1.1", "2001:db8:2::11": "2001:db8:2::1"} {
		t.Run(addr, func(t *testing.T) {
			n := newNetwork(t)
			n.attach()
			n.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0")})
			to := netip.AddrPortFrom(netip.MustParseAddr(addr), 8080).String()
			tcp := n.backends.ServeTCP(t, to, "server")
			udp := n.backends.ServeUDP(t, to, "server")
			c := n.dial(to)
			n.wantShortCut("masqueraded", c)
			wantClients(t, "TCP", tcp.Clients(), want)

			u, err := n.client.Dial("udp", "", to, time.Second)
			n.ok(err)
			defer u.Close()
			for range 5 {
				n.datagram(u)
			}
			wantClients(t, "UDP", udp.Clients(), want)
			if err := n.ping(n.client, addr, 3000); err != nil {
				t.Errorf("ping of 3000 bytes through it: %v", err)
			}
			list, _, err := n.d.Connections().List(context.Background(), datapath.ConnectionFilter{}, "", 10)
			n.ok(err)
			for _, c := range list {
				if !c.SNAT || c.Reply.Destination.Addr().String() != want {
					t.Errorf("connection %+v is not translated", c)
				}
			}
			if len(list) < 3 {
				t.Errorf("%d connections, want one each of TCP, UDP and ping", len(list))
			}
			back := n.client.ServeTCP(t, netip.AddrPortFrom(netip.MustParseAddr(clientOf(addr)), 8081).String(), "inside")
			b, err := n.backends.Dial("tcp", "", netip.AddrPortFrom(netip.MustParseAddr(clientOf(addr)), 8081).String(), time.Second)
			n.ok(err)
			defer b.Close()
			testnet.Eventually(t, 3*time.Second, "the other way, the client is served", func() bool { return len(back.Clients()) == 1 })
			if got := back.Clients(); got[0].String() == want {
				t.Errorf("the other way: the server saw %v", got)
			}
		})
	}
}

// ping sends an echo request with size bytes of payload, and waits for the reply.
func (n *network) ping(from *testnet.NS, addr string, size int) error {
	to := netip.MustParseAddr(addr)
	proto, request := "ip4:icmp", testpkt.ICMP{Type: testpkt.EchoRequest, ID: 0x3141, Seq: 1}
	if to.Is6() {
		proto, request.V6, request.Type = "ip6:ipv6-icmp", true, testpkt.V6EchoRequest
	}
	return from.Try(func() error {
		c, err := net.Dial(proto, addr)
		if err != nil {
			return err
		}
		defer c.Close()
		frame := testpkt.Build(testpkt.Ethernet{}, ipHeader(to, to, 64), request, testpkt.Raw(make([]byte, size)))
		message := frame[len(frame)-size-8:]
		if _, err := c.Write(message); err != nil {
			return err
		}
		_ = c.SetDeadline(time.Now().Add(2 * time.Second)) // the next read reports an error
		for got := make([]byte, 1<<16); ; {
			k, _, err := c.(*net.IPConn).ReadFrom(got) // reads without the IP header
			if err != nil {
				return err
			}
			if k == len(message) && bytes.Equal(got[4:k], message[4:]) && got[0] != message[0] {
				return nil
			}
		}
	})
}

func clientOf(backend string) string {
	if netip.MustParseAddr(backend).Is4() {
		return "192.0.2.10"
	}
	return "2001:db8:1::10"
}

// TestMappingsSurvive: the data plane is closed and opened again, as after a kill. Old connections
// continue with their ports, and new ones are translated even before the rules are written again.
func TestMappingsSurvive(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0")})
	server := n.backends.ServeTCP(t, "10.0.1.11:8080", "server")
	c := n.dial("10.0.1.11:8080")
	n.wantShortCut("before", c)
	n.ok(n.d.Close())
	for i := range 3 {
		c.echo(t, fmt.Sprint("meanwhile ", i))
	}
	n.dial("10.0.1.11:8080").echo(t, "opened meanwhile")
	n.open()
	c.echo(t, "after")
	n.dial("10.0.1.11:8080").echo(t, "opened after")
	var keys []datapath.SetName
	for key, err := range n.d.NAT().Keys(context.Background()) {
		n.ok(err)
		keys = append(keys, key)
	}
	if !slices.Equal(keys, []datapath.SetName{datapath.NodeSet}) {
		t.Errorf("the set found again is %v", keys)
	}
	n.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0")})
	n.dial("10.0.1.11:8080").echo(t, "written again")
	wantClients(t, "all", server.Clients(), "10.0.1.1")
	n.ok(n.d.NAT().Delete(context.Background(), datapath.NodeSet))
	c.echo(t, "it continues without the rules")
	n.dial("10.0.1.11:8080").echo(t, "not translated")
	wantClients(t, "all", server.Clients(), "10.0.1.1", "192.0.2.10")
}

// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// named returns the station with the given name.
func (c *cluster) named(name string) *station {
	c.t.Helper()
	for _, s := range c.stations {
		if s.name == name {
			return s
		}
	}
	c.t.Fatalf("there is no %s", name)
	return nil
}

// service returns the document of a Service with IPv4 and IPv6 frontends, each for TCP and UDP.
func (c *cluster) service(name, more string, port uint16, addrs [2]netip.Addr, backends ...*station) string {
	var fronts, backs []string
	for family, a := range addrs {
		for _, protocol := range []string{"tcp", "udp"} {
			fronts = append(fronts, fmt.Sprintf("%q", netip.AddrPortFrom(a, port).String()+"/"+protocol))
		}
		for _, b := range backends {
			backs = append(backs, fmt.Sprintf("{address: %q}", atMatrix(b.addr[family])))
		}
	}
	return fmt.Sprintf("kind: Service\nname: %s\nspec: {frontends: [%s], backends: [%s]%s}", name, strings.Join(fronts, ", "), strings.Join(backs, ", "), more)
}

// apply applies documents on a node.
func (c *cluster) apply(node int, docs ...string) {
	c.t.Helper()
	n := c.nodes[node-1]
	n.LLCLI("apply", "--wait", "30s", "-f", n.File(strings.Join(docs, "\n---\n")))
}

// TestServicePolicies: at a node with backends, clients keep their address; at a node without,
// connections from outside are dropped, and pods use the cluster's backends. Packets to other ports
// of a service are rejected, from pods and nodes. One client port reaches a pod through two node
// ports at once.
func TestServicePolicies(t *testing.T) {
	testnet.RequireRoot(t)
	for _, kind := range []clusterKind{{tunnel: "vxlan", pods: 1}, {tunnel: "geneve", over6: true, merged: true, pods: 1}} {
		t.Run(kind.String(), func(t *testing.T) {
			c := newCluster(t, kind)
			for _, s := range c.stations {
				c.serve(s)
			}
			out, backend, far := c.named("outside"), c.named("pod-1-1"), c.named("pod-3-1")
			vip := [2]netip.Addr{netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("fd96::7")}
			pods := `{sources: [10.76.0.0/16, "fd76::/16"], service: shop/web}`
			for i := range c.nodes {
				c.nodes[i].node.Route(t, "default", "192.0.2.77")
				c.nodes[i].node.Route(t, "default", "2001:db8:2::77")
				at := [2]netip.Addr{c.nodeAddr(i+1, 0), c.nodeAddr(i+1, 1)}
				docs := []string{c.service("shop/web", ", otherPorts: reject", 80, vip, backend)}
				local := []*station{backend}
				if i > 0 {
					local = nil
				}
				docs = append(docs, c.service("shop/web/external", ", source: keep, noBackend: drop, divert: ["+pods+"]", 31000, at, local...))
				docs = append(docs, c.service("shop/web/other", ", source: snat", 31001, at, backend))
				c.apply(i+1, docs...)
			}
			for family := range vip {
				c.wantSeen("client of a node with a backend", out, c.at(1, family, 31000), out.addr[family])
				c.wantSeen("pod, diverted", far, c.at(3, family, 31000), netip.Addr{})
				c.wantSeen("pod, diverted on another node", far, c.at(1, family, 31000), netip.Addr{})
				if conn, err := out.Dial("tcp", "", c.at(3, family, 31000).String(), 500*time.Millisecond); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("client of a node without a backend: %v %v, want silence", conn, err)
				}
				for _, from := range []*station{far, c.named("node 2")} {
					if _, err := talkTCP(from, netip.AddrPortFrom(vip[family], 81)); !errors.Is(err, syscall.ECONNREFUSED) {
						t.Errorf("%s to a port that is no service's: %v, want a refusal", from.name, err)
					}
				}
				c.twoAtOnce(out, family)
			}
			if drops := c.dropped(3); drops["no_backend_silent"] == 0 {
				t.Errorf("drops of node 3: %v", drops)
			}
		})
	}
}

func (c *cluster) at(node, family int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(c.nodeAddr(node, family), port)
}

// wantSeen connects from a station over TCP and UDP, and checks that the server sees the address
// want; zero: any address.
func (c *cluster) wantSeen(what string, from *station, to netip.AddrPort, want netip.Addr) {
	c.t.Helper()
	for protocol, talk := range map[string]func(*station, netip.AddrPort) (netip.Addr, error){"TCP": talkTCP, "UDP": talkUDP} {
		if seen, err := talk(from, to); err != nil || want.IsValid() && seen != want {
			c.t.Errorf("%s, %s to %s: seen as %s, %v, want %s", what, protocol, to, seen, err, want)
		}
	}
}

// twoAtOnce: one client port reaches the same pod through two ports of a node at once.
func (c *cluster) twoAtOnce(from *station, family int) {
	c.t.Helper()
	u := from.ListenUDP(c.t, netip.AddrPortFrom(from.addr[family], 45678).String())
	defer u.Close() // no longer needed
	answered := map[uint16]bool{}
	b := make([]byte, 1500)
	for range 5 {
		for _, port := range []uint16{31000, 31001} {
			if _, err := u.WriteToUDPAddrPort([]byte("hello"), c.at(1, family, port)); err != nil {
				c.t.Error(err)
			}
		}
		_ = u.SetReadDeadline(time.Now().Add(time.Second)) // cannot fail
		for len(answered) < 2 {
			_, by, err := u.ReadFromUDPAddrPort(b)
			if err != nil {
				break
			}
			answered[by.Port()] = true
		}
	}
	if !answered[31000] || !answered[31001] {
		c.t.Errorf("one client port by two ports of the node at once: answers from %v", answered)
	}
}

// TestServiceBackendGoes: datagrams from one client port go to a different backend within about a
// second after their backend is deleted, and TCP connections to that backend end.
func TestServiceBackendGoes(t *testing.T) {
	testnet.RequireRoot(t)
	c := newCluster(t, clusterKind{tunnel: "vxlan", pods: 2})
	for _, s := range c.stations {
		c.serve(s)
	}
	vip := [2]netip.Addr{netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("fd96::7")}
	first, second, client := c.named("pod-1-1"), c.named("pod-2-1"), c.named("pod-1-2")
	for family := range vip {
		c.apply(1, c.service("shop/web", "", 80, vip, first))
		u, err := client.Dial("udp", "", netip.AddrPortFrom(vip[family], 80).String(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close() // no longer needed
		if _, err := exchange(u, []byte("one"), 3); err != nil {
			t.Fatal(err)
		}
		tcp, err := client.Dial("tcp", "", netip.AddrPortFrom(vip[family], 80).String(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close() // likewise
		line := make([]byte, 64)
		if _, err := tcp.Read(line); err != nil {
			t.Fatal(err)
		}
		c.apply(1, c.service("shop/web", "", 80, vip, second))
		gone := time.Now()
		testnet.Eventually(t, 5*time.Second, "datagrams go to another backend", func() bool {
			_, err := exchange(u, []byte("two"), 3)
			backends := c.nodes[0].Counters("Service", "shop/web").Backends
			return err == nil && backends[family].Connections > 0
		})
		if took := time.Since(gone); took > testnet.OnThisMachine(2*time.Second) {
			t.Errorf("datagrams took %s to another backend, want one second or so", took)
		}
		_ = tcp.SetDeadline(time.Now().Add(10 * time.Second)) // cannot fail
		var ended error
		for ended == nil {
			if _, ended = tcp.Write([]byte("still there?")); ended == nil {
				_, ended = tcp.Read(line)
			}
			if n, ok := ended.(net.Error); ok && n.Timeout() {
				t.Errorf("the connection to the backend that is gone continues")
				break
			}
		}
	}
}

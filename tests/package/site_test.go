// SPDX-License-Identifier: Apache-2.0

package pkg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// site is the network around the machine, which is the node with the package.
//
//	client   192.0.2.17 ─┐                          ┌─ p1 10.0.1.1 ── 10.0.1.2 b1
//	                    lan ── 192.0.2.1 in0 [node] ┤
//	stranger 192.0.2.66 ─┘                          └─ p2 10.0.2.1 ── 10.0.2.2 b2
//
// IPv6 likewise: 2001:db8:0:2::17 and ::66, 2001:db8:1::1 and ::2. The service has the node's own
// addresses, port 9000, on which the node itself has a server as well: connections that reach this
// server bypassed the data plane. The stranger is not in sourceRanges.
type site struct {
	client, stranger *testnet.NS
	servers          []*testnet.Server // the node's own, then the backends'
}

var frontends = []string{"192.0.2.1:9000", "[2001:db8:0:2::1]:9000"}

const objectFile = "/etc/loxilight/conf.d/50-web.yaml"

const objects = `
kind: Interface
name: in0
spec: {device: in0}
---
kind: Interface
name: p1
spec: {device: p1}
---
kind: Interface
name: p2
spec: {device: p2}
---
kind: Service
name: web
spec:
  frontends: ["192.0.2.1:9000/tcp", "192.0.2.1:9000/udp", "[2001:db8:0:2::1]:9000/tcp", "[2001:db8:0:2::1]:9000/udp"]
  backends:
  - {address: "10.0.1.2:8080"}
  - {address: "10.0.2.2:8080"}
  - {address: "[2001:db8:1::2]:8080"}
  - {address: "[2001:db8:2::2]:8080"}
  sourceRanges: ["192.0.2.17/32", "2001:db8:0:2::17/128"]
`

// newSite creates the machines around the node, and the node's devices.
func newSite(t *testing.T) *site {
	t.Helper()
	node, lan := testnet.Here(t), testnet.New(t, "lan")
	s := &site{client: testnet.New(t, "client"), stranger: testnet.New(t, "stranger")}
	node.Sysctl(t, "net.ipv6.conf.default.accept_dad", "0")
	node.Forward(t)
	for _, p := range []struct {
		ns   *testnet.NS
		name string
		last string
	}{{s.client, "eth0", "17"}, {s.stranger, "eth0", "66"}, {node, "in0", "1"}} {
		testnet.Veth(t, testnet.Port{NS: lan, Name: "to" + p.last},
			testnet.Port{NS: p.ns, Name: p.name, Addrs: []string{"192.0.2." + p.last + "/24", "2001:db8:0:2::" + p.last + "/64"}})
	}
	lan.Bridge(t, "br0", "to17", "to66", "to1")
	run(t, "ip", "link", "set", "in0", "txqueuelen", "1000") // else the first clsact sets it
	for _, ns := range []*testnet.NS{s.client, s.stranger} {
		ns.Route(t, "default", "192.0.2.1")
		ns.Route(t, "default", "2001:db8:0:2::1")
	}
	for _, addr := range frontends {
		s.serve(t, node, addr, "node")
	}
	for i := 1; i <= 2; i++ {
		b := testnet.New(t, fmt.Sprintf("b%d", i))
		net4, net6 := fmt.Sprintf("10.0.%d.", i), fmt.Sprintf("2001:db8:%d::", i)
		testnet.Veth(t, testnet.Port{NS: node, Name: fmt.Sprintf("p%d", i), Addrs: []string{net4 + "1/24", net6 + "1/64"}},
			testnet.Port{NS: b, Name: "eth0", Addrs: []string{net4 + "2/24", net6 + "2/64"}})
		b.Route(t, "default", net4+"1")
		b.Route(t, "default", net6+"1")
		s.serve(t, b, net4+"2:8080", fmt.Sprintf("b%d", i))
		s.serve(t, b, "["+net6+"2]:8080", fmt.Sprintf("b%d", i))
	}
	t.Cleanup(func() { removeDevices(t) })
	// The kernel adds its own settings for the devices gradually.
	before := network(t)
	testnet.Eventually(t, patience(), "the node's devices, addresses and routes stay as they are", func() bool {
		last := before
		before = network(t)
		return len(diff(last, before)) == 0
	})
	return s
}

// removeDevices removes the node's devices at once: devices of a namespace that ends vanish some
// time later.
func removeDevices(t *testing.T) {
	for _, name := range []string{"in0", "p1", "p2"} {
		if l, err := netlink.LinkByName(name); err == nil {
			if err := netlink.LinkDel(l); err != nil {
				t.Errorf("device %s: %v", name, err)
			}
		}
	}
}

func (s *site) serve(t *testing.T, ns *testnet.NS, addr, name string) {
	s.servers = append(s.servers, ns.ServeTCP(t, addr, name), ns.ServeUDP(t, addr, name))
}

// expectServed fails the test unless the client's connections and datagrams to the
// service are answered by one of the servers named.
func (s *site) expectServed(t *testing.T, when string, by ...string) {
	t.Helper()
	for _, front := range frontends {
		for protocol, talk := range map[string]func(*testnet.NS, string, string, []byte) (string, error){
			"tcp": testtraffic.TalkTCP, "udp": testtraffic.TalkUDP,
		} {
			name, err := talk(s.client, "", front, []byte("word"))
			if err != nil || !slices.Contains(by, name) {
				t.Errorf("%s: %s to %s is answered by %q, %v; want %v", when, protocol, front, name, err, by)
			}
		}
	}
}

// apply writes the objects as a file, as an administrator would, and waits until they are Ready.
// The daemon has been running since the installation.
func apply(t *testing.T) {
	t.Helper()
	write(t, objectFile, objects)
	start(t)
	run(t, "llcli", "reload")
	ready(t)
}

// balanced puts the service on the node, with the package installed in this version.
func balanced(t *testing.T, version string) *site {
	t.Helper()
	fresh(t)
	s := newSite(t)
	if _, err := testtraffic.TalkUDP(s.stranger, "", strings.Replace(frontends[0], "9000", "9001", 1), nil); err == nil {
		t.Fatal("an answer where no server should be")
	}
	install(t, version)
	apply(t)
	s.expectServed(t, "with the service", "b1", "b2")
	return s
}

// burden is all traffic of a site: the client's, which must not be harmed, and the excluded
// host's, which must not pass.
type burden struct {
	site    *site
	allowed []*testtraffic.Traffic
	stop    chan struct{}
	wg      sync.WaitGroup
	denied  atomic.Uint64 // datagrams and connections that the excluded host sent
	passed  atomic.Uint64 // and that got an answer
}

// startBurden starts the traffic, at the rate that is configured for the machine.
func (s *site) startBurden(t *testing.T) *burden {
	t.Helper()
	b := &burden{site: s, stop: make(chan struct{})}
	rate := number("RATE", 20000) / len(frontends)
	for _, front := range frontends {
		b.allowed = append(b.allowed, testtraffic.Start(t, s.client, front, testtraffic.Load{
			Flows: 16, Packets: rate, Connections: max(1, rate/200), Lasting: max(2, rate/500),
		}))
	}
	t.Cleanup(b.end)
	for _, front := range frontends {
		c, err := s.stranger.Dial("udp", "", front, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		b.wg.Go(func() { b.sendDenied(c, max(10, rate/20)) })
		b.wg.Go(func() { b.countPassed(c) })
		b.wg.Go(func() { b.connectDenied(front) })
	}
	return b
}

func (b *burden) sendDenied(c net.Conn, rate int) {
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for n := uint64(0); ; n++ {
		select {
		case <-b.stop:
			c.Close()
			return
		case <-ticker.C:
		}
		if _, err := c.Write(binary.BigEndian.AppendUint64(nil, n)); err == nil {
			b.denied.Add(1)
		}
	}
}

func (b *burden) countPassed(c net.Conn) {
	answer := make([]byte, 1500)
	for {
		if _, err := c.Read(answer); err == nil {
			b.passed.Add(1)
		} else if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

func (b *burden) connectDenied(front string) {
	for {
		select {
		case <-b.stop:
			return
		default:
		}
		b.denied.Add(1)
		c, err := b.site.stranger.Dial("tcp", "", front, 100*time.Millisecond)
		if err == nil {
			c.Close()
			b.passed.Add(1)
		}
	}
}

// end stops all traffic; it may be called twice.
func (b *burden) end() {
	select {
	case <-b.stop:
	default:
		close(b.stop)
	}
	for _, tr := range b.allowed {
		tr.End()
	}
	b.wg.Wait()
}

// expectUnharmed ends the traffic, prints the counts, and fails the test unless all counts that
// must be zero are zero.
func (b *burden) expectUnharmed(t *testing.T, what string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			for _, command := range []string{
				"llcli status", "llcli counters", "llcli counters service web", "llcli get services",
				"nstat --ignore --noupdate", "cat /proc/net/softnet_stat", "ip -s link", "ip -s neigh",
			} {
				args := strings.Fields(command)
				out, _ := try(args[0], args[1:]...)
				t.Logf("%s:\n%s", command, out)
			}
		}
	}()
	b.end()
	var sent, lost, opened uint64
	var harmed int
	for _, tr := range b.allowed {
		tr.ExpectUnharmed(t)
		sent, lost, opened, harmed = sent+tr.Sent(), lost+tr.Lost(), opened+tr.Opened(), harmed+tr.Harmed()
		if n := tr.Servers()["node"]; n > 0 {
			t.Errorf("%s: %d packets and connections got past the data plane", what, n)
		}
	}
	stranger := []netip.Addr{netip.MustParseAddr("192.0.2.66"), netip.MustParseAddr("2001:db8:0:2::66")}
	for _, server := range b.site.servers {
		for _, client := range server.Clients() {
			if slices.Contains(stranger, client.Unmap()) {
				b.passed.Add(1)
				t.Errorf("%s: %s was reached from %s, which is denied", what, server.Name, client)
			}
		}
	}
	t.Logf("COUNT %s: packets sent %d, lost %d; new connections %d, refused or reset %d; denied packets sent %d, passed %d",
		what, sent, lost, opened, harmed, b.denied.Load(), b.passed.Load())
	if b.passed.Load() > 0 || b.denied.Load() == 0 {
		t.Errorf("%s: of %d denied packets %d passed", what, b.denied.Load(), b.passed.Load())
	}
}

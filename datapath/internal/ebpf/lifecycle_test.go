// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
)

var bothHooks = map[string]struct{ attach, hook string }{
	"tcx":     {"tcx", "tcx-ingress"},
	"cls_bpf": {"tc", "tc-ingress"},
}

// web returns a service with this number of backends.
func web(backends int) datapath.Service {
	return datapath.Service{
		Frontends:   []datapath.Frontend{frontend("198.51.100.10:80", datapath.TCP), frontend("198.51.100.10:80", datapath.UDP)},
		Backends:    backendAddrs(8080, []string{"10.0.1.11", "10.0.1.12", "10.0.1.13"}[:backends]...),
		IdleTimeout: datapath.DefaultIdleTimeout(),
	}
}

func (n *network) serve() (servers []*testnet.Server) {
	for i, a := range []string{"10.0.1.11", "10.0.1.12", "10.0.1.13"} {
		servers = append(servers, n.backends.ServeTCP(n.t, a+":8080", fmt.Sprint("tcp-", i)))
		n.backends.ServeUDP(n.t, a+":8080", fmt.Sprint("udp-", i))
	}
	return servers
}

func TestRestartKeepsConnections(t *testing.T) {
	for name, how := range bothHooks {
		t.Run(name, func(t *testing.T) {
			if name == "tcx" {
				requireTCX(t)
			}
			n := newNetwork(t)
			n.restart(how.attach)
			n.attach()
			n.serve()
			ctx := context.Background()
			n.ok(n.d.Services().Update(ctx, "web", web(3)))
			c := n.dial("198.51.100.10:80")
			c.echo(t, "before")
			before, _, _ := n.d.Telemetry().ServiceCounters(ctx, "web")

			n.ok(n.d.Close())
			c.echo(t, "without a daemon")
			if _, err := n.ask("198.51.100.10:80"); err != nil {
				t.Errorf("a new connection without a daemon: %v", err)
			}
			n.restart(how.attach)
			c.echo(t, "after")

			var names []datapath.ServiceName
			for name, err := range n.d.Services().Keys(ctx) {
				n.ok(err)
				names = append(names, name)
			}
			if !slices.Equal(names, []datapath.ServiceName{"web"}) {
				t.Errorf("services after the restart: %v", names)
			}
			n.attach()
			n.ok(n.d.Services().Update(ctx, "web", web(3)))
			c.echo(t, "after the first round")
			s, ok := n.d.Telemetry().PortState("in0")
			if !ok || !slices.Contains(s.Hooks, how.hook) {
				t.Errorf("state of in0: %+v, want hook %s", s, how.hook)
			}
			after, _, err := n.d.Telemetry().ServiceCounters(ctx, "web")
			if err != nil || after.Connections != before.Connections+1 || after.Packets < before.Packets+8 {
				t.Errorf("counters %+v after the restart, %+v before (%v)", after, before, err)
			}
		})
	}
}

// restart opens the data plane again.
func (n *network) restart(attach string) {
	n.t.Helper()
	n.d.Close() // harmless if already closed
	n.config.Attach = attach
	if attach == "tcx" {
		n.config.Attach = ""
	}
	n.open()
}

// conversation is a connection to an echo server.
type conversation struct{ net.Conn }

func (n *network) dial(addr string) *conversation {
	n.t.Helper()
	var c net.Conn
	n.client.Do(n.t, func() (err error) {
		c, err = net.DialTimeout("tcp", addr, 3*time.Second)
		return err
	})
	n.t.Cleanup(func() { c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(3 * time.Second)) // the next read reports an error
	var b [64]byte
	if _, err := c.Read(b[:]); err != nil {
		n.t.Fatalf("greeting of %s: %v", addr, err)
	}
	return &conversation{c}
}

func (c *conversation) echo(t *testing.T, text string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(3 * time.Second)) // the next read reports an error
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	b := make([]byte, len(text))
	for got := 0; got < len(b); {
		k, err := c.Read(b[got:])
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		got += k
	}
	if string(b) != text {
		t.Fatalf("sent %q, got back %q", text, b)
	}
}

func TestDeletedPortsLeaveNothing(t *testing.T) {
	for name, how := range bothHooks {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			n.restart(how.attach)
			n.attach()
			if len(n.hooked("in0")) == 0 {
				t.Error("nothing is seen on in0")
			}
			for _, device := range []string{"in0", "out0"} {
				n.ok(n.d.Ports().Delete(context.Background(), datapath.PortName(device)))
				if left := n.hooked(device); len(left) != 0 {
					t.Errorf("left on %s: %s", device, left)
				}
			}
			pins, err := os.ReadDir(filepath.Join(n.d.dir, "ports", "0"))
			if err != nil || len(pins) != 0 {
				t.Errorf("pins left: %v, %v", pins, err)
			}
		})
	}
}

// TestHooksAreListedByDevice: hooks are listed in order, including hooks that a new daemon adopted
// and that are not configured yet.
func TestHooksAreListedByDevice(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	for _, when := range []string{"attached", "adopted"} {
		f, err := n.d.Telemetry().Features(context.Background())
		n.ok(err)
		var got []string
		for _, h := range f.Hooks {
			got = append(got, h.Netns+" "+h.Device+" "+h.Hook[strings.IndexByte(h.Hook, '-')+1:])
		}
		if want := []string{"host in0 egress", "host in0 ingress", "host out0 egress", "host out0 ingress"}; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
		n.restart("")
	}
}

func TestPortWithoutDeviceIsAbsent(t *testing.T) {
	n := newNetwork(t)
	err := n.d.Ports().Update(context.Background(), "gone", datapath.Port{Device: "nosuch0"})
	if !errors.Is(err, datapath.ErrAbsent) {
		t.Errorf("error %v, want an error that wraps ErrAbsent", err)
	}
}

func TestLoopbackIsNoPort(t *testing.T) {
	n := newNetwork(t)
	err := n.d.Ports().Update(context.Background(), "lo", datapath.Port{Device: "lo"})
	if !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("error %v, want an error that wraps ErrUnsupported", err)
	}
}

func TestReturnedDeviceIsAttached(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	ctx := context.Background()
	n.node.DeleteLink(t, "in0")
	testnet.Eventually(t, 3*time.Second, "the loss is noticed", func() bool {
		ok, err := n.d.Ports().Verify(ctx, "in0")
		return !ok && err == nil
	})
	testnet.Veth(t,
		testnet.Port{NS: n.node, Name: "in0", Addrs: []string{"192.0.2.1/24"}},
		testnet.Port{NS: n.client, Name: "eth0", Addrs: []string{"192.0.2.10/24"}})
	n.client.Route(t, "default", "192.0.2.1")
	n.attach()
	n.serve()
	n.ok(n.d.Services().Update(ctx, "web", web(3)))
	if _, err := n.ask("198.51.100.10:80"); err != nil {
		t.Error(err)
	}
}

func TestRemovedBackendEndsItsConnections(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	ctx := context.Background()
	n.ok(n.d.Services().Update(ctx, "web", web(2)))
	c := n.asker("198.51.100.10:80")
	first := n.datagram(c)
	// The client's backend is deleted; the next datagram goes to another backend.
	s := web(2)
	at := slices.IndexFunc(s.Backends, func(b datapath.Backend) bool {
		return first == map[string]string{"10.0.1.11": "udp-0", "10.0.1.12": "udp-1"}[b.Addr.Addr().String()]
	})
	if at < 0 {
		t.Fatalf("answered by %q", first)
	}
	s.Backends = slices.Delete(s.Backends, at, at+1)
	n.ok(n.d.Services().Update(ctx, "web", s))
	testnet.Eventually(t, 2*time.Second, "another backend answers", func() bool { return n.datagram(c) != first })
	testnet.Eventually(t, 5*time.Second, "the backend's id is free again", func() bool {
		n.ok(n.d.Maintain(ctx))
		dead := n.d.services.Dead()
		return len(dead) == 0
	})
}

// asker returns a UDP socket of the client, connected to addr.
func (n *network) asker(addr string) net.Conn {
	n.t.Helper()
	c, err := n.client.Dial("udp", "", addr, time.Second)
	n.ok(err)
	n.t.Cleanup(func() { c.Close() })
	return c
}

// datagram sends a datagram and returns the name of the server that replies; "": no reply.
func (n *network) datagram(c net.Conn) string {
	_ = c.SetDeadline(time.Now().Add(500 * time.Millisecond)) // the next read reports an error
	if _, err := c.Write([]byte("x")); err != nil {
		return ""
	}
	var b [64]byte
	k, err := c.Read(b[:])
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(b[:k]), " ")
	return name
}

func TestFlushEndsWhatTheFilterChooses(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	ctx := context.Background()
	n.ok(n.d.Services().Update(ctx, "web", web(3)))
	for range 5 {
		n.dial("198.51.100.10:80")
	}
	count, err := n.d.Connections().Flush(ctx, datapath.ConnectionFilter{Source: netip.MustParsePrefix("203.0.113.0/24")})
	if err != nil || count != 0 {
		t.Errorf("flushed %d of another source (%v)", count, err)
	}
	n.ok(n.d.sweeper.Whole())
	before, _, _ := n.d.Telemetry().ServiceCounters(ctx, "web")
	count, err = n.d.Connections().Flush(ctx, datapath.ConnectionFilter{Source: netip.MustParsePrefix("192.0.2.0/24"), Protocol: datapath.TCP})
	if err != nil || count != 5 {
		t.Errorf("flushed %d (%v), want 5", count, err)
	}
	list, _, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{}, "", 10)
	if err != nil || len(list) != 0 {
		t.Errorf("left: %v (%v)", list, err)
	}
	after, _, _ := n.d.Telemetry().ServiceCounters(ctx, "web")
	if after.Packets != before.Packets || after.Bytes != before.Bytes {
		t.Errorf("counters %+v after the flush, %+v before", after, before)
	}
}

func TestListComesInPages(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	ctx := context.Background()
	n.ok(n.d.Services().Update(ctx, "web", web(3)))
	for range 7 {
		n.dial("198.51.100.10:80")
	}
	seen := make(map[datapath.Tuple]int)
	cursor, pages := "", 0
	for {
		list, next, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{Service: "web"}, cursor, 3)
		n.ok(err)
		for _, c := range list {
			seen[c.Original]++
		}
		pages++
		if cursor = next; cursor == "" {
			break
		}
	}
	if len(seen) != 7 || pages != 3 {
		t.Errorf("%d connections on %d pages, want 7 on 3", len(seen), pages)
	}
	if _, _, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{}, "nowhere", 3); !errors.Is(err, datapath.ErrAbsent) {
		t.Errorf("an unknown cursor: %v", err)
	}
}

func TestIdleConnectionsEnd(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	ctx := context.Background()
	s := web(3)
	s.IdleTimeout.UDP = 300 * time.Millisecond
	n.ok(n.d.Services().Update(ctx, "web", s))
	c := n.asker("198.51.100.10:80")
	keep := n.dial("198.51.100.10:80")
	if first, second := n.datagram(c), n.datagram(c); first == "" || second == "" {
		t.Fatal("no answer")
	}
	testnet.Eventually(t, 5*time.Second, "the UDP connection ends, and the TCP one does not", func() bool {
		n.ok(n.d.Maintain(ctx))
		list, _, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{}, "", 10)
		return err == nil && len(list) == 1 && list[0].Protocol == datapath.TCP
	})
	keep.echo(t, "still there")
}

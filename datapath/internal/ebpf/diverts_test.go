// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// bothVIPs returns a service's frontends of both families.
func bothVIPs(port string) []datapath.Frontend {
	return []datapath.Frontend{
		frontend("198.51.100.10:"+port, datapath.TCP), frontend("198.51.100.10:"+port, datapath.UDP), frontend("[2001:db8:9::10]:"+port, datapath.TCP),
	}
}

// answers checks which TCP server answers at a frontend.
func (n *network) answers(what, addr, want string) {
	n.t.Helper()
	got, err := testtraffic.TalkTCP(n.client, "", addr, []byte("hello"))
	if err != nil || got != want {
		n.t.Errorf("%s: %s answers %q, %v, want %q", what, addr, got, err, want)
	}
}

// put writes a service, and verifies it.
func (n *network) put(name datapath.ServiceName, s datapath.Service) {
	n.t.Helper()
	ctx := context.Background()
	if s.IdleTimeout == (datapath.IdleTimeout{}) {
		s.IdleTimeout = datapath.DefaultIdleTimeout()
	}
	n.ok(n.d.Services().Update(ctx, name, s))
	if ok, err := n.d.Services().Verify(ctx, name); !ok || err != nil {
		n.t.Errorf("%s, just written, is not as it was written: %v", name, err)
	}
}

// TestDiverted: some clients of a service are served by another service's backends, whichever
// service was written first, across changes of both, and after a restart.
func TestDiverted(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	n.backends.ServeTCP(t, "[2001:db8:2::11]:8080", "six-0")
	n.backends.ServeTCP(t, "[2001:db8:2::12]:8080", "six-1")
	ctx := context.Background()
	outside := datapath.Service{
		Frontends: bothVIPs("80"), Backends: backendAddrs(8080, "10.0.1.11", "2001:db8:2::11"),
		Diverts: []datapath.Divert{{Sources: prefixes("192.0.2.0/28", "2001:db8:1::/64"), Service: "inside"}},
	}
	inside := datapath.Service{Frontends: bothVIPs("81"), Backends: backendAddrs(8080, "10.0.1.12", "2001:db8:2::12")}
	n.put("outside", outside)
	n.answers("before the other exists", "198.51.100.10:80", "tcp-0")
	n.put("inside", inside)
	n.answers("diverted", "198.51.100.10:80", "tcp-1")
	n.answers("diverted, IPv6", "[2001:db8:9::10]:80", "six-1")
	if c, _, err := n.d.Telemetry().ServiceCounters(ctx, "inside"); err != nil || c.Connections != 2 {
		t.Errorf("counted for the other %d connections, %v, want 2", c.Connections, err)
	}
	inside.Backends = backendAddrs(8080, "10.0.1.13")
	n.put("inside", inside)
	n.answers("another backend of the other", "198.51.100.10:80", "tcp-2")
	n.restart("")
	n.answers("without a daemon's word", "198.51.100.10:80", "tcp-2")
	n.attach()
	n.put("inside", inside)
	n.put("outside", outside)
	n.answers("by a later run", "198.51.100.10:80", "tcp-2")
	inside.Backends = nil
	n.put("inside", inside)
	if _, err := testtraffic.TalkTCP(n.client, "", "198.51.100.10:80", nil); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("diverted to one without backends: %v, want a refusal", err)
	}
	outside.Diverts[0].Sources = prefixes("0.0.0.0/0", "192.0.2.64/26", "::/0")
	outside.Diverts = append(outside.Diverts, datapath.Divert{Sources: prefixes("192.0.2.8/29"), Service: "third"})
	n.put("third", datapath.Service{Frontends: bothVIPs("82"), Backends: backendAddrs(8080, "10.0.1.12")})
	n.put("outside", outside)
	n.answers("the longest prefix", "198.51.100.10:80", "tcp-1")
	outside.Diverts = nil
	n.put("outside", outside)
	n.answers("not diverted any more", "198.51.100.10:80", "tcp-0")
	if _, err := testtraffic.TalkTCP(n.client, "", "198.51.100.10:81", nil); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the other one itself: %v, want a refusal", err)
	}
}

// TestSilent: a silent service without a backend drops packets instead of rejecting them, and
// counts them.
func TestSilent(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.put("web", datapath.Service{Frontends: bothVIPs("80"), Silent: true})
	for _, addr := range []string{"198.51.100.10:80", "[2001:db8:9::10]:80"} {
		if c, err := n.client.Dial("tcp", "", addr, 300*time.Millisecond); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v %v, want silence", addr, c, err)
		}
	}
	c, err := n.d.Telemetry().NodeCounters(context.Background())
	n.ok(err)
	if c.Drops["no_backend_silent"] < 2 || c.Drops["no_backend"] != 0 {
		t.Errorf("drops %v", c.Drops)
	}
}

// TestOtherPorts: packets to a service address that match none of its ports are handled as the
// service configures, unless the address is the node's.
func TestOtherPorts(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	// Without our programs the packets would reach this host.
	n.node.Route(t, "198.51.100.0/24", "10.0.1.11")
	n.backends.Run(t, "ip", "addr", "add", "198.51.100.10/32", "dev", "lo")
	n.backends.ServeTCP(t, "198.51.100.10:22", "leaked")
	n.node.ServeTCP(t, "192.0.2.1:22", "node")
	s := datapath.Service{Frontends: []datapath.Frontend{
		frontend("198.51.100.10:80", datapath.TCP), frontend("192.0.2.1:80", datapath.TCP), frontend("[2001:db8:9::10]:80", datapath.TCP),
	}, Backends: backendAddrs(8080, "10.0.1.11")}
	n.put("web", s)
	n.answers("as long as it passes", "198.51.100.10:22", "leaked")
	drops := func(reason string) uint64 {
		c, err := n.d.Telemetry().NodeCounters(context.Background())
		n.ok(err)
		return c.Drops[reason]
	}
	s.OtherPorts = datapath.OtherPortsReject
	n.put("web", s)
	more := datapath.Service{Frontends: []datapath.Frontend{frontend("198.51.100.10:81", datapath.TCP)}}
	for range 2 {
		n.put("more", more) // has no setting of its own: the stricter setting applies
		for _, addr := range []string{"198.51.100.10:22", "[2001:db8:9::10]:22"} {
			if _, err := testtraffic.TalkTCP(n.client, "", addr, nil); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: %v, want a refusal", addr, err)
			}
		}
		u, err := n.client.Dial("udp", "", "198.51.100.10:53", time.Second)
		n.ok(err)
		if _, err := testtraffic.ExchangeUDP(u, []byte("x")); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("UDP: %v, want a refusal", err)
		}
		u.Close()
		n.answers("its own port", "198.51.100.10:80", "tcp-0")
		n.answers("an address of the node", "192.0.2.1:22", "node")
		n.restart("") // a later run keeps the setting
		n.attach()
	}
	n.put("more", more)
	if got := drops("no_service"); got != 6 {
		t.Errorf("%d dropped as no service's, want 6", got)
	}
	s.OtherPorts = datapath.OtherPortsDrop
	n.put("web", s)
	if _, err := n.client.Dial("tcp", "", "198.51.100.10:22", 300*time.Millisecond); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v, want silence", err)
	}
	if got := drops("no_service"); got < 7 {
		t.Errorf("%d dropped as no service's, want 7 or more", got)
	}
	n.ok(n.d.Services().Delete(context.Background(), "web"))
	n.answers("after it", "198.51.100.10:22", "leaked")
}

// TestServiceAnnounced: the address of a service is announced to neighbours on uplinks, and their
// requests are answered, but not on other devices. A restart does not announce it again.
func TestServiceAnnounced(t *testing.T) {
	for _, tt := range []struct{ on, elsewhere string }{{"192.0.2.200", "203.0.113.9"}, {"2001:db8:1::c8", "2001:db8:77::9"}} {
		t.Run(tt.on, func(t *testing.T) {
			n := newNetwork(t)
			n.attach()
			n.serve()
			n.backends.ServeTCP(t, "[2001:db8:2::11]:8080", "tcp-0")
			n.ok(n.d.Ports().Update(context.Background(), "out0", datapath.Port{Device: "out0", Role: datapath.RolePort}))
			on, elsewhere := netip.MustParseAddr(tt.on), netip.MustParseAddr(tt.elsewhere)
			backend := "10.0.1.11"
			if on.Is6() {
				backend = "2001:db8:2::11"
			}
			n.client.Run(t, "ip", "neigh", "replace", tt.on, "lladdr", "02:00:5e:99:99:99", "dev", "eth0", "nud", "stale")
			for _, ns := range []*testnet.NS{n.client, n.backends} {
				ns.Run(t, "ip", "route", "replace", tt.elsewhere, "dev", "eth0")
			}
			s := datapath.Service{Announce: true, OtherPorts: datapath.OtherPortsReject, Backends: backendAddrs(8080, backend)}
			for _, a := range []netip.Addr{on, elsewhere} {
				s.Frontends = append(s.Frontends, frontend(netip.AddrPortFrom(a, 80).String(), datapath.TCP))
			}
			n.put("web", s)
			mac := n.node.MAC(t, "in0")
			is := func(address string) bool {
				return strings.Contains(n.client.Run(t, "ip", "neigh", "show", address), net.HardwareAddr(mac[:]).String())
			}
			testnet.Eventually(t, 5*time.Second, "hosts with another hardware address are updated", func() bool { return is(tt.on) })
			for _, a := range []netip.Addr{on, elsewhere} {
				n.answers("announced", netip.AddrPortFrom(a, 80).String(), "tcp-0")
				if _, err := testtraffic.TalkTCP(n.client, "", netip.AddrPortFrom(a, 81).String(), nil); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("%s, another port: %v, want a refusal", a, err)
				}
			}
			if c, err := n.backends.Dial("tcp", "", netip.AddrPortFrom(elsewhere, 80).String(), 1500*time.Millisecond); err == nil {
				c.Close()
				t.Error("it is answered for on a device that is no uplink")
			}
			n.restart("")
			n.client.Run(t, "ip", "neigh", "flush", "dev", "eth0")
			n.answers("by a later run, before it is configured", netip.AddrPortFrom(on, 80).String(), "tcp-0")
			n.translate(map[datapath.NATName]datapath.NAT{"other": {Addresses: prefixes("203.0.113.192/28")}})
			if again := n.d.announcer.Pending(); len(again) > 0 {
				t.Errorf("an address that stayed announced is announced again: %v", again)
			}
			n.client.Run(t, "ip", "neigh", "flush", "dev", "eth0")
			n.answers("when the other objects are configured", netip.AddrPortFrom(on, 80).String(), "tcp-0")
			n.attach()
			s.Announce = false
			n.put("web", s)
			n.client.Run(t, "ip", "neigh", "flush", "dev", "eth0")
			if c, err := n.client.Dial("tcp", "", netip.AddrPortFrom(on, 80).String(), 1500*time.Millisecond); err == nil {
				c.Close()
				t.Error("it is answered although no object announces it")
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/port"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// expectOwn checks the settings of the node's loopback device that the data plane may change.
func (n *network) expectOwn(when, want string) {
	n.t.Helper()
	for _, s := range []string{"accept_local", "route_localnet"} {
		n.node.Do(n.t, func() error {
			got, err := os.ReadFile("/proc/sys/net/ipv4/conf/lo/" + s)
			if got := strings.TrimSpace(string(got)); got != want {
				n.t.Errorf("%s: net.ipv4.conf.lo.%s is %q, want %q", when, s, got, want)
			}
			return err
		})
	}
}

// TestLoopback: the node reaches services and translated destinations at its own addresses, with
// both kinds of hooks. Other packets are unchanged, and so are all packets once services and rules
// are deleted.
func TestLoopback(t *testing.T) {
	for name, how := range bothHooks {
		t.Run(name, func(t *testing.T) {
			if name == "tcx" {
				requireTCX(t)
			}
			n := newNetwork(t)
			n.restart(how.attach)
			n.attach()
			n.serve()
			n.backends.ServeTCP(t, "[2001:db8:2::11]:8080", "six-0")
			n.node.ServeTCP(t, "192.0.2.1:22", "own")
			n.node.ServeTCP(t, "10.0.1.1:8080", "node")
			ctx := context.Background()
			answers := func(what, addr, want string) {
				t.Helper()
				if got, err := testtraffic.TalkTCP(n.node, "", addr, []byte("hello")); err != nil || got != want {
					t.Errorf("%s: %s answers %q, %v, want %q", what, addr, got, err, want)
				}
			}
			s := datapath.Service{
				Frontends: []datapath.Frontend{frontend("192.0.2.1:80", datapath.TCP), frontend("192.0.2.1:80", datapath.UDP), frontend("[2001:db8:1::1]:80", datapath.TCP)},
				Backends:  backendAddrs(8080, "10.0.1.12", "2001:db8:2::11"),
			}
			n.put("web", s)
			n.put("own", datapath.Service{Frontends: []datapath.Frontend{frontend("192.0.2.1:81", datapath.TCP)}, Backends: backendAddrs(8080, "10.0.1.1")})
			n.put("none", datapath.Service{Frontends: []datapath.Frontend{frontend("192.0.2.1:82", datapath.TCP)}})
			answers("a service", "192.0.2.1:80", "tcp-1")
			answers("a service, IPv6", "[2001:db8:1::1]:80", "six-0")
			answers("a service with the node for a backend", "192.0.2.1:81", "node")
			answers("an address of no Service", "192.0.2.1:22", "own")
			if got, err := testtraffic.TalkUDP(n.node, "", "192.0.2.1:80", []byte("hello")); err != nil || got != "udp-1" {
				t.Errorf("UDP: %q, %v", got, err)
			}
			begin := time.Now()
			if _, err := testtraffic.TalkTCP(n.node, "", "192.0.2.1:82", nil); err == nil || time.Since(begin) > testnet.OnThisMachine(2*time.Second) {
				t.Errorf("a service without backends: %v after %s, want a refusal at once", err, time.Since(begin))
			}
			n.restart(how.attach)
			answers("by a later run", "192.0.2.1:80", "tcp-1")
			n.attach()
			for _, name := range []datapath.ServiceName{"web", "own", "none"} {
				n.ok(n.d.Services().Delete(ctx, name))
			}
			n.ok(n.d.Maintain(ctx))
			if hooks := n.hooked("lo"); len(hooks) != 0 {
				t.Errorf("without anything for it the loopback has %v", hooks)
			}
			n.expectOwn("without anything for it", "0")
			n.translate(map[datapath.NATName]datapath.NAT{"port": {
				Type: datapath.DNAT, Match: datapath.Match{Destination: prefixes("192.0.2.1/32"), Protocols: []datapath.Protocol{datapath.TCP}, Ports: []datapath.PortRange{{First: 90, Last: 90}}},
				Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.1.13/32")}, Ports: []datapath.PortRange{{First: 8080, Last: 8080}},
			}})
			answers("a rule", "192.0.2.1:90", "tcp-2")
			n.expectOwn("with a rule", "1")
			n.translate(nil)
			testnet.Eventually(t, 3*time.Second, "it is detached", func() bool {
				n.ok(n.d.Maintain(ctx))
				return len(n.hooked("lo")) == 0
			})
			n.put("web", s)
			n.ok(n.d.Maintain(ctx))
			n.expectOwn("with a service again", "1")
			n.d.Close()
			n.node.Do(t, func() error { return Detach(n.config, slog.New(slog.NewTextHandler(t.Output(), nil))) })
			n.d = nil
			n.expectOwn("with everything detached", "0")
		})
	}
}

// TestServiceBeforePorts: the node reaches a service as soon as the first port is attached,
// although the service was updated before.
func TestServiceBeforePorts(t *testing.T) {
	n := newNetwork(t)
	n.serve()
	n.put("web", datapath.Service{
		Frontends: []datapath.Frontend{frontend("192.0.2.1:80", datapath.TCP)}, Backends: backendAddrs(8080, "10.0.1.12"),
	})
	n.attach()
	if got, err := testtraffic.TalkTCP(n.node, "", "192.0.2.1:80", []byte("hello")); err != nil {
		t.Errorf("the node gets %q, %v", got, err)
	}
}

// TestLoopbackKilledWhileAttaching: a run that was killed while it attached to the loopback device
// leaves pins for the settings to be restored, but no hook; the next run uses these pins.
func TestLoopbackKilledWhileAttaching(t *testing.T) {
	requireTCX(t)
	n := newNetwork(t)
	n.attach()
	n.put("web", datapath.Service{Frontends: []datapath.Frontend{frontend("192.0.2.1:80", datapath.TCP)}, Backends: backendAddrs(8080, "10.0.1.12")})
	n.ok(n.d.Maintain(t.Context()))
	n.expectOwn("with a service", "1")
	folder := n.d.ports.Folder(netnsHost, port.Loopback)
	n.d.Close()
	if err := os.Remove(filepath.Join(folder, "egress")); err != nil {
		t.Fatal(err)
	}
	n.restart("tcx")
	n.attach()
	n.ok(n.d.Maintain(t.Context()))
	if hooks := n.hooked("lo"); len(hooks) != 1 {
		t.Errorf("the loopback has %v", hooks)
	}
	n.expectOwn("with the service of before", "1")
	n.d.Close()
	n.node.Do(t, func() error { return Detach(n.config, slog.New(slog.NewTextHandler(t.Output(), nil))) })
	n.d = nil
	n.expectOwn("with everything detached", "0")
}

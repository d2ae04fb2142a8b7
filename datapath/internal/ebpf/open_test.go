// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/port"
	"github.com/loxilight/loxilight/internal/testnet"
)

// network is a node with the data plane on it, a client on one side and three backends on the
// other.
//
//	client 192.0.2.10 ── 192.0.2.1 in0 [node] out0 10.0.1.1 ── 10.0.1.11 to .13 backends
//	    2001:db8:1::10   2001:db8:1::1              2001:db8:2::1   2001:db8:2::11 to ::13
type network struct {
	t                      *testing.T
	node, client, backends *testnet.NS
	config                 datapath.Config
	d                      *DataPlane
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{t: t, node: testnet.New(t, "node"), client: testnet.New(t, "client"), backends: testnet.New(t, "backends")}
	testnet.Veth(t,
		testnet.Port{NS: n.node, Name: "in0", Addrs: []string{"192.0.2.1/24", "2001:db8:1::1/64"}},
		testnet.Port{NS: n.client, Name: "eth0", Addrs: []string{"192.0.2.10/24", "2001:db8:1::10/64"}})
	testnet.Veth(t,
		testnet.Port{NS: n.node, Name: "out0", Addrs: []string{"10.0.1.1/24", "2001:db8:2::1/64"}},
		testnet.Port{NS: n.backends, Name: "eth0", Addrs: []string{
			"10.0.1.11/24", "10.0.1.12/24", "10.0.1.13/24", "2001:db8:2::11/64", "2001:db8:2::12/64", "2001:db8:2::13/64"}})
	n.node.Forward(t)
	for _, via := range []string{"192.0.2.1", "2001:db8:1::1"} {
		n.client.Route(t, "default", via)
	}
	for _, via := range []string{"10.0.1.1", "2001:db8:2::1"} {
		n.backends.Route(t, "default", via)
	}
	n.config = datapath.Config{
		PinDir:          filepath.Join(testnet.BPFFS(t), "loxilight"),
		SwitchNamespace: "host",
		Tables: datapath.Tables{
			Connections: 4096, Services: 256, Backends: 256, Affinity: 256, Ranges: 64, Rules: 256, Entities: 512,
		},
		SweepInterval: 50 * time.Millisecond,
	}
	t.Cleanup(n.end)
	n.reuse()
	n.open()
	n.keep()
	return n
}

// open opens the data plane as a daemon in the node's namespace does.
func (n *network) open() {
	n.t.Helper()
	n.node.Do(n.t, func() (err error) {
		n.d, err = Open(n.config, slog.New(slog.NewTextHandler(n.t.Output(), nil)))
		return err
	})
}

// host returns the namespace of the node.
func (n *network) host() *namespace.Namespace {
	n.t.Helper()
	z, err := n.d.namespaces.Open(netnsHost)
	n.ok(err)
	return z
}

// port returns a port and its programs.
func (n *network) port(name datapath.PortName) port.Attached {
	n.t.Helper()
	p, ok := n.d.ports.Get(name)
	if !ok {
		n.t.Fatalf("no port %q", name)
	}
	return p
}

// guarded returns the device of a port, as package guard identifies it.
func (n *network) guarded(name datapath.PortName) guard.Device {
	n.t.Helper()
	p := n.port(name)
	return guard.Device{Netns: p.Netns, Ifindex: p.Ifindex}
}

// eachHook calls f for every program on every port, until f fails.
func (n *network) eachHook(f func(hook.Attachment) error) error {
	for _, p := range n.d.ports.All() {
		for _, h := range p.Hooks {
			if err := f(h); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *network) ok(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *network) attach() {
	n.t.Helper()
	for _, device := range []string{"in0", "out0"} {
		n.ok(n.d.Ports().Update(context.Background(), datapath.PortName(device), datapath.Port{Device: device}))
	}
}

// hooked returns the tcx programs on a device of the node, and its qdiscs that can hold filters.
func (n *network) hooked(device string) (names []string) {
	n.t.Helper()
	n.node.Do(n.t, func() error {
		dev, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		qdiscs, err := netlink.QdiscList(dev)
		if err != nil {
			return err
		}
		for _, q := range qdiscs {
			if q.Type() == "clsact" || q.Type() == "ingress" {
				names = append(names, q.Type())
			}
		}
		for _, side := range hook.Sides() {
			programs, err := link.QueryPrograms(link.QueryOptions{Target: dev.Attrs().Index, Attach: side.AttachType})
			if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {
				continue // before Linux 6.6
			}
			if err != nil {
				return err
			}
			for range programs.Programs {
				names = append(names, "tcx "+side.Name)
			}
		}
		return nil
	})
	return names
}

func backendAddrs(port uint16, addrs ...string) (list []datapath.Backend) {
	for _, a := range addrs {
		list = append(list, datapath.Backend{Addr: netip.AddrPortFrom(netip.MustParseAddr(a), port), Weight: 1})
	}
	return list
}

func frontend(addr string, p datapath.Protocol) datapath.Frontend {
	return datapath.Frontend{Addr: netip.MustParseAddrPort(addr), Protocol: p}
}

// ask opens a TCP connection to addr and returns the name of the server that answered.
func (n *network) ask(addr string) (string, error) {
	var name string
	err := n.client.Try(func() error {
		c, err := net.DialTimeout("tcp", addr, 3*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return err
		}
		var b [64]byte
		k, err := c.Read(b[:])
		name = strings.TrimSpace(string(b[:k]))
		return err
	})
	return name, err
}

func TestServiceAcrossTheNode(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	for i, a := range []string{"10.0.1.11", "10.0.1.12", "10.0.1.13"} {
		n.backends.ServeTCP(t, a+":8080", fmt.Sprint("v4-", i))
	}
	for i, a := range []string{"[2001:db8:2::11]", "[2001:db8:2::12]", "[2001:db8:2::13]"} {
		n.backends.ServeTCP(t, a+":8080", fmt.Sprint("v6-", i))
	}
	ctx := context.Background()
	n.ok(n.d.Services().Update(ctx, "web", datapath.Service{
		Frontends: []datapath.Frontend{frontend("198.51.100.10:80", datapath.TCP), frontend("[2001:db8:f::10]:80", datapath.TCP)},
		Backends: append(backendAddrs(8080, "10.0.1.11", "10.0.1.12", "10.0.1.13"),
			backendAddrs(8080, "2001:db8:2::11", "2001:db8:2::12", "2001:db8:2::13")...),
		Algorithm:   datapath.RoundRobin,
		IdleTimeout: datapath.DefaultIdleTimeout(),
	}))
	for family, addr := range []string{"198.51.100.10:80", "[2001:db8:f::10]:80"} {
		seen := map[string]int{}
		for range 9 {
			name, err := n.ask(addr)
			if err != nil {
				t.Fatalf("%s: %v", addr, err)
			}
			seen[name]++
		}
		for i := range 3 {
			if name := fmt.Sprintf("v%d-%d", 4+2*family, i); seen[name] != 3 {
				t.Errorf("%s: spread %v, want 3 each", addr, seen)
				break
			}
		}
	}
	c, ok, err := n.d.Telemetry().ServiceCounters(ctx, "web")
	if err != nil || !ok || c.Connections != 18 || c.Packets < 18*7 {
		t.Errorf("counters %+v, %v, %v; want 18 connections", c, ok, err)
	}
	list, _, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{}, "", 100)
	if err != nil || len(list) != 18 {
		t.Errorf("%d connections, %v; want 18", len(list), err)
	}
	node, err := n.d.Telemetry().NodeCounters(ctx)
	if slow, tracked := node.Verdicts["slow"], node.Verdicts["fast"]; err != nil || slow == 0 || slow > 18 || tracked < 18*5 {
		t.Errorf("node counters %+v, %v; want the first packets to each neighbour by the kernel, the others tracked", node, err)
	}
}

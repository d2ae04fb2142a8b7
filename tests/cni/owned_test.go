// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// repairedWithin is how long an external change may last on an idle machine.
const repairedWithin = 3 * time.Second

// change is an external change to an object that is ours according to ownership.md. The command
// look prints the object; soon after the command do, it must print the same as before.
type change struct {
	row  string // the row of the document: the beginning of its first cell
	name string
	in   string // where the commands do and look run: host or switch
	do   string
	look string
}

// localRoute6 prints a local IPv6 route without its metric.
func localRoute6(address, device string) string {
	return "ip -6 route show table local type local dev " + device + " " + address + " | sed 's/metric [0-9]*//'"
}

// ownedObjects are the objects of a node that uses all features.
const ownedObjects = `
kind: Tunnel
name: mesh
spec: {device: hstunnel, type: vxlan, vni: 4660}
---
kind: Peer
name: node2
spec: {underlay: [192.0.2.77], prefixes: [10.74.2.0/24, "fd74:2::/64"], tunnel: mesh}
---
kind: Route
name: far
spec: {prefix: 203.0.113.0/24, netns: switch, via: 10.73.3.2}
---
kind: Route
name: near
spec: {prefix: 198.51.100.0/24, via: 192.0.2.77}
---
kind: Bridge
name: extra
spec: {device: br1, addresses: [10.79.1.1/24, "fd79:1::1/64"], mtu: 1400}
---
kind: Service
name: web
spec: {frontends: ["198.51.100.10:80/tcp"], backends: [{address: "10.73.3.3:80"}]}
`

// changes has one or more entries for each tested row of ownership.md.
var changes = []change{
	{row: "tcx links, ingress and egress", name: "tcx", in: "host", do: "true", look: "true"}, // tests/e2e: TestDetachedLinks
	{row: "cls_bpf filters", name: "filter deleted", in: "switch", do: "tc filter del dev hs1 ingress", look: "tc filter show dev hs1 ingress"},
	{row: "cls_bpf filters", name: "clsact deleted", in: "switch", do: "tc qdisc del dev hs1 clsact", look: "tc filter show dev hs1 egress"},
	{row: "`net.ipv4.conf.lo.accept_local`", name: "accept_local", in: "host", do: "sysctl -qw net.ipv4.conf.lo.accept_local=0", look: "sysctl net.ipv4.conf.lo.accept_local"},
	{row: "`net.ipv4.conf.lo.accept_local`", name: "route_localnet", in: "host", do: "sysctl -qw net.ipv4.conf.lo.route_localnet=0", look: "sysctl net.ipv4.conf.lo.route_localnet"},
	{row: "sysctls of that namespace", name: "IPv4 forwarding", in: "switch", do: "sysctl -qw net.ipv4.ip_forward=0", look: "sysctl net.ipv4.ip_forward"},
	{row: "sysctls of that namespace", name: "IPv6 forwarding", in: "switch", do: "sysctl -qw net.ipv6.conf.all.forwarding=0", look: "sysctl net.ipv6.conf.all.forwarding net.ipv6.conf.hsvlan110.forwarding"},
	{row: "sysctls of that namespace", name: "rp_filter", in: "switch", do: "sysctl -qw net.ipv4.conf.all.rp_filter=1", look: "sysctl net.ipv4.conf.all.rp_filter"},
	{row: "veth `switch.hostDevice`", name: "deleted", in: "host", do: "ip link del loxi_test", look: "ip -br link show loxi_test"},
	{row: "veth `switch.hostDevice`", name: "down", in: "host", do: "ip link set loxi_test down", look: "ip -br link show loxi_test"},
	{row: "veth `switch.hostDevice`", name: "other end down", in: "switch", do: "ip link set hs_host down", look: "ip -br link show hs_host"},
	{row: "veth `switch.hostDevice`", name: "address", in: "host", do: "ip link set loxi_test address 02:00:00:00:00:99", look: "ip -br link show loxi_test"},
	{row: "veth `switch.hostDevice`", name: "other end's address", in: "switch", do: "ip link set hs_host address 02:00:00:00:00:99", look: "ip -br link show hs_host"},
	{row: "veth `switch.hostDevice`", name: "alias", in: "host", do: "ip link set loxi_test alias other", look: "ip -d link show loxi_test"},
	{row: "bridges", name: "deleted", in: "switch", do: "ip link del br1", look: "ip -br addr show br1"},
	{row: "bridges", name: "down", in: "switch", do: "ip link set br1 down", look: "ip -br addr show br1"},
	{row: "bridges", name: "ageing", in: "switch", do: "ip link set br1 type bridge ageing_time 100", look: "ip -d link show br1"},
	{row: "bridges", name: "MTU", in: "switch", do: "ip link set br1 mtu 1300", look: "ip -d link show br1"},
	{row: "bridges", name: "hardware address", in: "switch", do: "ip link set br1 address 02:00:00:00:00:99", look: "ip -br link show br1"},
	{row: "bridges", name: "alias", in: "switch", do: "ip link set br1 alias other", look: "ip -d link show br1"},
	{row: "ports of bridges, their VLANs", name: "taken out", in: "switch", do: "ip link set hs_host nomaster", look: "bridge link show dev hs_host"},
	{row: "an Endpoint's device as a port of its bridge", name: "taken out", in: "switch", do: "ip link set hs1 nomaster", look: "bridge link show dev hs1"},
	{row: "an Endpoint's device as a port of its bridge", name: "down", in: "switch", do: "ip link set hs1 down", look: "ip -br link show hs1"},
	{row: "addresses of bridges", name: "IPv4", in: "switch", do: "ip addr del 10.79.1.1/24 dev br1", look: "ip -br addr show br1"},
	{row: "addresses of bridges", name: "IPv6", in: "switch", do: "ip addr del fd79:1::1/64 dev br1", look: "ip -br addr show br1"},
	{row: "routes that the kernel creates for these addresses", name: "IPv4, of a bridge", in: "switch", do: "ip route del 10.73.3.0/24 dev hsvlan110", look: "ip route show 10.73.3.0/24"},
	{row: "routes that the kernel creates for these addresses", name: "IPv6, of a bridge", in: "switch", do: "ip -6 route del 2001:db8:73::/64 dev hsvlan110", look: "ip -6 route show 2001:db8:73::/64"},
	{row: "routes that the kernel creates for these addresses", name: "IPv4, of the host", in: "host", do: "ip route del 10.73.3.0/24", look: "ip route show 10.73.3.0/24"},
	{row: "routes that the kernel creates for these addresses", name: "IPv6, of the host", in: "host", do: "ip -6 route del 2001:db8:73::/64", look: "ip -6 route show 2001:db8:73::/64"},
	{row: "routes that the kernel creates for these addresses", name: "IPv4, to the address", in: "switch", do: "ip route del local 10.73.3.1 dev hsvlan110 table local", look: "ip route show table local 10.73.3.1"},
	{row: "routes that the kernel creates for these addresses", name: "IPv6, to the address", in: "switch", do: "ip -6 route del local 2001:db8:73::1 dev hsvlan110 table local", look: localRoute6("2001:db8:73::1", "hsvlan110")},
	{row: "routes that the kernel creates for these addresses", name: "IPv6, to the address of the host", in: "host", do: "ip -6 route del local 2001:db8:73::2 dev loxi_test table local", look: localRoute6("2001:db8:73::2", "loxi_test")},
	{row: "routes that the kernel creates for these addresses", name: "IPv6, to multicast addresses", in: "switch", do: "ip -6 route del multicast ff00::/8 dev hsvlan110 table local", look: "ip -6 route show table local type multicast dev hsvlan110"},
	{row: "veth DEVICE – DEVICE`-e` of a tunnel", name: "deleted", in: "switch", do: "ip link del hstunnel", look: "ip -br link show hstunnel"},
	{row: "veth DEVICE – DEVICE`-e` of a tunnel", name: "down", in: "switch", do: "ip link set hstunnel-e down", look: "ip -br link show hstunnel-e"},
	{row: "veth DEVICE – DEVICE`-e` of a tunnel", name: "MTU", in: "switch", do: "ip link set hstunnel mtu 1000", look: "ip -d link show hstunnel"},
	{row: "veth DEVICE – DEVICE`-e` of a tunnel", name: "ARP", in: "switch", do: "ip link set hstunnel arp on", look: "ip -br link show hstunnel"},
	{row: "veth DEVICE – DEVICE`-e` of a tunnel", name: "hardware address", in: "switch", do: "ip link set hstunnel address 02:00:00:00:00:99", look: "ip -br link show hstunnel"},
	{row: "veth DEVICE – DEVICE`-e` of a tunnel", name: "alias of the other end", in: "switch", do: "ip link set hstunnel-e alias other", look: "ip -d link show hstunnel-e"},
	{row: "hooks on both ends of it", name: "clsact", in: "switch", do: "true", look: "true"}, // links: tests/e2e: TestDetachedLinks
	{row: "routes in the main tables", name: "switch", in: "switch", do: "ip route del 203.0.113.0/24", look: "ip route show 203.0.113.0/24"},
	{row: "routes in the main tables", name: "host", in: "host", do: "ip route del 198.51.100.0/24", look: "ip route show 198.51.100.0/24"},
	{row: "routes in the main tables", name: "Peer", in: "switch", do: "ip route del 10.74.2.0/24", look: "ip route show 10.74.2.0/24"},
	{row: "routes in the main tables", name: "Peer, IPv6", in: "switch", do: "ip -6 route del fd74:2::/64", look: "ip -6 route show fd74:2::/64"},
	{row: "the bridge of the pod networks", name: "default route", in: "switch", do: "ip route del default", look: "ip route show default"},
	{row: "the bridge of the pod networks", name: "address", in: "switch", do: "ip addr del 10.73.3.1/24 dev hsvlan110", look: "ip -br addr show hsvlan110"},
	{row: "routes of the host to prefixes of Peers", name: "IPv4", in: "host", do: "ip route del 10.74.2.0/24", look: "ip route show 10.74.2.0/24"},
	{row: "routes of the host to prefixes of Peers", name: "IPv6", in: "host", do: "ip -6 route del fd74:2::/64", look: "ip -6 route show fd74:2::/64"},
	{row: "addresses and MTU of `switch.hostDevice`", name: "IPv4", in: "host", do: "ip addr del 10.73.3.2/24 dev loxi_test", look: "ip -br addr show loxi_test"},
	{row: "addresses and MTU of `switch.hostDevice`", name: "IPv6", in: "host", do: "ip addr del 2001:db8:73::2/64 dev loxi_test", look: "ip -br addr show loxi_test"},
	{row: "addresses and MTU of `switch.hostDevice`", name: "MTU", in: "host", do: "ip link set loxi_test mtu 1300", look: "ip -d link show loxi_test"},
	{row: "addresses and MTU of `switch.hostDevice`", name: "MTU of the other end", in: "switch", do: "ip link set hs_host mtu 1300", look: "ip -o link show hs_host | grep -o 'mtu [0-9]*'"},
}

// elsewhere are the rows that other tests change, or that are about files.
var elsewhere = map[string]string{
	"directory `pinDir/layout-N`":                           "tests/e2e: TestPinsRestored",
	"BPF file system":                                       "tests/e2e: TestPinsRestored",
	"the program of the egress hook on the host's loopback": "tests/e2e: TestDetachedLinks",
	"a link in XDP":                                         "tests/e2e: TestXDPStrangers",
	"tcx links or cls_bpf filters of mirrors":               "datapath/internal/ebpf: TestMirrorRepaired, TestMirrorKept",
	"shadow programs on the same hooks":                     "exists during a start only",
	"`clsact` qdisc":                                        "deleted above: it is not ours then",
	"network namespace `switch.namespace`":                  "tests/e2e: TestSwitch",
	"a veth pair for each interface of a pod":               "tests/cni: pods",
	"static, sticky FDB entries":                            "tests/security: TestS5FDB",
	"directories `stateDir/pods`":                           "files",
	"file `stateDir/addresses`":                             "files",
	"file `stateDir/network.journal`":                       "files",
}

// TestOwned changes and deletes each object of ownership.md in turn, under traffic between pods, to
// the gateway and to the host. Each must soon be restored.
func TestOwned(t *testing.T) {
	s := newSite(t)
	list := s.list("1.1.0", nil)
	p := s.addPod(list, "c1")
	s.Apply(ownedObjects)
	reached := []string{"10.73.3.1", "2001:db8:73::1", "192.0.2.77", "2001:db8:2::77"} // gateways, and a machine outside
	for _, c := range changes {
		if c.do == "true" {
			continue
		}
		t.Run(c.row+"/"+c.name, func(t *testing.T) {
			at := s.node
			if c.in == "switch" {
				at = testnet.Named(t, s.name)
			}
			within := testnet.OnThisMachine(repairedWithin)
			want := s.settled(t, at, c.look)
			before := s.Repairs()
			if out, err := at.TryRun("sh", "-c", c.do); err != nil {
				t.Fatalf("%s: %v %s", c.do, err, out)
			}
			begin := time.Now()
			got := ""
			deadline := begin.Add(within)
			for got = "?"; got != want && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
				got, _ = s.looks(at, c.look)
			}
			if got != want {
				t.Errorf("%s: not repaired:\n%s\nwant\n%s", c.do, got, want)
				return
			}
			t.Logf("repaired after %s", time.Since(begin).Round(10*time.Millisecond))
			testnet.Eventually(t, within, "it is counted as a repair", func() bool { return s.Repairs() > before })
			for _, a := range reached {
				testnet.Eventually(t, within, "the pod reaches "+a, func() bool {
					return p.pingWithin(netip.MustParseAddr(a), testnet.OnThisMachine(soon)) == nil
				})
			}
			t.Logf("packets pass after %s", time.Since(begin).Round(10*time.Millisecond))
		})
	}
}

var volatile = regexp.MustCompile(`(?m)^\d+: |@\w+|link-netnsid \d+|promiscuity \d+|allmulti \d+|@if\d+|(gc|hello|tcn|topology_change)_timer +[\d.]+|topology_change \d|designated_root \S+|root_port \d+|bridge_id \S+|state (UP|UNKNOWN|LOWERLAYERDOWN)|numtxqueues.*|id \d+ tag \S+|pref \d+|chain \d+|jited`)

// looks returns the output of a command, without volatile fields.
func (s *site) looks(ns *testnet.NS, command string) (string, error) {
	out, err := ns.TryRun("sh", "-c", command)
	if err == nil && strings.TrimSpace(out) == "" {
		err = fmt.Errorf("%s prints nothing", command)
	}
	return volatile.ReplaceAllString(out, ""), err
}

// settled waits until all objects are Ready, and returns the output of a command.
func (s *site) settled(t *testing.T, at *testnet.NS, command string) (out string) {
	t.Helper()
	testnet.Eventually(t, remakePatience, command+": the object exists, and all is Ready", func() bool {
		status, err := s.Client.Status(t.Context())
		if err != nil || len(status.NotReady) > 0 {
			return false
		}
		out, err = s.looks(at, command)
		return err == nil
	})
	return out
}

// TestOwnershipRows compares the rows of the document with the changes that are tested.
func TestOwnershipRows(t *testing.T) {
	page, err := os.ReadFile("../../docs/ownership.md")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || strings.Contains(cells[1], "---") || strings.TrimSpace(cells[1]) == "object" {
			continue
		}
		rows++
		first := strings.TrimSpace(cells[1])
		found := false
		for row := range elsewhere {
			if strings.HasPrefix(first, row) {
				found, used[row] = true, true
			}
		}
		for _, c := range changes {
			if strings.HasPrefix(first, c.row) {
				found, used[c.row] = true, true
			}
		}
		if !found {
			t.Errorf("no test changes the row %q of ownership.md", first)
		}
	}
	for _, c := range changes {
		if !used[c.row] {
			t.Errorf("ownership.md has no row %q", c.row)
			used[c.row] = true
		}
	}
	for row := range elsewhere {
		if !used[row] {
			t.Errorf("ownership.md has no row %q", row)
		}
	}
	if rows < 20 {
		t.Errorf("%d rows", rows)
	}
}

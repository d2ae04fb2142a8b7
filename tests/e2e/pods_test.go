// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// podSite is a node with one pod, made by hand, and a machine outside that has a route to pods for
// only one of its addresses.
//
//	outside 192.0.2.77 ── eth0 192.0.2.1 [node] loxi_test 10.73.3.2 ══ hs_host ┐
//	        198.51.100.9                             pod 10.73.3.3 ── hs1 ─────┴ hsvlan110 10.73.3.1 [switch]
//
// IPv6 likewise: 2001:db8:2::77 and ::1, 2001:db8:c6::9, 2001:db8:73::1 to ::3.
type podSite struct {
	*testdaemon.Daemon
	t                  *testing.T
	node, outside, pod *testnet.NS
	name               string // of the switch's namespace
}

const podObjects = `
kind: Interface
name: eth0
spec: {device: eth0}
---
kind: PodNetwork
name: default
spec: {subnets: [10.73.3.0/24, "2001:db8:73::/64"], masquerade: {enabled: true, except: [198.51.100.0/24, "2001:db8:c6::/48"]}}
`

func newPodSite(t *testing.T) *podSite {
	t.Helper()
	s := &podSite{t: t, node: testnet.New(t, "node"), outside: testnet.New(t, "outside"), name: testnet.UniqueName("switch")}
	testnet.Veth(t, testnet.Port{NS: s.node, Name: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8:2::1/64"}},
		testnet.Port{NS: s.outside, Name: "eth0", Addrs: []string{"192.0.2.77/24", "2001:db8:2::77/64", "198.51.100.9/32", "2001:db8:c6::9/128"}})
	carriers(t, s.node)
	s.node.Route(t, "198.51.100.0/24", "192.0.2.77")
	s.node.Route(t, "2001:db8:c6::/48", "2001:db8:2::77")
	s.node.Forward(t)
	s.Daemon = testdaemon.New(t, s.node, programs, "switch: {namespace: "+s.name+"}",
		"tables: {connections: 65536, services: 4096, backends: 65536, affinity: 1024, ranges: 1024}")
	t.Cleanup(func() {
		if s.there() {
			testnet.DeleteNamed(t, s.name)
		}
	})
	return s
}

func (s *podSite) there() bool {
	const nsfs = 0x6e736673
	var at unix.Statfs_t
	return unix.Statfs(filepath.Join("/run/netns", s.name), &at) == nil && at.Type == nsfs
}

// plugIn creates the pod, on the current switch.
func (s *podSite) plugIn() {
	s.t.Helper()
	s.pod = testnet.New(s.t, "pod")
	s.t.Run("plug in", func(t *testing.T) { // closes the namespace at the end
		sw := testnet.Named(t, s.name)
		testnet.Veth(t, testnet.Port{NS: s.pod, Name: "eth0", Addrs: []string{"10.73.3.3/24", "2001:db8:73::3/64"}}, testnet.Port{NS: sw, Name: "hs1"})
		sw.Run(t, "ip", "link", "set", "hs1", "master", "hsvlan110")
	})
	s.pod.Route(s.t, "default", "10.73.3.1")
	s.pod.Route(s.t, "default", "2001:db8:73::1")
	s.Apply("kind: Interface\nname: hs1\nspec: {device: hs1, netns: switch, role: port}\n")
}

// reach connects to a server and checks that it sees the client with a given address.
func (s *podSite) reach(from *testnet.NS, at *testnet.Server, target, seen string) {
	s.t.Helper()
	before := len(at.Clients())
	testnet.Eventually(s.t, patience, target+" answers", func() bool {
		_, err := testtraffic.TalkTCP(from, "", target, []byte("some words"))
		return err == nil
	})
	clients := at.Clients()
	if len(clients) <= before || clients[len(clients)-1] != netip.MustParseAddr(seen) {
		s.t.Errorf("%s saw %v, want %s last", target, clients, seen)
	}
}

// everyWay connects a pod and its node with each other, and the pod with the outside.
func (s *podSite) everyWay() {
	s.t.Helper()
	for _, a := range []struct{ pod, host, node, outside, excepted, outsideNode string }{
		{"10.73.3.3", "10.73.3.2", "192.0.2.1", "192.0.2.77", "198.51.100.9", "192.0.2.1"},
		{"2001:db8:73::3", "2001:db8:73::2", "2001:db8:2::1", "2001:db8:2::77", "2001:db8:c6::9", "2001:db8:2::1"},
	} {
		at := func(host string) string { return netip.AddrPortFrom(netip.MustParseAddr(host), 4660).String() }
		pod := s.pod.ServeTCP(s.t, at(a.pod), "pod")
		host := s.node.ServeTCP(s.t, at(a.host), "host")
		node := s.node.ServeTCP(s.t, at(a.node), "node")
		outside := s.outside.ServeTCP(s.t, at(a.outside), "outside")
		excepted := s.outside.ServeTCP(s.t, at(a.excepted), "excepted")
		s.reach(s.node, pod, at(a.pod), a.host)
		s.reach(s.pod, host, at(a.host), a.pod)
		s.reach(s.pod, node, at(a.node), a.pod)
		s.reach(s.pod, outside, at(a.outside), a.node)
		s.reach(s.pod, excepted, at(a.excepted), a.pod)
		for _, server := range []*testnet.Server{pod, host, node, outside, excepted} {
			server.Close()
		}
	}
}

// TestPodNetwork applies a PodNetwork, lets a pod and the host talk to each other and to the
// outside through kill -9 and an external deletion of the namespace, and removes it.
func TestPodNetwork(t *testing.T) {
	s := newPodSite(t)
	// The outside has routes back to pods for addresses excepted from masquerade.
	for _, r := range [][]string{{"10.73.3.0/24", "192.0.2.1", "198.51.100.9"}, {"2001:db8:73::/64", "2001:db8:2::1", "2001:db8:c6::9"}} {
		s.outside.Run(t, "ip", "route", "add", r[0], "via", r[1], "src", r[2])
	}
	s.Start()
	before := networkOf(t, s.node)
	s.Apply(podObjects)
	s.plugIn()
	s.everyWay()
	sw := func(words ...string) string {
		return s.node.Run(t, "ip", append([]string{"-n", s.name}, words...)...)
	}
	for words, want := range map[string][]string{
		"get podnetworks":         {"default", "Ready", "10.73.3.0/24,2001:db8:73::/64", "0,0", "yes"},
		"get podnetworks -o wide": {"10.73.3.1,2001:db8:73::1", "10.73.3.2,2001:db8:73::2", "1500"},
		"kernel bridges":          {"hsvlan110", "PodNetwork/default", "hs1,hs_host"},
		"kernel routes":           {"0.0.0.0/0", "10.73.3.2 dev hsvlan110", "PodNetwork/default"},
		"get podaddresses":        {"no addresses of pods found"},
		"status":                  {"addresses 10.73.3.0/24"},
	} {
		out := s.LLCLI(strings.Fields(words)...)
		for _, w := range want {
			if w == "no addresses of pods found" {
				continue // checked elsewhere
			}
			if !strings.Contains(out, w) {
				t.Errorf("llcli %s has no %q:\n%s", words, w, out)
			}
		}
	}

	server := s.outside.ServeTCP(t, "192.0.2.77:4661", "outside")
	s.outside.ServeUDP(t, "192.0.2.77:4661", "outside")
	traffic := testtraffic.Start(t, s.pod, "192.0.2.77:4661", testtraffic.Load{Flows: 8, Packets: 2000, Connections: 20, Lasting: 4})
	for range 2 {
		s.Kill()
		s.Start()
		s.settled("taken over")
	}
	traffic.ExpectUnharmed(t)
	server.Close()
	s.everyWay()

	// The MTU follows the uplink.
	s.node.MTU(t, "eth0", 1400)
	testnet.Eventually(t, 5*time.Second, "the MTU follows that of the uplink", func() bool {
		return strings.Contains(s.node.Run(t, "ip", "link", "show", "loxi_test"), "mtu 1400") && strings.Contains(sw("link", "show", "hsvlan110"), "mtu 1400")
	})
	s.node.MTU(t, "eth0", 1500)
	testnet.Eventually(t, 5*time.Second, "and back", func() bool {
		return strings.Contains(s.node.Run(t, "ip", "link", "show", "loxi_test"), "mtu 1500")
	})

	// Another program deletes the namespace.
	testnet.DeleteNamed(t, s.name)
	testnet.Eventually(t, 5*time.Second, "the namespace is made again", s.there)
	testnet.Eventually(t, 5*time.Second, "and the bridge in it", func() bool {
		_, err := s.node.TryRun("ip", "-n", s.name, "link", "show", "hsvlan110")
		return err == nil
	})
	testnet.Eventually(t, 5*time.Second, "and the host's addresses", func() bool {
		addrs, _ := s.node.TryRun("ip", "addr", "show", "loxi_test") // it may not be there yet
		return strings.Contains(addrs, "10.73.3.2/") && strings.Contains(addrs, "2001:db8:73::2/")
	})
	s.LLCLI("delete", "interface", "hs1")
	s.plugIn()
	s.everyWay()

	s.Kill()
	s.Start()
	s.LLCLI("delete", "--wait", "10s", "podnetwork", "default")
	s.LLCLI("delete", "--wait", "10s", "interface", "eth0", "hs1")
	if out := sw("link", "show"); strings.Contains(out, "hsvlan110") {
		t.Errorf("the bridge is left: %s", out)
	}
	if out := sw("route", "show", "default"); strings.TrimSpace(out) != "" {
		t.Errorf("a default route is left: %s", out)
	}
	if out := s.node.Run(t, "ip", "address", "show", "loxi_test"); strings.Contains(out, "10.73.3.2") || strings.Contains(out, "2001:db8:73") {
		t.Errorf("addresses are left: %s", out)
	}
	if status, err := s.Client.Status(t.Context()); err != nil || len(status.Datapath.Hooks) > 0 {
		t.Errorf("programs are left: %+v, %v", status, err)
	}
	s.Stop()
	s.Detach()
	if after := networkOf(t, s.node); after != before || s.there() {
		t.Errorf("left is the namespace: %v, and\n%s\nbefore:\n%s", s.there(), after, before)
	}
}

// settled waits until the whole configuration is in force.
func (s *podSite) settled(what string) {
	s.t.Helper()
	testnet.Eventually(s.t, patience, what, func() bool {
		status, err := s.Client.Status(s.t.Context())
		return err == nil && len(status.NotReady) == 0
	})
}

// TestPodNetworkSays: differences from the desired state are reported, and the existing state
// stays.
func TestPodNetworkSays(t *testing.T) {
	s := newPodSite(t)
	s.Start()
	s.LLCLI("apply", "-f", s.File(strings.SplitN(podObjects, "---\n", 2)[1]))
	said := func(state, want string) {
		t.Helper()
		var got api.PodNetworkStatus
		testnet.Eventually(t, patience, state+": "+want, func() bool {
			o, err := s.Client.Get(t.Context(), "PodNetwork", "default")
			return err == nil && json.Unmarshal(o.Status, &got) == nil && got.State == state && strings.Contains(got.Message, want)
		})
	}
	said("Pending", "no uplink has our programs")
	s.Apply("kind: Interface\nname: eth0\nspec: {device: eth0}\n")
	said("Ready", "")
	s.LLCLI("delete", "interface", "eth0")
	said("Pending", "no uplink has our programs")

	// The pending network does not block a second one, and objects in conflict are named.
	for objects, want := range map[string]string{
		"kind: PodNetwork\nname: two\nspec: {subnets: [10.73.3.128/25]}\n":                    "overlaps 10.73.3.0/24 of PodNetwork/default",
		"kind: PodNetwork\nname: two\nspec: {subnets: [10.74.3.0/24], bridge: br7}\n":         "share one bridge",
		"kind: Bridge\nname: two\nspec: {device: hsvlan110}\n":                                "is the bridge of PodNetwork/default",
		"kind: Bridge\nname: two\nspec: {device: br7, ports: [{device: hsvlan110}]}\n":        "is the bridge of PodNetwork/default",
		"kind: PodNetwork\nname: two\nspec: {subnets: [10.74.3.0/30]}\n":                      "prefix length from 8 to 29",
		"kind: PodNetwork\nname: two\nspec: {subnets: [10.74.3.0/24, 10.75.3.0/24]}\n":        "a second IPv4 subnet",
		"kind: PodNetwork\nname: two\nspec: {subnets: [10.74.3.1/24]}\n":                      "write 10.74.3.0/24",
		"kind: PodNetwork\nname: two\nspec: {subnets: [\"2001:db8:9::/64\"], mtu: 1200}\n":    "1280",
		"kind: PodNetwork\nname: two\nspec: {subnets: []}\n":                                  "is missing",
		"kind: PodNetwork\nname: two\nspec: {subnets: [10.74.3.0/24], masquerade: {on: 1}}\n": "masquerade.on",
	} {
		if _, code, err := s.TryLLCLI("apply", "-f", s.File(objects)); code != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nexit code %d, %v; want %s", objects, code, err, want)
		}
	}
	s.Apply("kind: PodNetwork\nname: two\nspec: {subnets: [10.74.3.0/24]}\n")
	if out := s.node.Run(t, "ip", "address", "show", "loxi_test"); !strings.Contains(out, "10.74.3.2/24") || !strings.Contains(out, "10.73.3.2/24") {
		t.Errorf("the host's addresses: %s", out)
	}
	s.LLCLI("delete", "podnetwork", "default")
	testnet.Eventually(t, patience, "only those of the other are left", func() bool {
		out := s.node.Run(t, "ip", "address", "show", "loxi_test")
		return strings.Contains(out, "10.74.3.2/24") && !strings.Contains(out, "10.73.3.2/24")
	})
}

// TestPodNetworkKilled kills a daemon repeatedly while its pod networks change. The final state is
// the desired one, and when all objects are deleted, nothing of them is left.
func TestPodNetworkKilled(t *testing.T) {
	s := newPodSite(t)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 1))
	objects := func(bits int) string {
		text := fmt.Sprintf("kind: PodNetwork\nname: one\nspec: {subnets: [10.73.%d.0/24, \"2001:db8:73:%x::/64\"], mtu: %d, masquerade: {enabled: %t}}\n",
			bits&7, bits&3, 1400+bits>>3&1, bits>>4&1 == 1)
		if bits>>5&1 == 1 {
			text += fmt.Sprintf("---\nkind: PodNetwork\nname: two\nspec: {subnets: [10.74.%d.0/25], mtu: %d}\n", bits&7, 1400+bits>>3&1)
		}
		return text
	}
	s.Start()
	s.Apply("kind: Interface\nname: eth0\nspec: {device: eth0}\n")
	before := networkOf(t, s.node)
	for range 12 {
		bits := random.IntN(1 << 6)
		if random.IntN(4) == 0 {
			s.LLCLI("delete", "podnetwork", "one", "two")
		} else {
			s.LLCLI("delete", "podnetwork", "two")
			s.LLCLI("apply", "-f", s.File(objects(bits)))
		}
		pause := time.NewTimer(time.Duration(random.IntN(25)) * time.Millisecond)
		<-pause.C // when it is killed is left to chance
		s.Kill()
		s.Start()
	}
	s.LLCLI("delete", "podnetwork", "two")
	s.Apply(objects(0x35))
	var addresses []string
	for line := range strings.Lines(s.node.Run(t, "ip", "-o", "address", "show", "dev", "loxi_test")) {
		if f := strings.Fields(line); !strings.HasPrefix(f[3], "fe80") {
			addresses = append(addresses, f[3])
		}
	}
	if got := strings.Join(addresses, " "); got != "10.73.5.2/24 10.74.5.2/25 2001:db8:73:1::2/64" {
		t.Errorf("the host has %s", got)
	}
	for words, want := range map[string]string{
		"-o address show dev hsvlan110": "10.74.5.1/25", "route show default": "default via 10.73.5.2 dev hsvlan110 proto 76",
		"-6 route show default": "via 2001:db8:73:1::2 dev hsvlan110", "link show hsvlan110": "mtu 1400", "link show master hsvlan110": "hs_host",
	} {
		if out := s.node.Run(t, "ip", append([]string{"-n", s.name}, strings.Fields(words)...)...); !strings.Contains(out, want) {
			t.Errorf("ip %s in the switch has no %s:\n%s", words, want, out)
		}
	}
	s.Kill()
	s.Start()
	s.LLCLI("delete", "--wait", "10s", "podnetwork", "one", "two")
	s.Stop()
	s.Detach()
	if after := networkOf(t, s.node); after != before || s.there() {
		t.Errorf("left is the namespace: %v, and\n%s\nbefore:\n%s", s.there(), after, before)
	}
}

// TestPodNetworkMerged: without a namespace for the switch, the bridge is the host's, and the host
// reaches pods from the bridge's gateway address.
func TestPodNetworkMerged(t *testing.T) {
	s := newPodSite(t)
	s.Configure("switch: {namespace: host}", "tables: {connections: 65536, services: 4096, backends: 65536, affinity: 1024, ranges: 1024}")
	before := networkOf(t, s.node)
	s.Start()
	s.Apply(podObjects)
	s.pod = testnet.New(t, "pod")
	testnet.Veth(t, testnet.Port{NS: s.pod, Name: "eth0", Addrs: []string{"10.73.3.3/24", "2001:db8:73::3/64"}}, testnet.Port{NS: s.node, Name: "hs1"})
	s.node.Run(t, "ip", "link", "set", "hs1", "master", "hsvlan110")
	s.pod.Route(t, "default", "10.73.3.1")
	s.pod.Route(t, "default", "2001:db8:73::1")
	s.Apply("kind: Interface\nname: hs1\nspec: {device: hs1, netns: switch, role: port}\n")
	for _, a := range []struct{ pod, gateway, node, outside string }{
		{"10.73.3.3:4660", "10.73.3.1", "192.0.2.1", "192.0.2.77:4660"},
		{"[2001:db8:73::3]:4660", "2001:db8:73::1", "2001:db8:2::1", "[2001:db8:2::77]:4660"},
	} {
		pod, outside := s.pod.ServeTCP(t, a.pod, "pod"), s.outside.ServeTCP(t, a.outside, "outside")
		s.reach(s.node, pod, a.pod, a.gateway)
		s.reach(s.pod, outside, a.outside, a.node)
	}
	s.Kill()
	s.Start()
	s.LLCLI("delete", "--wait", "10s", "podnetwork", "default")
	s.node.Run(t, "ip", "link", "del", "hs1")
	testnet.Eventually(t, patience, "nothing of it is left", func() bool { return networkOf(t, s.node) == before })
}

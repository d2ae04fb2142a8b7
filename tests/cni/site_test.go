// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// debianPlugins is the directory of Debian's containernetworking-plugins.
const debianPlugins = "/usr/lib/cni"

var programs testdaemon.Programs

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "loxilight-cni-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := 1
	if os.Geteuid() == 0 {
		programs, err = testdaemon.Build(dir)
	}
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	_ = os.RemoveAll(dir) // the next run makes another
	os.Exit(code)
}

// site is a node with pods, and a machine outside that has routes to them.
//
//	outside 192.0.2.77 ── eth0 192.0.2.1 [node] loxi_test 10.73.3.2 ══ hs_host ┐
//	                                        pods 10.73.3.3 … ── hs1, hs2, … ───┴ hsvlan110 10.73.3.1 [switch]
//
// IPv6 likewise: 2001:db8:2::77 and ::1, 2001:db8:73::1 and up.
type site struct {
	*testdaemon.Daemon
	t             *testing.T
	node, outside *testnet.NS
	name          string // of the switch's namespace
	cni           *libcni.CNIConfig
}

const siteObjects = `
kind: Interface
name: eth0
spec: {device: eth0}
---
kind: PodNetwork
name: default
spec: {subnets: [10.73.3.0/24, "2001:db8:73::/64"], masquerade: {enabled: true}}
`

// siteTables keeps startup short: without it, the sizes depend on the memory of the machine.
const siteTables = "tables: {connections: 65536, services: 1024, backends: 4096, affinity: 4096, ranges: 1024}"

// newSite starts a daemon that serves pods.
func newSite(t *testing.T) *site {
	t.Helper()
	s := newBareSite(t)
	s.Start()
	s.Apply(siteObjects)
	return s
}

// newBareSite is newSite before the daemon starts; more contains additional lines of its configuration.
func newBareSite(t *testing.T, more ...string) *site {
	t.Helper()
	testnet.RequireRoot(t)
	s := &site{t: t, node: testnet.New(t, "node"), outside: testnet.New(t, "outside"), name: testnet.UniqueName("switch")}
	testnet.Veth(t, testnet.Port{NS: s.node, Name: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8:2::1/64"}},
		testnet.Port{NS: s.outside, Name: "eth0", Addrs: []string{"192.0.2.77/24", "2001:db8:2::77/64"}})
	s.outside.Route(t, "10.73.3.0/24", "192.0.2.1")
	s.outside.Route(t, "2001:db8:73::/64", "2001:db8:2::1")
	s.node.Forward(t)
	s.Daemon = testdaemon.New(t, s.node, programs, append(more, "switch: {namespace: "+s.name+"}", siteTables)...)
	t.Cleanup(func() {
		if s.hasSwitch() {
			testnet.DeleteNamed(t, s.name)
		}
	})
	s.cni = libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(programs.CNI), debianPlugins}, t.TempDir(), nil)
	return s
}

func (s *site) hasSwitch() bool {
	const nsfs = 0x6e736673
	var at unix.Statfs_t
	return unix.Statfs(filepath.Join("/run/netns", s.name), &at) == nil && at.Type == nsfs
}

// list is a configuration with our plugin, which gets the additional keys in more, followed by the
// plugins in others.
func (s *site) list(version string, more map[string]any, others ...map[string]any) *libcni.NetworkConfigList {
	s.t.Helper()
	ours := map[string]any{
		"type": "loxilight-cni", "socket": s.Socket, "stateDir": s.StateDir(),
		"capabilities": map[string]bool{"portMappings": true, "bandwidth": true, "mac": true, "ips": true},
	}
	for k, v := range more {
		ours[k] = v
	}
	text, err := json.Marshal(map[string]any{"cniVersion": version, "name": "pods", "plugins": append([]map[string]any{ours}, others...)})
	if err != nil {
		s.t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// shipped is the installed configuration, adapted to this daemon.
func (s *site) shipped() []byte {
	s.t.Helper()
	text, err := os.ReadFile("../../configs/10-loxilight.conflist")
	if err != nil {
		s.t.Fatal(err)
	}
	const before = `"network": "default",`
	if !bytes.Contains(text, []byte(before)) {
		s.t.Fatalf("no %s in\n%s", before, text)
	}
	return bytes.Replace(text, []byte(before), fmt.Appendf(nil, "%s %q: %q, %q: %q,", before, "socket", s.Socket, "stateDir", s.StateDir()), 1)
}

// pod is one pod: its namespace, and the result of its ADD.
type pod struct {
	*testnet.NS
	rt     *libcni.RuntimeConf
	result *types100.Result
}

// newPod creates the namespace of a pod that is not attached.
func (s *site) newPod(id string) *pod {
	s.t.Helper()
	p := &pod{NS: testnet.New(s.t, "pod")}
	p.rt = &libcni.RuntimeConf{
		ContainerID: id, NetNS: p.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", id}, {"K8S_POD_INFRA_CONTAINER_ID", id}},
	}
	return p
}

func (s *site) tryAdd(list *libcni.NetworkConfigList, p *pod) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := s.cni.AddNetworkList(ctx, list, p.rt)
	if err != nil {
		return err
	}
	p.result, err = types100.NewResultFromResult(r)
	return err
}

// addPod creates a pod and attaches it.
func (s *site) addPod(list *libcni.NetworkConfigList, id string) *pod {
	s.t.Helper()
	p := s.newPod(id)
	if err := s.tryAdd(list, p); err != nil {
		s.t.Fatalf("ADD %s: %v", id, err)
	}
	return p
}

func (s *site) tryDel(list *libcni.NetworkConfigList, p *pod) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.cni.DelNetworkList(ctx, list, p.rt)
}

func (s *site) del(list *libcni.NetworkConfigList, p *pod) {
	s.t.Helper()
	if err := s.tryDel(list, p); err != nil {
		s.t.Errorf("DEL %s: %v", p.rt.ContainerID, err)
	}
}

func (s *site) check(list *libcni.NetworkConfigList, p *pod) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.cni.CheckNetworkList(ctx, list, p.rt)
}

// address returns the address of a family.
func (p *pod) address(is4 bool) netip.Addr {
	for _, ip := range p.result.IPs {
		if a, _ := netip.AddrFromSlice(ip.Address.IP); a.Unmap().Is4() == is4 {
			return a.Unmap()
		}
	}
	return netip.Addr{}
}

// wantPods fails the test unless there is state for exactly count pods.
func (s *site) wantPods(count int) {
	s.t.Helper()
	if got := s.devices(); len(got) != count {
		s.t.Errorf("devices %q, want %d", got, count)
	}
	if out := s.endpoints(); len(out) != count {
		s.t.Errorf("endpoints %q, want %d", out, count)
	}
	for _, folder := range []string{"pods", "cni-queue"} {
		files, err := filepath.Glob(filepath.Join(s.StateDir(), folder, "*"))
		if folder != "pods" {
			count = 0
		}
		if err != nil || len(files) != count {
			s.t.Errorf("%s: %d files %q, %v; want %d", folder, len(files), files, err, count)
		}
	}
}

// devices returns the switch's ends of the pod links.
func (s *site) devices() (names []string) {
	s.t.Helper()
	s.t.Run("look", func(t *testing.T) { // closes the namespace at the end
		for line := range strings.Lines(testnet.Named(t, s.name).Run(t, "ip", "-o", "link", "show", "type", "veth")) {
			_, name, _ := strings.Cut(line, ": ")
			if name, _, _ = strings.Cut(name, "@"); name != "hs_host" {
				names = append(names, name)
			}
		}
	})
	return names
}

// reaches checks that a pod can ping an address.
func (p *pod) reaches(t *testing.T, a netip.Addr) {
	t.Helper()
	if err := p.ping(a); err != nil {
		t.Errorf("%s does not reach %s: %v", p.rt.ContainerID, a, err)
	}
}

// ping sends one echo request, and waits for the answer.
func (p *pod) ping(a netip.Addr) error { return p.pingWithin(a, 3*time.Second) }

func (p *pod) pingWithin(a netip.Addr, patience time.Duration) error {
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if a.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	var c net.Conn
	if err := p.Try(func() (err error) {
		c, err = net.Dial(network, a.String())
		return err
	}); err != nil {
		return err
	}
	defer c.Close() // no longer needed
	// The kernel writes the checksum of ICMPv6.
	b := testpkt.Build(testpkt.ICMP{Type: request, ID: 0x4c17, Seq: 1}, testpkt.Payload("ping"))
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write(b); err != nil {
		return err
	}
	for got := make([]byte, 1500); ; {
		n, err := c.Read(got)
		if err != nil {
			return err
		}
		text := got[:n]
		if a.Is4() && n > 20 {
			text = text[20:] // the socket returns the IP header, too
		}
		if len(text) == len(b) && text[0] == reply && bytes.Equal(text[4:], b[4:]) {
			return nil
		}
	}
}

// endpoints returns the names of the Endpoints, which guard pods.
func (s *site) endpoints() (names []string) {
	s.t.Helper()
	for o, err := range s.Client.List(context.Background(), api.ListParams{Kind: api.KindEndpoint}) {
		if err != nil {
			s.t.Fatalf("endpoints: %v", err)
		}
		names = append(names, o.Name)
	}
	return names
}

// parse parses a list of plugins.
func (s *site) parse(text string) *libcni.NetworkConfigList {
	s.t.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(text))
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

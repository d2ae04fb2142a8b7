// SPDX-License-Identifier: Apache-2.0

package security

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// podsSite is a node whose pods are attached by the real CNI plugin, on a LAN with a host.
//
//	LAN host 192.0.2.77 ── eth0 192.0.2.1 [node] loxi_test 10.73.3.2 ══ hs_host ┐
//	                                         pods 10.73.3.3 … ── hs1, hs2, … ───┴ hsvlan110 10.73.3.1 [switch]
//
// IPv6 likewise: 2001:db8:2::77 and ::1, 2001:db8:73::1 and up.
type podsSite struct {
	*testdaemon.Daemon
	t         *testing.T
	node, lan *testnet.NS
	name      string // of the switch's netns
	cni       *libcni.CNIConfig
	pods      int
}

const podsSiteObjects = `
kind: Interface
name: eth0
spec: {device: eth0}
---
kind: PodNetwork
name: default
spec: {subnets: [10.73.3.0/24, "2001:db8:73::/64"], masquerade: {enabled: true}}
`

// newPodsSite starts a daemon that serves pods; more are lines of configuration.
func newPodsSite(t *testing.T, more ...string) *podsSite {
	t.Helper()
	testnet.RequireRoot(t)
	s := &podsSite{t: t, node: testnet.New(t, "node"), lan: testnet.New(t, "lan"), name: testnet.UniqueName("switch")}
	testnet.Veth(t, testnet.Port{NS: s.node, Name: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8:2::1/64"}},
		testnet.Port{NS: s.lan, Name: "eth0", Addrs: []string{"192.0.2.77/24", "2001:db8:2::77/64"}})
	s.lan.Route(t, "10.73.3.0/24", "192.0.2.1")
	s.lan.Route(t, "2001:db8:73::/64", "2001:db8:2::1")
	s.node.Forward(t)
	s.Daemon = testdaemon.New(t, s.node, programs, append([]string{"switch: {namespace: " + s.name + "}"}, more...)...)
	t.Cleanup(func() {
		const nsfs = 0x6e736673
		var at unix.Statfs_t
		if unix.Statfs(filepath.Join("/run/netns", s.name), &at) == nil && at.Type == nsfs {
			testnet.DeleteNamed(t, s.name)
		}
	})
	s.cni = libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(programs.CNI)}, t.TempDir(), nil)
	s.Start()
	s.Apply(podsSiteObjects)
	return s
}

// list returns a network configuration with the plugin; more contains its additional keys.
func (s *podsSite) list(more map[string]any) *libcni.NetworkConfigList {
	s.t.Helper()
	ours := map[string]any{
		"type": "loxilight-cni", "socket": s.Socket, "stateDir": s.StateDir(),
		"capabilities": map[string]bool{"portMappings": true, "mac": true, "ips": true},
	}
	for k, v := range more {
		ours[k] = v
	}
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "pods", "plugins": []any{ours}})
	if err != nil {
		s.t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// podsPod is a pod that may be attached.
type podsPod struct {
	*testnet.NS
	rt   *libcni.RuntimeConf
	list *libcni.NetworkConfigList
	ips  []string // IPv4 first
}

// newPod creates the netns of a pod that is not attached yet. args are capability arguments.
func (s *podsSite) newPod(args map[string]any) *podsPod {
	s.t.Helper()
	s.pods++
	p := &podsPod{NS: testnet.New(s.t, "pod"), list: s.list(nil)}
	id := "c" + strconv.Itoa(s.pods)
	p.rt = &libcni.RuntimeConf{
		ContainerID: id, NetNS: p.Path(), IfName: "eth0", CapabilityArgs: args,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", id}},
	}
	return p
}

func (s *podsSite) tryAdd(p *podsPod) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := s.cni.AddNetworkList(ctx, p.list, p.rt)
	if err != nil {
		return err
	}
	result, err := types100.NewResultFromResult(r)
	if err != nil {
		return err
	}
	for _, ip := range result.IPs {
		p.ips = append(p.ips, ip.Address.IP.String())
	}
	return nil
}

func (s *podsSite) del(p *podsPod) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.cni.DelNetworkList(ctx, p.list, p.rt); err != nil {
		s.t.Errorf("DEL %s: %v", p.rt.ContainerID, err)
	}
}

// addPod creates a pod and attaches it.
func (s *podsSite) addPod(args map[string]any) *podsPod {
	s.t.Helper()
	p := s.newPod(args)
	if err := s.tryAdd(p); err != nil {
		s.t.Fatalf("ADD %s: %v", p.rt.ContainerID, err)
	}
	return p
}

// hostPort returns the capability argument for one host port, which leads to the same port of the
// pod.
func hostPort(hostIP string, port int, protocol string) map[string]any {
	return map[string]any{"portMappings": []map[string]any{
		{"hostIP": hostIP, "hostPort": port, "containerPort": port, "protocol": protocol},
	}}
}

// serve answers with name on a port of the pod, over UDP and TCP.
func (p *podsPod) serve(t *testing.T, port int, name string) {
	t.Helper()
	p.ServeUDP(t, ":"+strconv.Itoa(port), name)
	p.ServeTCP(t, ":"+strconv.Itoa(port), name)
}

// cniCode returns the code of a CNI error; 0 for any other error and for none.
func cniCode(err error) uint {
	var told *types.Error
	if errors.As(err, &told) {
		return told.Code
	}
	return 0
}

// answers sends a request to an address over UDP and TCP, once each, and returns the names of all
// servers that answered.
func answers(ns *testnet.NS, host string, port int) (names []string) {
	target := net.JoinHostPort(host, strconv.Itoa(port))
	for _, talk := range []func(*testnet.NS, string, string, []byte) (string, error){testtraffic.TalkUDP, testtraffic.TalkTCP} {
		if name, err := talk(ns, "", target, []byte("who are you")); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// nats returns the status of each NAT object, by the last part of its name.
func (s *podsSite) nats() map[string]api.Status {
	s.t.Helper()
	all := map[string]api.Status{}
	for o, err := range s.Client.List(context.Background(), api.ListParams{Kind: api.KindNAT}) {
		if err != nil {
			s.t.Fatal(err)
		}
		var st api.Status
		if err := json.Unmarshal(o.Status, &st); err != nil {
			s.t.Fatal(err)
		}
		all[filepath.Base(o.Name)] = st
	}
	return all
}

// SPDX-License-Identifier: Apache-2.0

package security

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// overlaySite is two nodes with pods behind tunnels, a third Peer whose node is simulated by the
// test, and a host on the LAN that is not a node.
//
//	pods 10.76.1.3 … ── [switch 1] ══ loxi_test 10.76.1.2 [node 1] eth0 192.0.2.1 ─┐
//	pods 10.76.2.3 … ── [switch 2] ══ loxi_test 10.76.2.2 [node 2] eth0 192.0.2.2 ─┼─ lan
//	                      10.76.3.0/24 is behind the test's [node 3] eth0 192.0.2.3 ─┤
//	                                                     [host] eth0 192.0.2.77 ─┘
//
// IPv6 likewise: fd76:1::3 and 2001:db8:2::1.
type overlaySite struct {
	overlayKind
	t           *testing.T
	nodes       []*overlayNode
	third, host *testnet.NS
}

// overlayKind is how the nodes are connected.
type overlayKind struct {
	tunnel string // vxlan, geneve or gre
	over6  bool   // the underlay is IPv6
	merged bool   // the switch is the host's namespace
}

func (k overlayKind) String() string {
	name := k.tunnel + " over IPv4"
	if k.over6 {
		name = k.tunnel + " over IPv6"
	}
	if k.merged {
		name += ", one namespace"
	}
	return name
}

const overlayVNI = 4660

// port returns the UDP port of the tunnel; 0: it uses no port.
func (k overlayKind) port() uint16 { return map[string]uint16{"vxlan": 4789, "geneve": 6081}[k.tunnel] }

// overlayNode is a node with a daemon.
type overlayNode struct {
	*testdaemon.Daemon
	ns   *testnet.NS
	name string // of the switch's namespace
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// overlayPod is a pod, attached by the CNI plugin.
type overlayPod struct {
	*testnet.NS
	addr [2]netip.Addr // IPv4, IPv6
}

// underlay returns the underlay address of node i; 77: of the host.
func (k overlayKind) underlay(i int) netip.Addr {
	if k.over6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:2::%d", i))
	}
	return netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i))
}

func newOverlaySite(t *testing.T, kind overlayKind) *overlaySite {
	t.Helper()
	testnet.RequireRoot(t)
	s := &overlaySite{t: t, overlayKind: kind, third: testnet.New(t, "third"), host: testnet.New(t, "host")}
	lan := testnet.New(t, "lan")
	ports := []string{"n3", "n77"}
	for i, ns := range map[int]*testnet.NS{3: s.third, 77: s.host} {
		testnet.Veth(t, testnet.Port{NS: lan, Name: fmt.Sprintf("n%d", i)}, testnet.Port{NS: ns, Name: "eth0", Addrs: overlayAddrs(i)})
	}
	for i := 1; i <= 2; i++ {
		s.nodes = append(s.nodes, s.newNode(i, lan))
		ports = append(ports, fmt.Sprintf("n%d", i))
		s.host.Route(t, fmt.Sprintf("10.76.%d.0/24", i), fmt.Sprintf("192.0.2.%d", i))
		s.host.Route(t, fmt.Sprintf("fd76:%d::/64", i), fmt.Sprintf("2001:db8:2::%d", i))
	}
	lan.Bridge(t, "br0", ports...)
	for i, n := range s.nodes {
		n.Start()
		n.LLCLI("apply", "--wait", "60s", "-f", n.File(s.objects(i+1)))
	}
	return s
}

func overlayAddrs(i int) []string {
	return []string{fmt.Sprintf("192.0.2.%d/24", i), fmt.Sprintf("2001:db8:2::%d/64", i)}
}

func (s *overlaySite) newNode(i int, lan *testnet.NS) *overlayNode {
	s.t.Helper()
	n := &overlayNode{ns: testnet.New(s.t, fmt.Sprintf("node%d", i)), name: testnet.UniqueName("switch")}
	testnet.Veth(s.t, testnet.Port{NS: lan, Name: fmt.Sprintf("n%d", i)}, testnet.Port{NS: n.ns, Name: "eth0", Addrs: overlayAddrs(i)})
	n.ns.Forward(s.t)
	for _, key := range []string{"all", "eth0"} {
		n.ns.Sysctl(s.t, "net/ipv4/conf/"+key+"/rp_filter", "0") // the kernel's default
	}
	if s.merged {
		n.name = "host"
	}
	n.Daemon = testdaemon.New(s.t, n.ns, programs, "switch: {namespace: "+n.name+"}",
		"tables: {connections: 65536, services: 512, backends: 256, affinity: 64, ranges: 64}")
	if !s.merged {
		s.t.Cleanup(func() { testnet.DeleteNamed(s.t, n.name) })
	}
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(programs.CNI)}, s.t.TempDir(), nil)
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "pods", "plugins": []map[string]any{
		{"type": "loxilight-cni", "socket": n.Socket, "stateDir": n.StateDir()},
	}})
	if err != nil {
		s.t.Fatal(err)
	}
	if n.list, err = libcni.NetworkConfFromBytes(text); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// objects returns the objects of node i.
func (s *overlaySite) objects(i int) string {
	docs := []string{
		"kind: Interface\nname: eth0\nspec: {device: eth0}",
		fmt.Sprintf("kind: PodNetwork\nname: default\nspec: {subnets: [10.76.%d.0/24, \"fd76:%d::/64\"], masquerade: {enabled: true}}", i, i),
		fmt.Sprintf("kind: Tunnel\nname: mesh\nspec: {device: hstunnel, type: %s, vni: %d}", s.tunnel, overlayVNI),
	}
	for peer := 1; peer <= 3; peer++ {
		if peer != i {
			docs = append(docs, fmt.Sprintf("kind: Peer\nname: node%d\nspec: {underlay: [%q], prefixes: [10.76.%d.0/24, \"fd76:%d::/64\"], tunnel: mesh}",
				peer, s.underlay(peer), peer, peer))
		}
	}
	return strings.Join(docs, "\n---\n")
}

// pod attaches a pod to node i.
func (s *overlaySite) pod(i int, id string) *overlayPod {
	s.t.Helper()
	n, p := s.nodes[i-1], &overlayPod{NS: testnet.New(s.t, id)}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	result, err := n.cni.AddNetworkList(ctx, n.list, &libcni.RuntimeConf{
		ContainerID: id, NetNS: p.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", id}, {"K8S_POD_INFRA_CONTAINER_ID", id}},
	})
	if err != nil {
		s.t.Fatalf("ADD %s: %v", id, err)
	}
	r, err := types100.NewResultFromResult(result)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, ip := range r.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		if a = a.Unmap(); a.Is4() {
			p.addr[0] = a
		} else {
			p.addr[1] = a
		}
	}
	return p
}

// encapsulated returns the payload that follows a tunnel's IP and UDP headers, for a datagram from
// one address to another.
func (k overlayKind) encapsulated(from, to netip.AddrPort, text string) []byte {
	var ip testpkt.Layer = testpkt.IPv4{Source: from.Addr(), Destination: to.Addr()}
	eth, etherType := testpkt.Ethernet{Source: [6]byte{2, 9, 8, 7, 6, 5}, Destination: [6]byte{2, 1, 2, 3, 4, 5}}, uint16(0x0800)
	if from.Addr().Is6() {
		ip, etherType = testpkt.IPv6{Source: from.Addr(), Destination: to.Addr()}, 0x86dd
	}
	frame := testpkt.Build(eth, ip, testpkt.UDP{Source: from.Port(), Destination: to.Port()}, testpkt.Payload(text))
	switch k.tunnel {
	case "vxlan":
		return append(binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, overlayVNI<<8), frame...)
	case "geneve":
		return append(binary.BigEndian.AppendUint32([]byte{0, 0, 0x65, 0x58}, overlayVNI<<8), frame...)
	}
	header := binary.BigEndian.AppendUint16([]byte{0x20, 0}, etherType)
	return append(binary.BigEndian.AppendUint32(header, overlayVNI), frame[14:]...)
}

// sendOuter sends a tunnel's payload, from a socket, to an address: UDP to the tunnel's port, or
// GRE.
func (k overlayKind) sendOuter(t *testing.T, ns *testnet.NS, to netip.Addr, payload []byte) {
	t.Helper()
	if port := k.port(); port != 0 {
		sendUDP(t, ns, netip.AddrPortFrom(to, port), payload)
		return
	}
	network := "ip4:47"
	if to.Is6() {
		network = "ip6:47"
	}
	var c net.Conn
	ns.Do(t, func() (err error) {
		c, err = net.Dial(network, to.String())
		return err
	})
	defer c.Close() // no longer needed
	if _, err := c.Write(payload); err != nil {
		t.Logf("GRE to %s: %v", to, err) // refused is as good as dropped
	}
}

// sendUDP sends a datagram from an ordinary socket.
func sendUDP(t *testing.T, ns *testnet.NS, to netip.AddrPort, payload []byte) {
	t.Helper()
	c, err := ns.Dial("udp", "", to.String(), time.Second)
	if err != nil {
		t.Fatalf("UDP to %s: %v", to, err)
	}
	defer c.Close() // no longer needed
	if _, err := c.Write(payload); err != nil {
		t.Logf("UDP to %s: %v", to, err)
	}
}

// heard collects the packets that a pod receives.
type heard struct {
	*net.UDPConn
	texts map[string]netip.AddrPort // and their senders
}

// listen lets a pod receive datagrams at an address and port.
func (p *overlayPod) listen(t *testing.T, at netip.AddrPort) *heard {
	t.Helper()
	return &heard{p.ListenUDP(t, at.String()), map[string]netip.AddrPort{}}
}

// until receives until text arrives, which send sends repeatedly: by then, earlier packets have had
// time to arrive.
func (h *heard) until(t *testing.T, text string, send func()) {
	t.Helper()
	b := make([]byte, 2048)
	testnet.Eventually(t, 30*time.Second, fmt.Sprintf("%q arrives", text), func() bool {
		send()
		for {
			if err := h.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			n, from, err := h.ReadFromUDPAddrPort(b)
			if err != nil {
				_, ok := h.texts[text]
				return ok
			}
			h.texts[string(b[:n])] = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		}
	})
}

// none fails the test for everything that arrived and begins with FORGED.
func (h *heard) none(t *testing.T) {
	t.Helper()
	for text, from := range h.texts {
		if strings.HasPrefix(text, "FORGED") {
			t.Errorf("the pod got %q from %s", text, from)
		}
	}
}

// drops returns how many packets a node has dropped for a reason.
func (n *overlayNode) drops(reason string) uint64 {
	return n.Counters("", "").Drops[reason]
}

// SPDX-License-Identifier: Apache-2.0

package services

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// place contains the node of the model, another node, and a machine outside that uses the first
// node as its router to all of a cluster's addresses.
//
//	pods 10.244.3.5, .9 ── [switch] ══ [n3 192.0.2.13, 198.51.100.43] eth0 ─┐
//	                                          ║ tunnel                      ├─ lan ── outside 192.0.2.99
//	pod 10.244.4.6 ─────── [switch] ══ [n4 192.0.2.14] eth0 ────────────────┘
//
// IPv6 likewise: 2001:db8:3::5, ::9 and 2001:db8:4::6, 2001:db8::13, ::14 and ::99.
type place struct {
	t       *testing.T
	lan     *testnet.NS
	n3, n4  *placeNode
	clients map[netip.Addr]*testnet.NS
}

type placeNode struct {
	*testdaemon.Daemon
	ns *testnet.NS
	sw string
}

const placePatience = 20 * time.Second

// silence is how long to wait for an answer before a packet counts as dropped. An answer may take
// longer on a busy machine: unless a drop is expected, the connection is attempted several times.
const (
	silence  = 250 * time.Millisecond
	attempts = 8
)

func newPlace(t *testing.T) *place {
	t.Helper()
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	testnet.RequireRoot(t)
	programs, err := testdaemon.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, lan: testnet.New(t, "lan"), clients: map[netip.Addr]*testnet.NS{}}
	outside := testnet.New(t, "outside")
	testnet.Veth(t, testnet.Port{NS: p.lan, Name: "out"}, testnet.Port{NS: outside, Name: "eth0", Addrs: []string{"192.0.2.99/24", "2001:db8::99/64"}})
	p.n3 = p.node(programs, 13, "192.0.2.13/24", "2001:db8::13/64", "198.51.100.43/32")
	p.n4 = p.node(programs, 14, "192.0.2.14/24", "2001:db8::14/64")
	p.lan.Bridge(t, "br0", "out", "n13", "n14")
	for _, n := range []*placeNode{p.n3, p.n4} {
		n.ns.Route(t, "default", "192.0.2.99")
		n.ns.Route(t, "default", "2001:db8::99")
	}
	for _, prefix := range []string{"10.96.0.0/16", "203.0.113.0/24", "198.51.100.0/24"} {
		outside.Route(t, prefix, "192.0.2.13")
	}
	for _, prefix := range []string{"2001:db8:96::/48", "2001:db8:113::/48"} {
		outside.Route(t, prefix, "2001:db8::13")
	}
	p.start(p.n3, 3, 4, "14", 5, 9)
	p.start(p.n4, 4, 3, "13", 6)
	p.clients[addr("192.0.2.99")], p.clients[addr("2001:db8::99")] = outside, outside
	p.clients[addr("192.0.2.13")], p.clients[addr("2001:db8::13")] = p.n3.ns, p.n3.ns
	return p
}

func (p *place) node(programs testdaemon.Programs, last int, addrs ...string) *placeNode {
	n := &placeNode{ns: testnet.New(p.t, fmt.Sprint("n", last)), sw: testnet.UniqueName("switch")}
	testnet.Veth(p.t, testnet.Port{NS: p.lan, Name: fmt.Sprint("n", last)}, testnet.Port{NS: n.ns, Name: "eth0", Addrs: addrs})
	n.ns.Forward(p.t)
	p.t.Cleanup(func() { testnet.DeleteNamed(p.t, n.sw) })
	n.Daemon = testdaemon.New(p.t, n.ns, programs, "switch: {namespace: "+n.sw+"}",
		"tables: {connections: 16384, services: 256, backends: 256, affinity: 64, ranges: 256}")
	return n
}

// start configures a node: itself, the other node, and its pods, which it attaches.
func (p *place) start(n *placeNode, own, other int, peer string, pods ...int) {
	p.t.Helper()
	n.Start()
	docs := []string{
		"kind: Interface\nname: uplink\nspec: {device: eth0}",
		"kind: Tunnel\nname: overlay\nspec: {device: hsvxlan, vni: 1}",
		fmt.Sprintf("kind: PodNetwork\nname: default\nspec: {subnets: [10.244.%d.0/24, \"2001:db8:%d::/64\"], masquerade: {enabled: true}}", own, own),
		fmt.Sprintf("kind: Peer\nname: other\nspec: {underlay: [192.0.2.%s, \"2001:db8::%s\"], prefixes: [10.244.%d.0/24, \"2001:db8:%d::/64\"], tunnel: overlay}", peer, peer, other, other),
	}
	for _, pod := range pods {
		docs = append(docs, fmt.Sprintf("kind: Endpoint\nname: shop/web-%d\nspec: {device: hs%d, addresses: [10.244.%d.%d, \"2001:db8:%d::%d\"], mac: \"02:00:5e:00:%02x:%02x\", network: default}",
			pod, pod, own, pod, own, pod, own, pod))
	}
	n.LLCLI("apply", "-f", n.File(strings.Join(docs, "\n---\n")))
	hosts := map[int]*testnet.NS{}
	for _, pod := range pods {
		hosts[pod] = testnet.New(p.t, fmt.Sprint("pod", pod))
	}
	testnet.Eventually(p.t, placePatience, "the switch exists", func() bool {
		const nsfs = 0x6e736673
		var at unix.Statfs_t // of an empty file, until the namespace is mounted on it
		return unix.Statfs("/run/netns/"+n.sw, &at) == nil && at.Type == nsfs
	})
	p.t.Run("plug in", func(t *testing.T) { // its end releases the namespace of the switch
		sw := testnet.Named(t, n.sw)
		for pod, ns := range hosts {
			testnet.Veth(t, testnet.Port{NS: ns, Name: "eth0", MAC: fmt.Sprintf("02:00:5e:00:%02x:%02x", own, pod),
				Addrs: []string{fmt.Sprintf("10.244.%d.%d/24", own, pod), fmt.Sprintf("2001:db8:%d::%d/64", own, pod)}},
				testnet.Port{NS: sw, Name: fmt.Sprint("hs", pod)})
		}
	})
	for pod, ns := range hosts {
		ns.Route(p.t, "default", fmt.Sprintf("10.244.%d.1", own))
		ns.Route(p.t, "default", fmt.Sprintf("2001:db8:%d::1", own))
		for _, a := range []string{fmt.Sprintf("10.244.%d.%d", own, pod), fmt.Sprintf("2001:db8:%d::%d", own, pod)} {
			p.clients[addr(a)] = ns
			at := netip.AddrPortFrom(addr(a), 8080).String()
			serve(ns.Listen(p.t, at), at)
		}
	}
	p.ready(n)
}

func (p *place) ready(n *placeNode) {
	p.t.Helper()
	var left []api.NotReady
	testnet.Eventually(p.t, placePatience, "the node is as configured", func() bool {
		status, err := n.Client.Status(p.t.Context())
		if err == nil {
			left = status.NotReady
		}
		return err == nil && len(left) == 0
	})
}

// reached returns the outcome of one connection: drop, reject, or the server's address, and the
// client's address as the server saw it.
func (p *place) reached(q question) (server string, seen netip.Addr) {
	p.t.Helper()
	local := netip.AddrPortFrom(q.client, 0).String()
	c, err := p.clients[q.client].Dial("tcp", local, q.to.String(), silence)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "reject", seen
	case isTimeout(err):
		return "drop", seen
	case err != nil: // no further answer may arrive
		p.t.Errorf("%s to %s: %v", q.client, q.to, err)
		return "", seen
	}
	defer func() { _ = c.Close() }() // all was read
	_ = c.SetReadDeadline(time.Now().Add(placePatience))
	name, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		p.t.Errorf("%s to %s: %v", q.client, q.to, err)
		return "", seen
	}
	server, client, _ := strings.Cut(strings.TrimSpace(name), " ")
	return server, netip.MustParseAddrPort(client).Addr()
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// serve sends each client the server's address and the client's own, as seen by the server, and
// then echoes the client's data until the client closes the connection.
func serve(l net.Listener, name string) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			go func() {
				_, _ = fmt.Fprintln(c, name, c.RemoteAddr()) // the client may be gone
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
}

// check connects as a client until it has met all servers in the model's answer, and no other.
func (p *place) check(w *world, q question) {
	p.t.Helper()
	words := strings.Fields(w.answer(q))
	want, servers := words[0], words[1:]
	if want == "pass" {
		return // the kernel decides where to
	}
	met, silent := map[string]bool{}, 0
	for range 60 {
		got, seen := p.reached(q)
		switch {
		case got == "drop" && want != "drop" && silent < attempts:
			silent++
			continue
		case len(servers) == 0 && got != want, len(servers) > 0 && !slices.Contains(servers, got):
			p.t.Errorf("%s to %s came to %q, want %v", q.client, q.to, got, words)
			return
		case want == "keep" && seen != q.client, want == "snat" && seen == q.client && !slices.Contains(w.nodeAddresses, q.client.String()):
			p.t.Errorf("%s to %s was seen as %s, want %s", q.client, q.to, seen, want)
			return
		}
		if met[got] = true; len(met) >= len(servers) {
			return
		}
	}
	p.t.Errorf("%s to %s met %v only, want %v", q.client, q.to, met, servers)
}

// newWorld makes a service with every type of address, and endpoints for it on n3 and n4.
func newWorld(external, internal bool, states ...string) *world {
	w := &world{
		service: change(clusterIP(), dualStack, nodePort, loadBalancer("203.0.113.20", "2001:db8:113::20"), externalIPs("203.0.113.9", "2001:db8:113::9")),
		isDual:  true, internalLocal: internal, externalLocal: external, nodeAddresses: []string{"192.0.2.13", "198.51.100.43", "2001:db8::13"},
	}
	w.service.Spec.LoadBalancerSourceRanges = []string{"10.244.3.5/32", "192.0.2.99/32"}
	if external {
		externalLocal(w.service)
	}
	if internal {
		internalLocal(w.service)
	}
	for f, hosts := range [][2]string{{"10.244.3.5", "10.244.4.6"}, {"2001:db8:3::5", "2001:db8:4::6"}} {
		var texts []string
		for i, state := range states {
			if state != "-" {
				texts = append(texts, fmt.Sprintf("%s @n%d %s", hosts[i], 3+i, state))
			}
		}
		if len(texts) > 0 {
			w.slices = append(w.slices, slice(fmt.Sprint("web-", f), texts...))
		}
	}
	return w
}

// placeCases are services with endpoints on n3, n4 or both, by the state of the endpoints.
var placeCases = []struct {
	name       string
	local      bool // external policy
	internal   bool
	here, more string // the state of the endpoints on n3 and n4; "-": absent
}{
	{"both ready", false, false, "", ""},
	{"one is to go", false, false, "unready serving terminating", ""},
	{"all are to go", false, false, "unready serving terminating", "unready serving terminating"},
	{"none", false, false, "-", "unready"},
	{"external Local", true, false, "", ""},
	{"external Local, the one here is to go", true, false, "unready serving terminating", ""},
	{"external Local, elsewhere", true, false, "-", ""},
	{"external Local, nowhere", true, false, "-", "-"},
	{"internal Local", false, true, "", ""},
	{"internal Local, elsewhere", false, true, "unready", ""},
	{"both Local", true, true, "", ""},
	{"both Local, elsewhere", true, true, "-", ""},
	{"hints", false, false, "zone=east", "zone=north"},
}

// TestReach checks the model's answers with packets: from pods, from the node and from outside, to
// each address that a service has.
func TestReach(t *testing.T) {
	p := newPlace(t)
	for _, c := range placeCases {
		w := newWorld(c.local, c.internal, c.here, c.more)
		t.Run(c.name, func(t *testing.T) {
			p.tell(t, w)
			p.ask(t, w)
		})
	}
}

// TestReachAfterRestart: a daemon that was killed finds everything unchanged, including the objects
// with all endpoints to which clients are diverted from objects with only the node's endpoints.
func TestReachAfterRestart(t *testing.T) {
	p := newPlace(t)
	w := newWorld(true, true, "", "")
	p.tell(t, w)
	p.ask(t, w)
	p.n3.Kill()
	p.ask(t, w)
	p.n3.Start()
	p.ready(p.n3)
	p.ask(t, w)
	p.byName(t)
}

// byName checks that llcli shows the service and its connections by its Kubernetes name.
func (p *place) byName(t *testing.T) {
	shown := p.n3.LLCLI("k8s", "services", "shop/web")
	for _, want := range []string{
		`shop +web +80 +cluster +10\.96\.0\.7:80/tcp,\[2001:db8:96::7\]:80/tcp +2 +2 +2 +Ready`,
		`shop +web +80 +inside +- +4 +0 +2 +Ready`,
		`shop +web +80 +loadbalancer +203\.0\.113\.20:80/tcp,\S+ +2 +2 +2 +Ready`,
		`80 +10\.244\.3\.5:8080 +ready +this`, `80 +10\.244\.4\.6:8080 +ready +other`,
	} {
		if !regexp.MustCompile(want).MatchString(shown) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
	whole := strings.Count(p.n3.LLCLI("connections", "--service", "shop/web"), "\n")
	part := strings.Count(p.n3.LLCLI("connections", "--service", "shop/web/nodeport"), "\n")
	if part < 2 || whole <= part {
		t.Errorf("%d lines of connections, of the node port %d", whole, part)
	}
	counters := p.n3.LLCLI("counters", "service", "shop/web")
	for _, want := range []string{"10.244.3.5:8080", "[2001:db8:4::6]:8080"} {
		if strings.Count(counters, want) != 1 {
			t.Errorf("%s does not occur once in\n%s", want, counters)
		}
	}
}

// tell sends a service to both nodes.
func (p *place) tell(t *testing.T, w *world) {
	for _, n := range []struct {
		*placeNode
		node *Node
	}{{p.n3, thisNode()}, {p.n4, &Node{Name: "n4", Inside: []netip.Prefix{netip.MustParsePrefix("10.244.4.0/24")}}}} {
		objects := TranslateService(n.node, w.service, w.slices, nil).Objects
		if _, err := n.Client.Replace(t.Context(), api.ReplaceParams{Owner: Owner, Kinds: []string{api.KindService}, Objects: objects, Change: api.Change{Wait: api.Duration(placePatience)}}); err != nil {
			t.Fatalf("%v\n%s", err, render(t, objects))
		}
	}
}

// ask connects from each client to each address.
func (p *place) ask(t *testing.T, w *world) {
	p.t = t
	for _, to := range []string{"10.96.0.7:80", "192.0.2.13:30080", "198.51.100.43:30080", "203.0.113.20:80", "203.0.113.9:80",
		"[2001:db8:96::7]:80", "[2001:db8::13]:30080", "[2001:db8:113::20]:80", "[2001:db8:113::9]:80"} {
		target := netip.MustParseAddrPort(to)
		clients := []string{"10.244.3.5", "10.244.3.9", "192.0.2.13", "192.0.2.99"}
		if target.Addr().Is6() {
			clients = []string{"2001:db8:3::5", "2001:db8:3::9", "2001:db8::13", "2001:db8::99"}
		}
		for _, client := range clients {
			p.check(w, question{addr(client), target, corev1.ProtocolTCP})
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// cutSite is a cluster whose pods are clients and servers, under policies that allow exactly what
// they send, on both nodes:
//
//	node 1   client, server, free client, free server
//	node 2   server, free server
//
// Clients and free clients outside have one address each. The flows from clients to servers are cut by
// changes; the flows from free clients to free servers are unrelated to them.
type cutSite struct {
	*cluster
	flows     []*flow
	witnesses map[*testnet.NS]*witness
	arrived   map[[2]int]uint64 // packets that have arrived so far, by number of the flow and direction

	labels     map[string]string            // app of the stations, by the name of their Entity
	namespaces map[string]map[string]string // labels of Namespaces
	in, out    string                       // apps that the rules of servers and of clients allow
}

// cutStations are the stations of a cutSite by their roles, which are also their names as Entities.
type cutStations struct{ client, server, far, freeClient, freeServer, freeFar, outside, freeOutside *station }

func newCutSite(t *testing.T, kind clusterKind) *cutSite {
	t.Helper()
	kind.pods = 4
	c := &cutSite{cluster: newCluster(t, kind), witnesses: map[*testnet.NS]*witness{}, arrived: map[[2]int]uint64{}, labels: map[string]string{}, in: "client", out: "server"}
	c.namespaces = map[string]map[string]string{"clients": {"team": "clients"}, "servers": {"team": "servers"}, "free": {}}
	s := c.roles()
	for name, role := range map[string]*station{"client": s.client, "server": s.server, "far": s.far, "outside": s.outside} {
		app := "server"
		if name == "client" || name == "outside" {
			app = "client"
		}
		c.labels[name], role.name = app, name
	}
	for name, role := range map[string]*station{"free-client": s.freeClient, "free-server": s.freeServer, "free-far": s.freeFar, "free-outside": s.freeOutside} {
		c.labels[name], role.name = "free", name
	}
	s.outside.Addr(t, "eth0", "192.0.2.78/24", "2001:db8:2::78/64")
	s.outside.Route(t, "10.96.0.0/16", "192.0.2.1")
	s.outside.Route(t, "fd96::/64", "2001:db8:2::1")
	c.addFlows(s)
	c.setPolicies()
	return c
}

func (c *cutSite) roles() *cutStations {
	out := c.stationOf("outside")
	free := newStation(out.NS, "free outside", outside, 0, "192.0.2.78", "2001:db8:2::78")
	c.stations = append(c.stations, free)
	pod := func(node, number int) *station { return c.stationOf(fmt.Sprintf("pod-%d-%d", node, number)) }
	return &cutStations{
		client: pod(1, 1), server: pod(1, 2), far: pod(2, 1), outside: out,
		freeClient: pod(1, 3), freeServer: pod(1, 4), freeFar: pod(2, 2), freeOutside: free,
	}
}

// addFlows defines all flows: of each kind, of both families, on every path.
func (c *cutSite) addFlows(s *cutStations) {
	for _, free := range []bool{false, true} {
		client, server, far, out := s.client, s.server, s.far, s.outside
		if free {
			client, server, far, out = s.freeClient, s.freeServer, s.freeFar, s.freeOutside
		}
		for _, path := range []struct {
			name     string
			from, to *station
			source   string // of a Service; empty: none
		}{
			{"direct", client, server, ""}, {"Service", client, server, "keep"},
			{"other node", client, far, ""}, {"Service on other node", client, far, "keep"},
			{"outside", out, server, ""}, {"outside, Service", out, server, "keep"}, {"outside, Service with SNAT", out, server, "snat"},
		} {
			for family := range 2 {
				for _, kind := range flowKinds {
					f := &flow{flowKind: kind, number: len(c.flows), from: path.from, to: path.to, source: path.source, cut: !free}
					addr := path.to.addr[family]
					if path.source != "" {
						if f.isEcho() {
							continue // Services do not answer pings
						}
						addr = netip.MustParseAddr([]string{"10.96.0.10", "fd96::10"}[family])
					}
					f.at = netip.AddrPortFrom(addr, f.port())
					f.name = fmt.Sprintf("%s, %s, IPv%d", kind.name, path.name, 4+2*family)
					if free {
						f.name += ", unrelated"
					}
					c.flows = append(c.flows, f)
				}
			}
		}
	}
}

// services returns a Service for each flow that uses one.
func (c *cutSite) services() string {
	var docs []string
	for _, f := range c.flows {
		addr := f.to.addr[f.family()]
		if f.source == "" {
			continue
		}
		protocol := strings.ToLower(strings.Split(f.flowKind.name, ",")[0])
		docs = append(docs, fmt.Sprintf("kind: Service\nname: flow-%d\nspec: {frontends: [%q], backends: [{address: %q}], source: %s}",
			f.number, f.at.String()+"/"+protocol, netip.AddrPortFrom(addr, f.port()), f.source))
	}
	return strings.Join(docs, "\n---\n")
}

// object returns an object with a spec.
func (c *cutSite) object(kind, name string, spec any) api.Object {
	c.t.Helper()
	b, err := json.Marshal(spec)
	if err != nil {
		c.t.Fatal(err)
	}
	return api.Object{Kind: kind, Name: name, Spec: b}
}

func apps(values ...string) *api.LabelSelector {
	return &api.LabelSelector{MatchExpressions: []api.LabelExpression{{Key: "app", Operator: "In", Values: values}}}
}

func teams(values ...string) *api.NamespaceSelector {
	return &api.NamespaceSelector{MatchExpressions: []api.LabelExpression{{Key: "team", Operator: "In", Values: values}}}
}

// Stations with the app or the team closed are isolated as subjects, and allowed as peers; with the app
// or the team foreign, it is the other way round.
const closed, foreign = "closed", "foreign"

// policyObjects returns the objects of a node for the current labels and rules.
func (c *cutSite) policyObjects(node int) (all []api.Object) {
	for name, labels := range c.namespaces {
		all = append(all, c.object(api.KindNamespace, name, api.NamespaceSpec{Labels: labels}))
	}
	namespaceOf := map[string]string{"client": "clients", "outside": "clients", "server": "servers", "far": "servers"}
	for name, app := range c.labels {
		s := c.stationOf(name)
		spec := api.EntitySpec{Namespace: namespaceOf[name], Labels: map[string]string{"app": app}}
		if spec.Namespace == "" {
			spec.Namespace = "free"
		}
		if s.node == node {
			spec.Endpoint = &api.EntityEndpoint{Namespace: "shop", Pod: c.podOf(s)}
		} else {
			spec.Addresses = []string{s.addr[0].String(), s.addr[1].String()}
		}
		all = append(all, c.object(api.KindEntity, name, spec))
	}
	order := int32(200)
	all = append(all, c.object(api.KindTier, "main", api.TierSpec{Order: &order, Always: []string{"self", "node"}}))
	put := func(name, direction string, subjects api.EntitySelector, peers *api.PolicyPeer) {
		spec := api.PolicySpec{Tier: "main", Isolate: []string{direction}, AppliedTo: []api.EntitySelector{subjects}}
		if peers != nil && direction == "ingress" {
			spec.Ingress = []api.IngressRule{{Action: "allow", From: []api.PolicyPeer{*peers}}}
		} else if peers != nil {
			spec.Egress = []api.EgressRule{{Action: "allow", To: []api.PolicyPeer{*peers}}}
		}
		all = append(all, c.object(api.KindPolicy, name, spec))
	}
	put("in", "ingress", api.EntitySelector{Namespaces: teams("servers", foreign), Entities: apps("server", foreign)},
		&api.PolicyPeer{Namespaces: teams("clients", closed), Entities: apps(c.in, closed)})
	put("out", "egress", api.EntitySelector{Namespaces: teams("clients", foreign), Entities: apps("client", foreign)},
		&api.PolicyPeer{Namespaces: teams("servers", closed), Entities: apps(c.out, closed)})
	for _, direction := range []string{"ingress", "egress"} {
		peers := &api.PolicyPeer{Entities: apps("free")}
		put("free-"+direction, direction, api.EntitySelector{Entities: apps("free")}, peers)
		put("closed-"+direction, direction, api.EntitySelector{Entities: apps(closed)}, nil)
		put("closed-team-"+direction, direction, api.EntitySelector{Namespaces: teams(closed)}, nil)
	}
	return all
}

// podOf returns the name of the pod of a station.
func (c *cutSite) podOf(s *station) string {
	number := map[string]int{"client": 1, "server": 2, "far": 1, "free-client": 3, "free-server": 4, "free-far": 2}[s.name]
	return fmt.Sprintf("pod-%d-%d", s.node, number)
}

// setPolicies puts the current labels and rules in force on all nodes, and returns when they are Ready.
func (c *cutSite) setPolicies() time.Time {
	c.t.Helper()
	var wg sync.WaitGroup
	for i, n := range c.nodes {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			change := api.Change{Wait: api.Duration(20 * time.Second)}
			if _, err := n.Client.Apply(ctx, api.ApplyParams{Objects: c.policyObjects(i + 1), Change: change}); err != nil {
				c.t.Errorf("policies of node %d: %v", i+1, err)
			}
		})
	}
	wg.Wait()
	ready := time.Now()
	if c.t.Failed() {
		c.t.FailNow()
	}
	return ready
}

// openAll opens all flows, and begins to watch where their packets arrive.
func (c *cutSite) openAll() {
	c.t.Helper()
	raws := map[string]net.PacketConn{}
	raw := func(s *station, family int, protocol byte) net.PacketConn {
		network := []string{"ip4:132", "ip6:132"}[family]
		if protocol == testpkt.ProtoICMP {
			network = []string{"ip4:1", "ip6:58"}[family]
		}
		key := fmt.Sprint(s.name, network)
		if raws[key] == nil {
			raws[key] = c.listenRaw(s, network, s.addr[family].String())
			c.t.Cleanup(func() { raws[key].Close() })
		}
		return raws[key]
	}
	for _, f := range c.flows {
		for _, s := range []*station{f.from, f.to} {
			if c.witnesses[s.NS] == nil {
				c.witnesses[s.NS] = newWitness(c.t, s.NS, "eth0")
			}
			c.witnesses[s.NS].flows[f.number] = f
		}
		if f.protocol == testpkt.ProtoSCTP || f.isEcho() {
			f.raw = &rawEnds{raw(f.from, f.family(), f.protocol), raw(f.to, f.family(), f.protocol)}
		}
		f.open(c.t)
	}
}

// look returns the packets that have arrived since the last call.
func (c *cutSite) look() map[[2]int][]arrival {
	c.t.Helper()
	all := map[[2]int][]arrival{}
	for ns, w := range c.witnesses {
		for key, list := range w.look(c.t) {
			// Each packet counts at the end to which it was sent.
			if f := c.flows[key[0]]; ns == []*station{f.to, f.from}[key[1]].NS {
				all[key] = append(all[key], list...)
				c.arrived[key] += uint64(len(list))
			}
		}
	}
	return all
}

// cut is one change that forbids flows.
type cut struct {
	name   string
	change func()
	// outside: flows from outside are forbidden too. Nothing restricts what hosts outside send.
	outside bool
}

// cuts returns the changes; each begins with the policies as at first.
func (c *cutSite) cuts() []cut {
	label := func(app string, names ...string) func() {
		return func() {
			for _, name := range names {
				c.labels[name] = app
			}
		}
	}
	team := func(namespace, value string) func() {
		return func() { c.namespaces[namespace] = map[string]string{"team": value} }
	}
	return []cut{
		{"rule of servers", func() { c.in = "none" }, true},
		{"rule of clients", func() { c.out = "none" }, false},
		{"label of servers, subjects", label(closed, "server", "far"), true},
		{"label of servers, peers", label(foreign, "server", "far"), false},
		{"label of clients, subjects", label(closed, "client", "outside"), false},
		{"label of clients, peers", label(foreign, "client", "outside"), true},
		{"label of the servers' Namespace, subjects", team("servers", closed), true},
		{"label of the servers' Namespace, peers", team("servers", foreign), false},
		{"label of the clients' Namespace, subjects", team("clients", closed), false},
		{"label of the clients' Namespace, peers", team("clients", foreign), true},
	}
}

// cutRounds is how often TestCut makes each change, for how long each forbids.
func cutRounds(t *testing.T) (rounds int, window time.Duration) {
	v := os.Getenv("LOXILIGHT_CUTS")
	if v == "" {
		return 1, 300 * time.Millisecond
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("LOXILIGHT_CUTS=%s: %v", v, err)
	}
	return n, time.Second
}

// TestCut: a change of policies ends running connections at the moment at which it is Ready, on every
// path; no packet of other connections is lost. LOXILIGHT_CUTS is how often each change is made.
func TestCut(t *testing.T) {
	for _, kind := range []clusterKind{{tunnel: "vxlan"}, {merged: true}} {
		t.Run(kind.String(), func(t *testing.T) {
			c := newCutSite(t, kind)
			c.nodes[0].Apply(c.services())
			if kind.merged {
				c.enableXDP()
			}
			c.openAll()
			tr := startTraffic(t, c.flows)
			c.resumes("at first", time.Now())
			time.Sleep(2 * changeTick) // the third request of an echo knows through which port it leaves
			if kind.merged {
				c.usesXDP()
			}
			rounds, window := cutRounds(t)
			for range rounds {
				c.muteTwice(tr, true)
				time.Sleep(250 * time.Millisecond) // their last segments are acknowledged
				c.cutBy(tr, c.cuts()[0], window)
				c.muteTwice(tr, false)
				for _, change := range c.cuts() {
					c.cutBy(tr, change, window)
				}
			}
			tr.end()
			c.expectUnharmed()
		})
	}
}

// evaluated counts the packets of a node that left the fast path because policies had changed, and those
// that policies denied.
type evaluated struct{ again, denied uint64 }

// evaluatedSoFar returns the counters of all nodes, while no flow sends.
func (c *cutSite) evaluatedSoFar(tr *traffic) (all []evaluated) {
	c.t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	time.Sleep(20 * time.Millisecond) // packets under way
	for _, n := range c.nodes {
		read := func() evaluated {
			counters := n.Counters("", "")
			return evaluated{counters.Verdicts["evaluated"], counters.Drops["policy"]}
		}
		now := read()
		for next := read(); next != now; next = read() { // TCP sends again
			now = next
		}
		all = append(all, now)
	}
	return all
}

// isTwiceOf reports whether packets of a flow are evaluated twice: in the host, which translates their
// source, and in the switch, where they are of the node.
func (c *cutSite) isTwiceOf(f *flow) bool { return f.source == "snat" && !c.merged }

// isTwice reports whether such flows send.
func (c *cutSite) isTwice() bool {
	return slices.ContainsFunc(c.flows, func(f *flow) bool { return c.isTwiceOf(f) && !f.muted })
}

// muteTwice stops, or continues, the flows whose packets are evaluated twice.
func (c *cutSite) muteTwice(tr *traffic, muted bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, f := range c.flows {
		f.muted = muted && c.isTwiceOf(f)
	}
}

// cutBy makes a change, and rolls it back.
func (c *cutSite) cutBy(tr *traffic, change cut, window time.Duration) {
	c.t.Helper()
	labels, namespaces, in, out := maps.Clone(c.labels), maps.Clone(c.namespaces), c.in, c.out
	counts := c.evaluatedSoFar(tr)
	change.change()
	before := time.Now()
	ready := c.setPolicies()
	took := ready.Sub(before)
	time.Sleep(50 * time.Millisecond)
	early := c.look() // packets under way
	time.Sleep(window)
	late := c.look()
	passed := 0
	for _, f := range c.flows {
		for direction := range 2 {
			key := [2]int{f.number, direction}
			if !f.cut || f.from.node == 0 && !change.outside {
				if len(late[key]) == 0 && f.arrivesAt(direction) {
					c.t.Errorf("%s: %s, direction %d: no packet passes", change.name, f, direction)
				}
				continue
			}
			leaks := len(late[key])
			for _, a := range early[key] {
				if f.protocol != testpkt.ProtoTCP && a.sent.After(ready) {
					leaks++
				}
			}
			if leaks > 0 {
				c.t.Errorf("%s: %s, direction %d: %d packets pass after the change is Ready", change.name, f, direction, leaks)
			}
			passed += leaks
		}
	}
	for i, now := range c.evaluatedSoFar(tr) {
		again, denied := now.again-counts[i].again, now.denied-counts[i].denied
		if again < denied || again > denied && !(change.outside && c.isTwice()) || i == 0 && denied == 0 {
			c.t.Errorf("%s, node %d: %d packets have left the fast path, %d were denied", change.name, i+1, again, denied)
		}
	}
	c.labels, c.namespaces, c.in, c.out = labels, namespaces, in, out
	ready = c.setPolicies()
	resumed := c.resumes("after "+change.name, ready)
	// In the tick of a change, each packet of its ports is evaluated.
	time.Sleep(time.Until(ready.Add(2 * changeTick)))
	c.t.Logf("%s: Ready after %s; %d forbidden packets passed; all flows resumed after %s", change.name, took, passed, resumed)
}

// changeTick is the unit in which the programs note the time of changes.
const changeTick = 135 * time.Millisecond

// resumes waits until a packet of each flow and direction that was sent after a moment has arrived.
func (c *cutSite) resumes(when string, since time.Time) time.Duration {
	c.t.Helper()
	want := map[[2]int]bool{}
	for _, f := range c.flows {
		for direction := range 2 {
			if f.arrivesAt(direction) {
				want[[2]int{f.number, direction}] = true
			}
		}
	}
	for end := time.Now().Add(10 * time.Second); len(want) > 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for key, list := range c.look() {
			if slices.ContainsFunc(list, func(a arrival) bool { return a.sent.IsZero() || a.sent.After(since) }) {
				delete(want, key)
			}
		}
	}
	for key := range want {
		f := c.flows[key[0]]
		c.t.Errorf("%s: %s, direction %d: no packet arrives; %v", when, f, key[1], f.errors)
	}
	if c.t.Failed() {
		c.t.FailNow()
	}
	return time.Since(since)
}

// expectUnharmed fails the test if a packet of an unrelated flow was lost.
func (c *cutSite) expectUnharmed() {
	c.t.Helper()
	time.Sleep(100 * time.Millisecond) // the last packets
	c.look()
	for _, f := range c.flows {
		if f.cut {
			continue
		}
		for direction, tcp := range f.tcp {
			if tcp == nil {
				continue
			}
			if n, err := retransmitted(tcp); n > 0 || err != nil {
				c.t.Errorf("%s, direction %d: %d segments were sent again; %v", f, direction, n, err)
			}
		}
		if f.protocol == testpkt.ProtoTCP {
			continue
		}
		for direction := range 2 {
			sent := f.sent[direction]
			if f.isEcho() {
				sent = f.sent[0]
			}
			if got := c.arrived[[2]int{f.number, direction}]; got != sent {
				c.t.Errorf("%s, direction %d: %d of %d packets have arrived", f, direction, got, sent)
			}
		}
	}
}

// enableXDP attaches the XDP program to the uplinks.
func (c *cutSite) enableXDP() {
	c.t.Helper()
	for _, s := range c.stations {
		switch s.kind {
		case aPod: // a target of XDP
			s.Offload(c.t, "eth0", true, testnet.GRO)
		case outside: // XDP leaves incomplete checksums to tc
			s.Offload(c.t, "eth0", false, testnet.TxChecksum)
		}
	}
	for _, n := range c.nodes {
		n.LLCLI("interface", "set", "eth0", "--xdp", "native", "--wait", "10s")
	}
}

// usesXDP fails the test unless XDP forwards the packets from outside: then nothing else sees them on the
// uplink.
func (c *cutSite) usesXDP() {
	c.t.Helper()
	w := newWitness(c.t, c.nodes[0].node, "eth0")
	for _, f := range c.flows {
		if f.from.node == 0 && (f.protocol == testpkt.ProtoTCP || f.protocol == testpkt.ProtoUDP) {
			w.flows[f.number] = f
		}
	}
	time.Sleep(300 * time.Millisecond)
	for key, list := range w.look(c.t) {
		if key[1] == 0 && len(list) > 1 {
			c.t.Errorf("%s: %d packets bypass XDP", c.flows[key[0]], len(list))
		}
	}
}

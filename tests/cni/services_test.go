// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
)

// target is a station behind services that are configured on every node, as in a cluster.
type target struct {
	*station
	number int
}

// vip returns the address of the target for one kind of service: 10.96.0.N, fd96::N.
func (g *target) vip(format4, format6 string, family int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf([]string{format4, format6}[family], g.number))
}

func (g *target) clusterIP(family int) netip.Addr { return g.vip("10.96.0.%d", "fd96::%d", family) }
func (g *target) externalIP(family int) netip.Addr {
	return g.vip("198.51.100.%d", "2001:db8:51::%d", family)
}
func (g *target) balancerIP(family int) netip.Addr {
	return g.vip("192.0.2.20%d", "2001:db8:2::20%d", family)
}
func (g *target) nodePort() uint16 { return uint16(30000 + g.number) }

const clusterPort = 8080 // of all services except node ports

// announcer is the node that answers for load-balancer addresses.
const announcer = 3

// serviceObjects returns the objects of node i for a target, as an agent would apply them.
func (c *cluster) serviceObjects(i int, g *target) string {
	var docs []string
	put := func(name, more string, frontends ...netip.AddrPort) {
		var fronts, backs []string
		for _, f := range frontends {
			for _, protocol := range []string{"tcp", "udp", "sctp"} {
				fronts = append(fronts, fmt.Sprintf("%q", f.String()+"/"+protocol))
			}
		}
		for _, a := range g.addr {
			backs = append(backs, fmt.Sprintf("{address: %q}", atMatrix(a)))
		}
		docs = append(docs, fmt.Sprintf("kind: Service\nname: shop/web-%d%s\nspec: {frontends: [%s], backends: [%s]%s}",
			g.number, name, strings.Join(fronts, ", "), strings.Join(backs, ", "), more))
	}
	at := netip.AddrPortFrom
	put("", ", otherPorts: reject", at(g.clusterIP(0), clusterPort), at(g.clusterIP(1), clusterPort))
	put("/external", ", source: snat", at(g.externalIP(0), clusterPort), at(g.externalIP(1), clusterPort))
	put("/nodeport", ", source: snat", at(c.nodeAddr(i, 0), g.nodePort()), at(c.nodeAddr(i, 1), g.nodePort()))
	put("/balancer", fmt.Sprintf(", source: snat, announce: %t", i == announcer), at(g.balancerIP(0), clusterPort), at(g.balancerIP(1), clusterPort))
	return strings.Join(docs, "\n---\n")
}

// withServices configures services for the first two nodes and one pod on each, and returns these
// targets.
func (c *cluster) withServices() (targets []*target) {
	c.t.Helper()
	for _, s := range c.stations {
		c.serve(s)
		if s.node != 0 && s.node <= 2 && (s.kind == aNode || s.kind == aPod && strings.HasSuffix(s.name, "-1")) {
			targets = append(targets, &target{s, len(targets) + 1})
		}
	}
	for i, n := range c.nodes {
		// The route to all off-link addresses, including service addresses.
		n.node.Route(c.t, "default", "192.0.2.77")
		n.node.Route(c.t, "default", "2001:db8:2::77")
		var docs []string
		for _, g := range targets {
			docs = append(docs, c.serviceObjects(i+1, g))
		}
		n.LLCLI("apply", "--wait", "30s", "-f", n.File(strings.Join(docs, "\n---\n")))
	}
	for _, s := range c.stations {
		if s.kind == outside {
			s.Route(c.t, "198.51.100.0/24", "192.0.2.3")
			s.Route(c.t, "2001:db8:51::/64", "2001:db8:2::3")
		}
	}
	return targets
}

// door is a frontend that leads to a target.
type door struct {
	name string
	at   netip.AddrPort
	snat bool // the backend sees a node as its client
}

// doors returns the frontends through which a station may reach a target.
func (c *cluster) doors(from *station, g *target, family int) (list []door) {
	if from.kind != outside {
		list = append(list, door{"cluster IP", netip.AddrPortFrom(g.clusterIP(family), clusterPort), false})
	}
	list = append(list, door{"external IP", netip.AddrPortFrom(g.externalIP(family), clusterPort), true},
		door{"balancer", netip.AddrPortFrom(g.balancerIP(family), clusterPort), true})
	for i := range c.nodes {
		whose := "port of another node"
		if i+1 == from.node {
			whose = "port of its node"
		} else if from.node == 0 {
			whose = "node port"
		}
		list = append(list, door{whose, netip.AddrPortFrom(c.nodeAddr(i+1, family), g.nodePort()), true})
	}
	return list
}

// isNode reports whether an address belongs to a node: in the underlay, or in the pods' subnet as
// the address of node or switch.
func (c *cluster) isNode(a netip.Addr) bool {
	for _, s := range c.stations {
		if s.kind == aNode && (s.addr[0] == a || s.addr[1] == a) {
			return true
		}
	}
	for i := range c.nodes {
		for _, format := range []string{"10.76.%d.1", "10.76.%d.2", "fd76:%d::1", "fd76:%d::2"} {
			if a.String() == fmt.Sprintf(format, i+1) {
				return true
			}
		}
	}
	return false
}

// seenRight reports whether seen is an address that a target may see for the station from, through
// the door d.
func (c *cluster) seenRight(from *station, g *target, d door, seen netip.Addr) bool {
	switch {
	case from == g.station && from.kind == aPod: // hairpin: the source is translated
		return seen != from.addr[0] && seen != from.addr[1]
	case from == g.station && seen == d.at.Addr(): // the node to itself: from the frontend
		return true
	case from.kind == aNode || d.snat && c.isNode(seen):
		return c.isNode(seen)
	case d.snat && g.kind == aPod:
		return false
	default:
		return c.expected(from, g.station, seen)
	}
}

// TestServices: pods, nodes and a machine outside reach pods and host-network servers, on the same
// and on other nodes, through every kind of service address.
func TestServices(t *testing.T) {
	testnet.RequireRoot(t)
	var kinds []clusterKind
	for _, kind := range []clusterKind{{}, {tunnel: "vxlan"}, {merged: true}, {tunnel: "geneve", over6: true, merged: true}} {
		if only := os.Getenv("LOXILIGHT_CLUSTER"); only == "" || only == kind.String() {
			kind.pods = 2
			kinds = append(kinds, kind)
		}
	}
	eachKind(t, kinds, func(t *testing.T, c *cluster) {
		c.talkServices(c.withServices()).print(t)
		for i := range c.nodes {
			for reason, count := range c.dropped(i + 1) {
				// Kernels send ICMPv6 redirects to load balancer addresses, which count as
				// no_service.
				if reason != "no_service" {
					t.Errorf("node %d, drops %s: %d", i+1, reason, count)
				}
			}
		}
	})
}

// talkServices connects every station with every target through each door.
func (c *cluster) talkServices(targets []*target) *matrix {
	c.t.Helper()
	m := &matrix{cells: map[[2]string][2]int{}}
	var wg sync.WaitGroup
	turns := make(chan struct{}, 8)
	for i, from := range c.stations {
		if from.kind == ofPods {
			continue
		}
		for family := range from.addr {
			sctp := c.listenSCTP(from, family, "")
			wg.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				defer sctp.Close()
				number := clientPorts + 1000*i
				for _, g := range targets {
					for _, d := range c.doors(from, g, family) {
						number++
						for protocol, talk := range map[string]func() (netip.Addr, error){
							"TCP":  func() (netip.Addr, error) { return talkTCP(from, d.at) },
							"UDP":  func() (netip.Addr, error) { return talkUDP(from, d.at) },
							"SCTP": func() (netip.Addr, error) { return talkSCTP(sctp, d.at, uint16(number)) },
						} {
							seen, err := talk()
							if err == nil && !c.seenRight(from, g, d, seen) {
								err = fmt.Errorf("seen as %s", seen)
							}
							if err != nil {
								err = fmt.Errorf("%s to %s by %s: %w", from.name, g.name, d.at, err)
							}
							m.note(relation(from, g.station)+", "+d.name, protocol+map[int]string{0: "v4", 1: "v6"}[family], err)
						}
					}
				}
			})
		}
	}
	wg.Wait()
	return m
}

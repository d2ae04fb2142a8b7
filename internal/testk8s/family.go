// SPDX-License-Identifier: Apache-2.0

package testk8s

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Family contains a cluster's addresses of one family. No address is reachable outside the
// namespaces.
type Family struct {
	Name       string
	Six        bool
	Loopback   netip.Addr
	Outside    netip.Addr // the machine behind the nodes' router
	APIService netip.Addr // the first address of the Services' range

	router, outsideRouter netip.Prefix // as the nodes see it, and as the machine outside sees it
	firstNode, dnsService netip.Addr
	pods, services        string
}

// IPv4 and IPv6 are the supported families.
var (
	IPv4 = &Family{
		Name: "ipv4", Loopback: netip.MustParseAddr("127.0.0.1"), Outside: netip.MustParseAddr("192.0.2.10"), APIService: netip.MustParseAddr("10.96.0.1"),
		router: netip.MustParsePrefix("10.222.0.1/24"), outsideRouter: netip.MustParsePrefix("192.0.2.1/24"),
		firstNode: netip.MustParseAddr("10.222.0.11"), dnsService: netip.MustParseAddr("10.96.0.10"),
		pods: "10.244.0.0/16", services: "10.96.0.0/16",
	}
	IPv6 = &Family{
		Name: "ipv6", Six: true, Loopback: netip.IPv6Loopback(), Outside: netip.MustParseAddr("2001:db8:2::10"), APIService: netip.MustParseAddr("fd00:96::1"),
		router: netip.MustParsePrefix("fd00:222::1/64"), outsideRouter: netip.MustParsePrefix("2001:db8:2::1/64"),
		firstNode: netip.MustParseAddr("fd00:222::11"), dnsService: netip.MustParseAddr("fd00:96::a"),
		pods: "fd00:244::/56", services: "fd00:96::/112",
	}
)

// Families parses the families of a cluster, such as "ipv6" or "ipv4,ipv6": the first one is the
// default for Services.
func Families(text string) (all []*Family, err error) {
	for word := range strings.SplitSeq(text, ",") {
		switch word {
		case IPv4.Name:
			all = append(all, IPv4)
		case IPv6.Name:
			all = append(all, IPv6)
		default:
			return nil, fmt.Errorf("family %q: want ipv4, ipv6, or both with a comma", word)
		}
	}
	if len(all) > 2 || len(all) == 2 && all[0] == all[1] {
		return nil, fmt.Errorf("families %q: each can be named once", text)
	}
	return all, nil
}

// node returns the address of a node; the first node has index 0.
func (f *Family) node(index int) netip.Addr {
	addr := f.firstNode
	for range index {
		addr = addr.Next()
	}
	return addr
}

// with returns an address with the prefix length of the router's network.
func with(addr netip.Addr, router netip.Prefix) string {
	return netip.PrefixFrom(addr, router.Bits()).String()
}

// Has reports whether a cluster has addresses of a family.
func (c *Cluster) Has(f *Family) bool { return slices.Contains(c.Families, f) }

// Outsides returns the addresses of the machine outside, the first family first.
func (c *Cluster) Outsides() (all []netip.Addr) {
	for _, f := range c.Families {
		all = append(all, f.Outside)
	}
	return all
}

// APIServer returns the URL at which clients find the API server, on the first node.
func (c *Cluster) APIServer() string {
	return "https://" + net.JoinHostPort(c.Nodes[0].IP().String(), "6443")
}

// joined returns the values of all families, joined as Kubernetes' flags expect.
func (c *Cluster) joined(of func(*Family) string) string {
	var words []string
	for _, f := range c.Families {
		words = append(words, of(f))
	}
	return strings.Join(words, ",")
}

// serviceRange returns a flag for the programs of the control plane.
func (c *Cluster) serviceRange() string {
	return "--service-cluster-ip-range=" + c.joined(func(f *Family) string { return f.services })
}

// everywhere returns the wildcard address to listen on: :: for both families.
func (c *Cluster) everywhere() string {
	if c.Has(IPv6) {
		return "::"
	}
	return "0.0.0.0"
}

// IP returns the node's address in the cluster's first family.
func (n *Node) IP() netip.Addr { return n.IPs[0] }

// IPLike returns the node's address that has the same family as other.
func (n *Node) IPLike(other netip.Addr) netip.Addr {
	for _, ip := range n.IPs {
		if ip.Is4() == other.Is4() {
			return ip
		}
	}
	return netip.Addr{}
}

// hosts returns all of the node's addresses.
func (n *Node) hosts() (all []string) {
	for _, ip := range n.IPs {
		all = append(all, ip.String())
	}
	return all
}

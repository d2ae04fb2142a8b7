// SPDX-License-Identifier: Apache-2.0

package services

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Policy decides which addresses Services may have. Every editor of a Service can write its
// external IPs, and an address there takes over the traffic to that address in the whole cluster
// (CVE-2020-8554), so the zero value allows none.
type Policy struct {
	// ExternalIPs are the prefixes that external IPs may be in.
	ExternalIPs []netip.Prefix
	// InPool reports whether an address belongs to a pool; nil: there are no pools.
	InPool func(netip.Addr) bool
	// Ingress reports whether an address in the status of a Service may be served; nil:
	// every address may.
	Ingress func(*corev1.Service, netip.Addr) bool
	// Reserved names the owner of an address that Services must not take: a node, or a pod subnet;
	// empty: the address is free. nil: only this node is known.
	Reserved func(netip.Addr) string
}

// neverServed are the prefixes whose addresses no Service may have besides its cluster IPs.
// Loopback, multicast and unspecified addresses are not host addresses, see isHost.
var neverServed = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("0.0.0.0/8"), "an address of this network (RFC 1122)"},
}

// reserved returns the owner of an address that Services must not take, or an empty string if the
// address is free.
func (n *Node) reserved(a netip.Addr) string {
	for _, never := range neverServed {
		if never.prefix.Contains(a) {
			return "it is " + never.what
		}
	}
	if slices.Contains(n.Own, a) {
		return "it is an address of Node " + n.Name
	}
	for _, p := range n.pods {
		if p.Contains(a) {
			return "it is in the pod subnet " + p.String() + " of Node " + n.Name
		}
	}
	if n.Policy.Reserved == nil {
		return ""
	}
	return n.Policy.Reserved(a)
}

// refusesExternal returns why an external IP is not served, or an empty string if it is.
func (n *Node) refusesExternal(a netip.Addr) string {
	if why := n.reserved(a); why != "" {
		return why
	}
	if !slices.ContainsFunc(n.Policy.ExternalIPs, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return "no prefix in externalIPs.allowed (agent.yaml) contains it"
	}
	return ""
}

// refusesIngress returns why an address in the status of a Service is not served, or an empty
// string if it is.
func (n *Node) refusesIngress(s *corev1.Service, a netip.Addr) string {
	if why := n.reserved(a); why != "" {
		return why
	}
	if n.Policy.Ingress != nil && !n.Policy.Ingress(s, a) {
		return "it is in no pool, and no prefix in loadBalancer.allowed (agent.yaml) contains it"
	}
	return ""
}

// inPool reports whether an address belongs to a pool.
func (n *Node) inPool(a netip.Addr) bool { return n.Policy.InPool != nil && n.Policy.InPool(a) }

// Reserved contains the addresses of nodes and the subnets of their pods. The zero value is empty.
// A Reserved is not changed once it is in use.
type Reserved struct {
	addresses map[netip.Addr]string   // of nodes, to their names
	subnets   map[netip.Prefix]string // of pods, to the names of their nodes
	lengths   []int                   // of the subnets
}

// NewReserved reads the addresses and subnets of nodes. If several nodes have an address, the first
// node by name counts.
func NewReserved(nodes []*corev1.Node) *Reserved {
	r := &Reserved{addresses: map[netip.Addr]string{}, subnets: map[netip.Prefix]string{}}
	for _, n := range nodes {
		for _, a := range n.Status.Addresses {
			addr, ok := parseAddr(a.Address) // host names are not addresses
			if is, there := r.addresses[addr]; ok && (!there || n.Name < is) {
				r.addresses[addr] = n.Name
			}
		}
		for _, text := range podCIDRs(n) {
			p, ok := parsePrefix(text)
			if is, there := r.subnets[p]; !ok || there && is < n.Name {
				continue
			}
			r.subnets[p] = n.Name
			if !slices.Contains(r.lengths, p.Bits()) {
				r.lengths = append(r.lengths, p.Bits())
			}
		}
	}
	slices.Sort(r.lengths)
	return r
}

// Equal reports whether r and other contain the same addresses and subnets of the same nodes.
func (r *Reserved) Equal(other *Reserved) bool {
	return maps.Equal(r.addresses, other.addresses) && maps.Equal(r.subnets, other.subnets)
}

// Of returns the owner of an address, or an empty string if it has none.
func (r *Reserved) Of(a netip.Addr) string {
	if name, ok := r.addresses[a]; ok {
		return "it is an address of Node " + name
	}
	for _, bits := range r.lengths {
		p, err := a.Prefix(bits)
		if err != nil {
			continue // longer than addresses of the family
		}
		if name, ok := r.subnets[p]; ok {
			return "it is in the pod subnet " + p.String() + " of Node " + name
		}
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

// Package services translates Kubernetes Services for one node: Service and EndpointSlice objects
// in, the daemon's objects of kind Service out. It is pure computation: it contacts no other
// component, and the same input gives the same output.
package services

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Owner is the owner of these objects.
const Owner = api.OwnerK8s

// Labels of services that name the component responsible for them.
const (
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	labelHeadless  = corev1.IsHeadlessService
)

// Key names a Kubernetes Service.
type Key = types.NamespacedName

// Node is the translation's input about its node. It is not changed once it is in use: a new one
// replaces it.
type Node struct {
	Name string
	Zone string // empty: not known
	// NodePorts are the addresses at which node ports are served.
	NodePorts []netip.Addr
	// Own are all of the node's own addresses.
	Own []netip.Addr
	// Inside are the clients that reach every endpoint through external addresses as well, even if
	// only endpoints of this node serve clients from outside: the node's pods, and the node itself.
	Inside []netip.Prefix
	pods   []netip.Prefix // of Inside, the pod subnets
	// ProxyName is the label of the services that are ours; empty: services without this label.
	ProxyName string
	// IdleTimeout is the time without packets after which connections end; zero: the daemon's
	// default.
	IdleTimeout api.IdleTimeout
	// Pool reports whether a load balancer's address was assigned by us, and whether this node
	// must announce it now. nil: none was.
	Pool func(netip.Addr) (ours, here bool)
	// Policy decides which addresses Services may have.
	Policy Policy
}

// NewNode reads a Node. nodePorts are prefixes that select the addresses for node ports; if there
// is no prefix for a family, all of the node's addresses of that family are used. more are
// addresses that are missing in the node's object.
func NewNode(n *corev1.Node, nodePorts []netip.Prefix, more ...netip.Addr) *Node {
	node := &Node{Name: n.Name, Zone: n.Labels[corev1.LabelTopologyZone]}
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if addr, ok := parseAddr(a.Address); ok {
			node.Own = append(node.Own, addr)
		}
	}
	node.Own = sortedAddrs(append(node.Own, more...))
	node.NodePorts = chooseAddrs(node.Own, nodePorts)
	for _, text := range podCIDRs(n) {
		if p, err := netip.ParsePrefix(text); err == nil {
			node.pods = append(node.pods, p.Masked())
		}
	}
	node.setInside()
	return node
}

// Complete fills fields that are missing in the node's object from its earlier state: the node may
// have joined the cluster again, and may get its addresses and subnets later.
func (n *Node) Complete(before *Node) {
	if len(n.Own) == 0 {
		n.Own, n.NodePorts = before.Own, before.NodePorts
	}
	if len(n.pods) == 0 {
		n.pods = before.pods
	}
	n.setInside()
}

func (n *Node) setInside() {
	n.Inside = slices.Clone(n.pods)
	for _, a := range n.Own {
		n.Inside = append(n.Inside, netip.PrefixFrom(a, a.BitLen()))
	}
}

func podCIDRs(n *corev1.Node) []string {
	if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		return []string{n.Spec.PodCIDR}
	}
	return n.Spec.PodCIDRs
}

// chooseAddrs returns the addresses that are in the prefixes of their family.
func chooseAddrs(addrs []netip.Addr, prefixes []netip.Prefix) []netip.Addr {
	var chosen []netip.Addr
	for _, a := range addrs {
		restricted, in := false, false
		for _, p := range prefixes {
			restricted = restricted || p.Addr().Is4() == a.Is4()
			in = in || p.Contains(a)
		}
		if in || !restricted {
			chosen = append(chosen, a)
		}
	}
	return chosen
}

func sortedAddrs(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// isOwn reports whether a prefix contains an address of the node.
func (n *Node) isOwn(p netip.Prefix) bool { return slices.ContainsFunc(n.Own, p.Contains) }

// pool reports whether a load balancer's address was assigned by us.
func (n *Node) pool(a netip.Addr) (ours, here bool) {
	if n.Pool == nil {
		return false, false
	}
	return n.Pool(a)
}

// Concerns reports whether a service must be translated: it has an address of its own for clients,
// and its labels assign it to us.
func (n *Node) Concerns(s *corev1.Service) bool {
	name, ok := s.Labels[labelProxyName]
	if ok != (n.ProxyName != "") || name != n.ProxyName {
		return false
	}
	if _, headless := s.Labels[labelHeadless]; headless {
		return false
	}
	return s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone
}

// parseAddr reads an address as the API server may have accepted it years ago: with leading zeros,
// or IPv4-mapped.
func parseAddr(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		a, err = netip.ParseAddr(withoutZeros(text))
	}
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// parsePrefix reads a prefix, which may have leading zeros but must not be IPv4-mapped, and clears
// its host bits.
func parsePrefix(text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		p, err = netip.ParsePrefix(withoutZeros(text))
	}
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, false
	}
	return p.Masked(), true
}

// withoutZeros removes the leading zeros of the numbers of an IPv4 address.
func withoutZeros(text string) string {
	parts := strings.Split(text, ".")
	for i, p := range parts {
		for len(p) > 1 && p[0] == '0' && p[1] >= '0' && p[1] <= '9' {
			p = p[1:]
		}
		parts[i] = p
	}
	return strings.Join(parts, ".")
}

// isHost reports whether an address can be the unicast address of another host.
func isHost(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

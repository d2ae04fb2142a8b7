// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// role is why a service has a frontend. If there are several reasons, the first one counts.
type role uint8

const (
	roleCluster role = iota
	roleNodePort
	roleLoadBalancer
	roleExternal
)

// frontend is an address that clients connect to.
type frontend struct {
	addr  netip.AddrPort
	proto corev1.Protocol
}

// String returns address:port/protocol.
func (f frontend) String() string {
	b := make([]byte, 0, 56)
	b = f.addr.AppendTo(b)
	b = append(b, '/')
	return string(append(b, protocolWord(f.proto)...))
}

func protocolWord(p corev1.Protocol) string {
	switch p {
	case corev1.ProtocolUDP:
		return "udp"
	case corev1.ProtocolSCTP:
		return "sctp"
	default:
		return "tcp"
	}
}

// wanted is a frontend that a service is to have.
type wanted struct {
	frontend
	port int // index into the service's ports
	role role
}

// addresses are a service's addresses, of all its families.
type addresses struct {
	cluster, nodePort, balancer, external []netip.Addr
	bad                                   []string // strings that are not the address of a host
	refused                               []string // addresses that are not served, each with the reason
}

// addressesOf reads the addresses of a service. A family without a cluster IP has no other address
// either: the service does not use that family.
func addressesOf(n *Node, s *corev1.Service) *addresses {
	a := &addresses{}
	texts := s.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{s.Spec.ClusterIP}
	}
	var has [2]bool
	for _, text := range texts {
		if addr, ok := a.parse("cluster IP", text); ok && !has[family(addr)] {
			has[family(addr)] = true
			a.cluster = append(a.cluster, addr)
		}
	}
	add := func(to *[]netip.Addr, addr netip.Addr) {
		if has[family(addr)] && !slices.Contains(*to, addr) {
			*to = append(*to, addr)
		}
	}
	for _, addr := range n.NodePorts {
		add(&a.nodePort, addr)
	}
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if ingress.IP == "" || ingress.IPMode != nil && *ingress.IPMode != corev1.LoadBalancerIPModeVIP {
			continue
		}
		addr, ok := a.parse("ingress address", ingress.IP)
		if ok && !a.refuse("ingress address", addr, n.refusesIngress(s, addr)) {
			add(&a.balancer, addr)
		}
	}
	for _, text := range s.Spec.ExternalIPs {
		addr, ok := a.parse("external IP", text)
		if ok && !a.refuse("external IP", addr, n.refusesExternal(addr)) {
			add(&a.external, addr)
		}
	}
	return a
}

// refuse notes that an address is not served, unless why is empty.
func (a *addresses) refuse(what string, addr netip.Addr, why string) bool {
	if why != "" && len(a.refused) < maxProblems {
		a.refused = append(a.refused, what+" "+addr.String()+" is refused: "+why)
	}
	return why != ""
}

// parse parses an address, and records invalid texts.
func (a *addresses) parse(what, text string) (netip.Addr, bool) {
	addr, ok := parseAddr(text)
	if !ok || !isHost(addr) {
		a.bad = append(a.bad, what+" "+strconv.Quote(text))
		return netip.Addr{}, false
	}
	return addr, true
}

// family is 0 for IPv4, 1 for IPv6.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// frontends lists the frontends that a service wants, each once, in the order of its ports.
func (a *addresses) frontends(s *corev1.Service) []wanted {
	list := make([]wanted, 0, len(s.Spec.Ports)*(len(a.cluster)+len(a.balancer)+len(a.external)))
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		add := func(role role, addrs []netip.Addr, port int32) {
			if port < 1 || port > 65535 {
				return
			}
			for _, addr := range addrs {
				f := frontend{netip.AddrPortFrom(addr, uint16(port)), protocol(p.Protocol)}
				if !slices.ContainsFunc(list, func(w wanted) bool { return w.frontend == f }) {
					list = append(list, wanted{f, i, role})
				}
			}
		}
		add(roleCluster, a.cluster, p.Port)
		add(roleNodePort, a.nodePort, p.NodePort)
		add(roleLoadBalancer, a.balancer, p.Port)
		add(roleExternal, a.external, p.Port)
	}
	return list
}

// protocol returns the protocol of a port; default TCP.
func protocol(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}

// sourceRanges returns the permitted clients of a load balancer's frontends: for each family all of
// them (nil), some, or none if no range can be parsed.
func sourceRanges(n *Node, s *corev1.Service, balancer []netip.Addr) (ranges [2][]netip.Prefix, closed [2]bool, bad []string) {
	var all [2]bool
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		p, ok := parsePrefix(strings.TrimSpace(text))
		if !ok {
			bad = append(bad, "source range "+strconv.Quote(text))
			continue
		}
		f := family(p.Addr())
		all[f] = all[f] || p.Bits() == 0
		ranges[f] = append(ranges[f], p)
	}
	for f := range ranges {
		switch {
		case all[f]:
			ranges[f] = nil
			continue
		case len(ranges[f]) == 0:
			closed[f] = len(bad) > 0
			continue
		}
		// If the load balancer's address is also an address of the node, the node's own
		// connections to it have that address as source.
		if slices.ContainsFunc(ranges[f], n.isOwn) {
			for _, a := range balancer {
				if family(a) == f {
					ranges[f] = append(ranges[f], netip.PrefixFrom(a, a.BitLen()))
				}
			}
		}
		slices.SortFunc(ranges[f], netip.Prefix.Compare)
		ranges[f] = slices.Compact(ranges[f])
	}
	return ranges, closed, bad
}

// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	netutils "k8s.io/utils/net"

	"github.com/loxilight/loxilight/api"
)

// matchesNothing ends the problem of a part of a rule that is left out.
const matchesNothing = "; it matches nothing"

// peer translates one peer of a rule. ok is false if it matches nothing.
func (t *translation) peer(field string, p *networkingv1.NetworkPolicyPeer) (peer api.PolicyPeer, ok bool) {
	switch {
	case p.IPBlock != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
		t.problems.add(field+".ipBlock", "cannot be combined with a selector"+matchesNothing)
		return peer, false
	case p.IPBlock != nil:
		return t.block(field+".ipBlock", p.IPBlock)
	case p.PodSelector == nil && p.NamespaceSelector == nil:
		t.problems.add(field, "is neither a podSelector, a namespaceSelector nor an ipBlock"+matchesNothing)
		return peer, false
	}
	peer.Namespaces = t.here()
	if p.NamespaceSelector != nil {
		labels, ok := t.problems.selector(field+".namespaceSelector", p.NamespaceSelector)
		if !ok {
			return peer, false
		}
		peer.Namespaces = &api.NamespaceSelector{} // all namespaces
		if labels != nil {
			peer.Namespaces.MatchLabels, peer.Namespaces.MatchExpressions = labels.MatchLabels, labels.MatchExpressions
		}
	}
	if p.PodSelector != nil {
		if peer.Entities, ok = t.problems.selector(field+".podSelector", p.PodSelector); !ok {
			return peer, false
		}
	}
	return peer, true
}

// block translates an ipBlock. The parts of except are within cidr, contain it, or have no address
// in common with it.
func (t *translation) block(field string, b *networkingv1.IPBlock) (peer api.PolicyPeer, ok bool) {
	whole, ok := parseCIDR(b.CIDR)
	if !ok {
		t.problems.add(field+".cidr", "%q is not a prefix%s", b.CIDR, matchesNothing)
		return peer, false
	}
	peer.Prefixes = api.Words{api.Word(whole.String())}
	for i, text := range b.Except {
		at := fmt.Sprintf("%s.except[%d]", field, i)
		part, ok := parseCIDR(text)
		switch {
		case !ok:
			t.problems.add(at, "%q is not a prefix; the block matches nothing", text)
			return peer, false
		case !whole.Overlaps(part):
		case part.Bits() <= whole.Bits():
			t.problems.add(at, "%q contains the whole cidr; the block matches nothing", text)
			return peer, false
		default:
			peer.Except = append(peer.Except, api.Word(part.String()))
		}
	}
	return peer, true
}

// parseCIDR parses a prefix as API servers do: it may have host bits, leading zeros, and, for IPv4,
// the form of IPv4-mapped IPv6 addresses.
func parseCIDR(text string) (netip.Prefix, bool) {
	ip, network, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(ip)
	bits, size := network.Mask.Size()
	// ip has 16 bytes for IPv4 too: the mask has the size of the text's family.
	switch {
	case size == 32:
		addr = addr.Unmap()
	case strings.Contains(text, ":") && addr.Is4In6() && bits >= 96:
		addr, bits = addr.Unmap(), bits-96
	}
	p, err := addr.Prefix(bits)
	return p, ok && err == nil
}

// port translates one port of a rule. ok is false if it matches nothing.
func (t *translation) port(field string, p *networkingv1.NetworkPolicyPort) (port api.PolicyPort, ok bool) {
	if port.Protocol, ok = protocolOf(p.Protocol); !ok {
		t.problems.add(field+".protocol", "%q is not one of TCP, UDP, SCTP; the port matches nothing", *p.Protocol)
		return port, false
	}
	switch {
	case p.Port == nil && p.EndPort != nil:
		t.problems.add(field+".endPort", "has no port with which the range begins; the port matches nothing")
		return port, false
	case p.Port == nil:
		return port, true
	case p.Port.Type == intstr.Int:
		ok = t.numbers(field, p, &port)
		return port, ok
	case p.Port.Type != intstr.String || p.Port.StrVal == "":
		t.problems.add(field+".port", "is neither a number nor a name; the port matches nothing")
		return port, false
	case p.EndPort != nil:
		t.problems.add(field+".endPort", "cannot be combined with a named port; the port matches nothing")
		return port, false
	}
	port.Name = p.Port.StrVal
	if faults := validation.IsValidPortName(port.Name); len(faults) > 0 {
		t.problems.add(field+".port", "%q is not the name of a port: %s; the port matches nothing", port.Name, strings.Join(faults, ", "))
		return port, false
	}
	return port, true
}

// numbers translates a port with a number, or a range of them.
func (t *translation) numbers(field string, p *networkingv1.NetworkPolicyPort, port *api.PolicyPort) bool {
	first := int(p.Port.IntVal)
	if first < 1 || first > 65535 {
		t.problems.add(field+".port", "%d is not between 1 and 65535; the port matches nothing", first)
		return false
	}
	port.Port = &first
	if p.EndPort == nil {
		return true
	}
	last := int(*p.EndPort)
	if last < first || last > 65535 {
		t.problems.add(field+".endPort", "%d is not between port %d and 65535; the port matches nothing", last, first)
		return false
	}
	port.End = &last
	return true
}

// protocolOf returns the name of a protocol on the channel; absent or empty means TCP.
func protocolOf(p *corev1.Protocol) (word string, ok bool) {
	if p == nil {
		return "tcp", true
	}
	switch cmp.Or(*p, corev1.ProtocolTCP) {
	case corev1.ProtocolTCP:
		return "tcp", true
	case corev1.ProtocolUDP:
		return "udp", true
	case corev1.ProtocolSCTP:
		return "sctp", true
	}
	return "", false
}

// selector translates a selector of labels; nil selects everything. ok is false if it cannot be
// understood, and must select nothing.
func (p *problems) selector(field string, s *metav1.LabelSelector) (selector *api.LabelSelector, ok bool) {
	if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		return nil, true
	}
	selector = &api.LabelSelector{}
	for key, value := range s.MatchLabels {
		if selector.MatchLabels == nil {
			selector.MatchLabels = make(map[string]string, len(s.MatchLabels))
		}
		if key == "" {
			p.add(field+".matchLabels", "a label without a name cannot match; the selector is ignored")
			return nil, false
		}
		selector.MatchLabels[labelKey(key)] = value
	}
	for i := range s.MatchExpressions {
		e, at := &s.MatchExpressions[i], fmt.Sprintf("%s.matchExpressions[%d]", field, i)
		takesValues := e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn
		switch {
		case e.Key == "":
			p.add(at+".key", "is empty; the selector is ignored")
			return nil, false
		case !takesValues && e.Operator != metav1.LabelSelectorOpExists && e.Operator != metav1.LabelSelectorOpDoesNotExist:
			p.add(at+".operator", "%q is not one of In, NotIn, Exists, DoesNotExist; the selector is ignored", e.Operator)
			return nil, false
		case takesValues && len(e.Values) == 0:
			p.add(at+".values", "is empty, but %s needs values; the selector is ignored", e.Operator)
			return nil, false
		case !takesValues && len(e.Values) > 0:
			p.add(at+".values", "is set, but %s takes no values; the selector is ignored", e.Operator)
			return nil, false
		}
		selector.MatchExpressions = append(selector.MatchExpressions, api.LabelExpression{Key: labelKey(e.Key), Operator: string(e.Operator), Values: e.Values})
	}
	return selector, true
}

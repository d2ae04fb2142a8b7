// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// defaultPodBridge is the bridge of a PodNetwork that does not configure one.
const defaultPodBridge = "hsvlan110"

// Limits on the prefix length of a pod subnet: there must be at least one address for a pod besides
// the reserved addresses, and at most as many as a cluster needs.
const (
	shortestPod4, longestPod4 = 8, 29
	shortestPod6, longestPod6 = 32, 125
)

func parsePodNetwork(s *api.PodNetworkSpec) (state.Value, *api.Error) {
	v := &state.PodNetwork{Bridge: defaultPodBridge}
	if s.Bridge != "" {
		if err := checkDevice("spec.bridge", s.Bridge); err != nil {
			return nil, err
		}
		v.Bridge = s.Bridge
	}
	if len(s.Subnets) == 0 {
		return nil, invalid("spec.subnets", "is missing: set it to one IPv4 subnet, one IPv6 subnet, or both, such as 10.244.3.0/24")
	}
	least, has := leastMTU, families(0)
	for i, text := range s.Subnets {
		field := fmt.Sprintf("spec.subnets[%d]", i)
		p, err := parsePodSubnet(text)
		if err != nil {
			return nil, invalid(field, "%q: %v", decode.Shorten(text), err)
		}
		family := familyOf(p.Addr())
		if has&family != 0 {
			return nil, invalid(field, "%s is a second %s subnet: a PodNetwork has at most one subnet per family; create another PodNetwork", p, family)
		}
		if has |= family; family == ipv6 {
			least = leastMTU6
		}
		v.Subnets = append(v.Subnets, p)
	}
	if err := checkMTU(s.MTU, least); err != nil {
		return nil, err
	}
	v.MTU = s.MTU
	required, err := choose("spec.policy", s.Policy, "optional", api.PolicyRequired)
	if err != nil {
		return nil, err
	}
	v.PolicyRequired = required == 1
	if v.Resolvers, err = parseResolvers(s.Resolvers); err != nil {
		return nil, err
	}
	if s.Masquerade == nil {
		return v, nil
	}
	v.Masquerade = s.Masquerade.Enabled
	if !v.Masquerade && len(s.Masquerade.Except) > 0 {
		return nil, invalid("spec.masquerade.except", "has no effect without masquerading: set spec.masquerade.enabled to true, or omit it")
	}
	for i, text := range s.Masquerade.Except {
		p, err := parsePrefix(text)
		if err != nil {
			return nil, invalid(fmt.Sprintf("spec.masquerade.except[%d]", i), "%q: %v", decode.Shorten(text), err)
		}
		v.Except = append(v.Except, p)
	}
	return v, nil
}

func parsePodSubnet(text string) (p netip.Prefix, err error) {
	if p, err = netip.ParsePrefix(text); err != nil {
		return p, fmt.Errorf("is not a valid prefix: want for example 10.244.3.0/24 or 2001:db8:3::/64")
	}
	if err := checkPrefix(p); err != nil {
		return p, err
	}
	shortest, longest := shortestPod4, longestPod4
	if p.Addr().Is6() {
		shortest, longest = shortestPod6, longestPod6
	}
	a := p.Addr()
	switch {
	case p.Bits() < shortest || p.Bits() > longest:
		return p, fmt.Errorf("an %s subnet for pods must have a prefix length from %d to %d", familyOf(a), shortest, longest)
	case a.IsLoopback(), a.IsMulticast(), a.IsLinkLocalUnicast(), a.Is4() && (a.As4()[0] == 0 || a.As4()[0] == 127 || a.As4()[0] >= 224):
		return p, fmt.Errorf("hosts cannot have these addresses")
	}
	return p, nil
}

// SPDX-License-Identifier: Apache-2.0

package policyreply

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath/policy"
)

// Paths returns the verdicts on traffic between two ends; nil: they have no address family in common,
// or to is a name and from is no Endpoint.
func (v *View) Paths(from, to Side, t policy.Traffic, staged bool) (paths []api.PolicyPath) {
	if to.Name != "" {
		return v.toName(from, to.Name, t, staged)
	}
	for _, path := range pathsBetween(from, to) {
		paths = append(paths, v.check(from, to, path, t, staged))
	}
	return paths
}

// mostAddrs is the most addresses of a name for which verdicts are returned.
const mostAddrs = 8

// toName returns the verdicts on traffic to the addresses that are learnt for a name, or, if there are
// none, to an address that is about to be learnt for it.
func (v *View) toName(from Side, name string, t policy.Traffic, staged bool) (paths []api.PolicyPath) {
	if from.Endpoint == "" || from.Node {
		return nil
	}
	network := ""
	if subject := v.Subject(from.Endpoint); subject != nil {
		network = subject.Network
	}
	learnt, _ := v.Learnt.PolicyAddrs(network, name) // after an error, none is learnt
	for _, a := range learnt[:min(len(learnt), mostAddrs)] {
		to := Side{Addrs: []netip.Addr{a}}
		if o := v.Of.Endpoints()[a]; o != nil {
			to.Endpoint = o.Name
		}
		for _, path := range pathsBetween(from, to) {
			p := v.check(from, to, path, t, staged)
			p.Name = name
			paths = append(paths, p)
		}
	}
	if len(paths) > 0 {
		return paths
	}
	if network != "" {
		t.Names = v.patterns(name)
	}
	for _, path := range pathsBetween(from, Side{Addrs: []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}}) {
		p := v.check(from, Side{}, path, t, staged)
		p.Destination, p.Name = "", name
		paths = append(paths, p)
	}
	return paths
}

// patterns returns the names in rules that stand for a name.
func (v *View) patterns(name string) (all []string) {
	for _, pattern := range slices.Sorted(maps.Keys(v.Names())) {
		base, below := strings.CutPrefix(pattern, "*")
		if pattern == name || below && strings.HasSuffix(name, base) && !strings.HasPrefix(name, "*") {
			all = append(all, pattern)
		}
	}
	return all
}

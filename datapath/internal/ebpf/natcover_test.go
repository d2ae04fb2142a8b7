// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// TestOtherRemotesAfterRuleChange: if a rule no longer covers an inner address, other remotes can
// no longer use the mappings of that address.
func TestOtherRemotesAfterRuleChange(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	reflector(t, n.backends, "10.0.1.11:3478")
	reflector(t, n.backends, "10.0.1.11:3481")
	c := n.client.ListenUDP(t, "192.0.2.10:5000")
	rule := masquerade("out0")
	rule.Mapping, rule.Filtering = datapath.EndpointIndependent, datapath.EndpointIndependent
	var outer netip.AddrPort
	for i, change := range []struct {
		what  string
		match datapath.Match
		heard bool
	}{
		{"all", datapath.Match{}, true},
		{"its network", datapath.Match{Source: prefixes("192.0.2.0/24", "198.51.100.0/24")}, true},
		{"another network", datapath.Match{Source: prefixes("192.0.2.64/26", "198.51.100.0/24")}, false},
		{"all again, it maps again", datapath.Match{}, true},
		{"UDP", datapath.Match{Protocols: []datapath.Protocol{datapath.UDP}}, true},
		{"TCP", datapath.Match{Protocols: []datapath.Protocol{datapath.TCP}}, false},
	} {
		change.match.Out = []string{"out0"}
		rule.Match = change.match
		n.translate(map[datapath.NATName]datapath.NAT{"away": rule})
		if len(change.match.Source) == 0 && len(change.match.Protocols) == 0 {
			outer = seenBy(t, c, fmt.Sprintf("10.0.1.11:%d", 3478+i))
		}
		if got := hears(t, c, n.backends, fmt.Sprintf("10.0.1.13:%d", 777+i), outer); got != change.heard {
			t.Errorf("for %s: another host's packet arrives: %t, want %t", change.what, got, change.heard)
		}
	}
}

// TestOtherRemotesAfterAddressChange does the same for a rule that now translates to other
// addresses.
func TestOtherRemotesAfterAddressChange(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	reflector(t, n.backends, "10.0.1.11:3478")
	c := n.client.ListenUDP(t, "192.0.2.10:5000")
	rule := masquerade("out0")
	rule.Mapping, rule.Filtering = datapath.EndpointIndependent, datapath.EndpointIndependent
	n.translate(map[datapath.NATName]datapath.NAT{"away": rule})
	outer := seenBy(t, c, "10.0.1.11:3478")
	rule.Type = datapath.SNAT
	for i, pool := range []string{outer.Addr().String() + "/32", "10.0.1.0/28", "203.0.113.0/28"} {
		rule.Addresses = prefixes(pool)
		n.translate(map[datapath.NATName]datapath.NAT{"away": rule})
		if got, want := hears(t, c, n.backends, fmt.Sprintf("10.0.1.13:%d", 777+i), outer), i < 2; got != want {
			t.Errorf("translated to %s: another host's packet arrives: %t, want %t", pool, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// TestStrangersOfChangedRule: if a rule no longer covers an inner address, other remotes cannot use
// its mappings any more.
func TestStrangersOfChangedRule(t *testing.T) {
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
		{"all again, it maps anew", datapath.Match{}, true},
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

// TestStrangersOfOuterAddress: the same if the rule translates to other addresses now.
func TestStrangersOfOuterAddress(t *testing.T) {
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

func TestCover(t *testing.T) {
	groups := map[datapath.GroupName]datapath.AddressGroup{"some": {Prefixes: prefixes("10.0.0.0/8", "10.1.0.0/16", "2001:db8::/64", "2001:db8::7/128")}, "none": {}}
	addrs := []string{"9.255.255.255", "10.0.0.0", "10.1.2.3", "10.255.255.255", "11.0.0.0", "192.0.2.1", "2001:db8::ffff", "2001:db8:0:1::"}
	for _, tt := range []struct {
		match datapath.Match
		want  string
	}{
		{datapath.Match{}, "11111111"},
		{datapath.Match{SourceGroups: []datapath.GroupName{"none"}}, "00000000"},
		{datapath.Match{SourceGroups: []datapath.GroupName{"some"}}, "01110010"},
		{datapath.Match{SourceGroups: []datapath.GroupName{"some"}, Source: prefixes("192.0.2.1/32", "0.0.0.0/5")}, "01110110"},
		{datapath.Match{Source: prefixes("0.0.0.0/0")}, "11111100"},
		{datapath.Match{Source: prefixes("10.1.0.0/16"), Protocols: []datapath.Protocol{datapath.UDP}}, "00100000"},
		{datapath.Match{Protocols: []datapath.Protocol{datapath.TCP}}, "00000000"},
	} {
		c, got := coverOf(&tt.match, groups), ""
		for _, a := range addrs {
			if c.has(netip.MustParseAddr(a), datapath.UDP) {
				got += "1"
			} else {
				got += "0"
			}
		}
		if got != tt.want {
			t.Errorf("%+v is about %s, want %s", tt.match, got, tt.want)
		}
	}
}

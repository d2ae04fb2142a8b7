// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// prefixes parses prefixes.
func prefixes(list ...string) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// TestCover checks which inner addresses and protocols a rule covers.
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

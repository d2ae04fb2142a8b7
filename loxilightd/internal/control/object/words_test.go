// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// TestWordsOfFields: each list of words has the same order as the constants that the words stand
// for.
func TestWordsOfFields(t *testing.T) {
	for _, list := range []struct {
		words []string
		want  string
	}{
		{api.Algorithms, order("maglev", datapath.Maglev, "random", datapath.Random, "round-robin", datapath.RoundRobin,
			"least-connections", datapath.LeastConnections, "source-hash", datapath.SourceHash)},
		{api.TunnelTypes, named(len(datapath.TunnelTypes), func(i int) any { return datapath.TunnelType(i) })},
		{api.XDPModes, named(3, func(i int) any { return datapath.XDPMode(i) })},
		{api.FirewallActions, named(3, func(i int) any { return datapath.FirewallAction(i) })},
		{api.SourceModes, order("auto", datapath.SourceAuto, "keep", datapath.SourceKeep, "snat", datapath.SourceSNAT)},
		{api.OtherPorts, order("pass", datapath.OtherPortsPass, "reject", datapath.OtherPortsReject, "drop", datapath.OtherPortsDrop)},
		{api.BackendStates, order("active", datapath.BackendActive, "draining", datapath.BackendDraining, "down", datapath.BackendDown)},
		{api.Roles, order("uplink", datapath.RoleUplink, "port", datapath.RolePort, "host", datapath.RoleHost, "tunnel", datapath.RoleTunnel)},
		{api.RouteTypes, order("unicast", datapath.RouteUnicast, "blackhole", datapath.RouteBlackhole,
			"unreachable", datapath.RouteUnreachable, "prohibit", datapath.RouteProhibit)},
		{api.NATTypes, order("snat", datapath.SNAT, "dnat", datapath.DNAT, "masquerade", datapath.Masquerade)},
		{api.NATBehaviours, order("address-and-port-dependent", datapath.AddressAndPortDependent, "endpoint-independent", datapath.EndpointIndependent)},
		{api.FirewallHooks, "[forward input output]"}, // hookBits
		{api.NoBackends, "[reject drop]"},             // 1: drop
		{api.MirrorDirections, "[both in out]"},       // parseMirror
		{api.Netns, "[host switch]"},                  // 1: the switch
		{api.PolicyActions, named(4, func(i int) any { return policy.Action(i) })},
		{api.PolicyDirections, named(2, func(i int) any { return policy.Direction(i) })},
		{api.PolicyStages, "[enforced staged]"}, // 1: staged
		{api.IsolateActions, "[deny reject]"},   // 1: rejects
		{api.TierPeers, "[self node]"},          // parseTier
		{api.LabelOperators, order("In", policy.In, "NotIn", policy.NotIn, "Exists", policy.Exists, "DoesNotExist", policy.DoesNotExist)},
	} {
		if got := fmt.Sprint(list.words); got != list.want {
			t.Errorf("%s, want %s", got, list.want)
		}
	}
}

// named returns the names of the first n values.
func named(n int, value func(int) any) string {
	names := make([]any, n)
	for i := range names {
		names[i] = value(i)
	}
	return fmt.Sprint(names)
}

// order sorts pairs of a word and a value by value, and returns the words.
func order(pairs ...any) string {
	words := make([]any, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		var at int
		_, _ = fmt.Sscan(fmt.Sprintf("%d", pairs[i+1]), &at) // all constants are whole numbers
		words[at] = pairs[i]
	}
	return fmt.Sprint(words)
}

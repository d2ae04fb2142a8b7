// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestUsageOfTranslation: mappings and port blocks are counted as usage of the tables that they
// can fill.
func TestUsageOfTranslation(t *testing.T) {
	n := newNetwork(t)
	later := kernel.NowTick() + 1000 // no pass ends these entries
	for i := range uint16(5) {
		key := kernel.MappingKey{Port: kernel.Swap16(1000 + i), Proto: uint8(datapath.UDP)}
		n.ok(n.d.maps[kernel.MapLlMappingOuter].Put(&key, &kernel.Mapping{CreatedTick: later}))
	}
	for i := range uint8(3) {
		key, block := kernel.BlockKey{Nth: i}, kernel.Block{First: 1000 * uint16(i), Size: 64, CreatedTick: later}
		n.ok(n.d.maps[kernel.MapLlBlock].Put(&key, &block))
		n.ok(n.d.maps[kernel.MapLlBlockOwner].Put(&kernel.BlockOwnerKey{First: block.First}, &key))
	}
	// Entries without a rule are not counted.
	n.ok(n.d.maps[kernel.MapLlMappingOuter].Put(&kernel.MappingKey{Port: 1}, &kernel.Mapping{}))
	n.ok(n.d.maps[kernel.MapLlBlockOwner].Put(&kernel.BlockOwnerKey{First: 9}, &kernel.BlockKey{Nth: 9}))
	n.ok(n.d.sweeper.Whole())
	u, err := n.d.Telemetry().Usage(context.Background())
	n.ok(err)
	for name, want := range map[string]datapath.Usage{
		"natMappings": {Used: 5, Size: uint64(n.d.maps[kernel.MapLlMappingOuter].MaxEntries())},
		"natBlocks":   {Used: 3, Size: uint64(n.d.maps[kernel.MapLlBlockOwner].MaxEntries())},
	} {
		if u[name] != want {
			t.Errorf("%s: %+v, want %+v", name, u[name], want)
		}
	}
}

// TestOwnersOfEntries: entries that packets made belong to the Service or NAT, to the client, and
// to the device of the next hop.
func TestOwnersOfEntries(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.backends.ServeTCP(t, "10.0.1.11:8080", "four")
	n.backends.ServeTCP(t, "[2001:db8:2::11]:8080", "six")
	n.put("web", datapath.Service{Frontends: bothVIPs("80"), Backends: backendAddrs(8080, "10.0.1.11", "2001:db8:2::11"), Affinity: time.Hour})
	mapped, inBlocks := masquerade("out0"), masquerade("out0")
	mapped.Match.Source, mapped.Mapping = prefixes("192.0.2.10/32"), datapath.EndpointIndependent
	inBlocks.Match.Source, inBlocks.BlockSize = prefixes("192.0.2.20/32"), 64
	n.translate(map[datapath.NATName]datapath.NAT{"mapped": mapped, "in-blocks": inBlocks})
	n.client.Addr(t, "eth0", "192.0.2.20/24")
	reflector(t, n.backends, "10.0.1.11:3478")
	for _, local := range []string{"192.0.2.10:5000", "192.0.2.10:5001", "192.0.2.20:5000"} {
		seenBy(t, n.client.ListenUDP(t, local), "10.0.1.11:3478")
	}
	n.answers("IPv4", "198.51.100.10:80", "four")
	n.answers("IPv6", "[2001:db8:9::10]:80", "six")

	found := map[string]map[datapath.Owner]uint64{}
	n.ok(n.d.Telemetry().Owners(t.Context(), func(table string, o datapath.Owner, entries uint64) {
		if found[table] == nil {
			found[table] = map[datapath.Owner]uint64{}
		}
		found[table][o] += entries
	}))
	host := netip.MustParseAddr
	for table, want := range map[string]map[datapath.Owner]uint64{
		"affinity": {
			{Service: "web", Source: host("192.0.2.10")}:     1,
			{Service: "web", Source: host("2001:db8:1::10")}: 1,
		},
		// The connection to the Service has a mapping too, since it leaves through the same device.
		"natMappings": {{NAT: "mapped", Source: host("192.0.2.10")}: 3},
		"natBlocks":   {{NAT: "in-blocks", Source: host("192.0.2.20")}: 1},
	} {
		if !maps.Equal(found[table], want) {
			t.Errorf("%s: %v, want %v", table, found[table], want)
		}
	}
	hops := found["nextHops"]
	if len(hops) != 2 || hops[datapath.Owner{Device: "in0"}] == 0 || hops[datapath.Owner{Device: "out0"}] == 0 {
		t.Errorf("next hops: %v, want some of in0 and of out0", hops)
	}
	used, _ := n.d.nexthops.Usage()
	if all := hops[datapath.Owner{Device: "in0"}] + hops[datapath.Owner{Device: "out0"}]; all != uint64(used) {
		t.Errorf("next hops: %v, want %d", hops, used)
	}
}

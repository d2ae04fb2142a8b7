// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"maps"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestCounters: the counters of a NAT are the sums over all CPUs, with the traffic of ended
// connections. They survive a restart, and end with the NAT: a new one of the same name begins at
// zero.
func TestCounters(t *testing.T) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Skip(err)
	}
	s := newPassSite(t, 1)
	id := uint32(s.ids["plain"])
	each := make([]kernel.NatStats, cpus)
	n := uint64(cpus)
	for i := range each {
		each[i] = kernel.NatStats{ConnectionCount: 3, DropCount: [4]uint64{5, 0, 7, 0}, ReusedPacketCount: 11, ReusedByteCount: 1300}
	}
	s.must(s.all.NatStats.Put(id, each))
	s.must(s.all.NatTraffic.Put(id, kernel.Traffic{PacketCount: 17, ByteCount: 1900}))
	check := func(what string, factor uint64) {
		t.Helper()
		c, ok, err := s.Counters("plain")
		drops := map[string]uint64{}
		if factor > 0 {
			drops = map[string]uint64{"no_port": 5 * n, "no_connection": 7 * n}
		}
		if err != nil || !ok || c.Connections != factor*3*n || c.Packets != factor*(11*n+17) || c.Bytes != factor*(1300*n+1900) || !maps.Equal(c.Drops, drops) {
			t.Errorf("%s: %+v, %t, %v", what, c, ok, err)
		}
	}
	check("at first", 1)
	s.again()
	check("after a restart", 1)
	if c, ok, err := s.Counters("absent"); ok || err != nil {
		t.Errorf("counters of an absent NAT: %+v, %v", c, err)
	}
	v := s.desired.Rules["plain"]
	delete(s.desired.Rules, "plain")
	s.configure()
	if c, ok, err := s.Counters("plain"); ok || err != nil {
		t.Errorf("counters of a deleted NAT: %+v, %v", c, err)
	}
	for table, left := range map[string]int{"traffic": len(entriesOf(&s.all.NatTraffic)), "names": len(entriesOf(&s.all.NatName)) - 3} {
		if left != 0 {
			t.Errorf("%d entries of the deleted NAT are left in the table of %s", left, table)
		}
	}
	s.desired.Rules["plain"] = v
	s.configure()
	check("a new one", 0)
}

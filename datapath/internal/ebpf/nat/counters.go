// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// traffic is the traffic of a NAT's connections.
type traffic struct{ packets, bytes uint64 }

func trafficOf(m map[uint32]*traffic, id uint32) *traffic {
	t := m[id]
	if t == nil {
		t = new(traffic)
		m[id] = t
	}
	return t
}

// carry adds the traffic of one direction of a connection to the totals of its NAT.
func carry(totals map[uint32]*traffic, m *kernel.CtMeta) {
	if m.NatId == 0 {
		return
	}
	t := trafficOf(totals, uint32(m.NatId))
	t.packets += m.PacketCount
	t.bytes += m.ByteCount
}

// drop moves the traffic of a deleted direction from the live to the closed totals.
func (p *Pass) drop(m *kernel.CtMeta) {
	if m.NatId == 0 {
		return
	}
	carry(p.closed, m)
	t := trafficOf(p.live, uint32(m.NatId))
	t.packets -= m.PacketCount
	t.bytes -= m.ByteCount
}

// addClosed adds the traffic of ended connections to the totals of their NATs. What could not be
// added stays for the next pass.
func (n *Table) addClosed() (err error) {
	table := &n.tables.NatTraffic
	for id, c := range n.closed {
		if n.names[uint16(id)] == "" {
			delete(n.closed, id) // the NAT is gone
			continue
		}
		var t kernel.Traffic
		if _, e := table.Find(id, &t); e != nil {
			err = errors.Join(err, e)
			continue
		}
		t.PacketCount += c.packets
		t.ByteCount += c.bytes
		if e := table.Put(id, t); e != nil {
			err = errors.Join(err, kernel.TableError("rules", e))
			continue
		}
		delete(n.closed, id)
	}
	return err
}

// Counters returns the counters of one NAT; false if it is not in force. Traffic of live
// connections is as of the last pass.
func (n *Table) Counters(name datapath.NATName) (c datapath.NATCounters, ok bool, err error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	id := uint32(n.ids[name])
	if id == 0 {
		return c, false, nil
	}
	var each []kernel.NatStats
	switch err := n.tables.NatStats.Lookup(id, &each); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return c, false, nil
	case err != nil:
		return c, false, fmt.Errorf("counters of NAT %s: %w", name, err)
	}
	var past kernel.Traffic
	if _, err := n.tables.NatTraffic.Find(id, &past); err != nil {
		return c, false, fmt.Errorf("counters of NAT %s: %w", name, err)
	}
	c.Packets, c.Bytes = past.PacketCount, past.ByteCount
	if t := n.live[id]; t != nil {
		c.Packets += t.packets
		c.Bytes += t.bytes
	}
	c.Drops = make(map[string]uint64)
	for _, s := range each {
		c.Connections += s.ConnectionCount
		c.Packets += s.ReusedPacketCount
		c.Bytes += s.ReusedByteCount
		for i, drops := range s.DropCount {
			if drops > 0 {
				c.Drops[natDrops[i]] += drops
			}
		}
	}
	return c, true, nil
}

// natDrops are the names of enum nat_drop.
var natDrops = [4]string{"no_port", "no_address", "no_connection", "other"}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/nat"
)

// heldLong moves the times of creation and last use of mappings and blocks into the past by ticks.
func (n *network) heldLong(ticks uint32) {
	n.t.Helper()
	for _, m := range []*bpfmap.Map[kernel.MappingKey, kernel.Mapping]{&n.d.tables.Mapping, &n.d.tables.MappingOuter} {
		all := map[kernel.MappingKey]kernel.Mapping{}
		n.ok(m.Batches(func(keys []kernel.MappingKey, values []kernel.Mapping) error {
			for i, k := range keys {
				all[k] = values[i]
			}
			return nil
		}))
		for k, v := range all {
			v.CreatedTick, v.UsedTick = v.CreatedTick-ticks, v.UsedTick-ticks
			n.ok(m.Put(k, v))
		}
	}
	blocks := map[kernel.BlockKey]kernel.Block{}
	n.ok(n.d.tables.Block.Batches(func(keys []kernel.BlockKey, values []kernel.Block) error {
		for i, k := range keys {
			blocks[k] = values[i]
		}
		return nil
	}))
	for k, v := range blocks {
		v.CreatedTick, v.UsedTick = v.CreatedTick-ticks, v.UsedTick-ticks
		n.ok(n.d.tables.Block.Put(k, v))
	}
}

// silent makes one direction of all IPv4 connections idle for ticks; answers: the replies.
func (n *network) silent(answers bool, ticks uint32) {
	n.t.Helper()
	all := map[kernel.Ct4Key]kernel.Ct4Val{}
	n.ok(n.d.tables.Ct4.Batches(func(keys []kernel.Ct4Key, values []kernel.Ct4Val) error {
		for i, k := range keys {
			all[k] = values[i]
		}
		return nil
	}))
	for k, v := range all {
		if v.Meta.Flags&kernel.CtReply != 0 == answers {
			v.Meta.LastSeenTick -= ticks
			n.ok(n.d.tables.Ct4.Put(k, v))
		}
	}
}

// passLater sweeps with the clock for mappings and blocks set forward by ticks.
func (n *network) passLater(ticks uint32) {
	n.t.Helper()
	n.d.nats.Now = func() uint32 { return kernel.NowTick() + ticks }
	defer func() { n.d.nats.Now = kernel.NowTick }()
	n.ok(n.d.sweeper.Whole())
}

// passLater returns the part of NAT in a pass that begins as many ticks later.
func passLater(n *nat.Table, ticks uint32) *nat.Pass {
	n.Now = func() uint32 { return kernel.NowTick() + ticks }
	defer func() { n.Now = kernel.NowTick }()
	return n.NewPass()
}

// count returns the number of entries of a map.
func (n *network) count(name string) (count int) {
	n.t.Helper()
	var key, value []byte
	it := n.d.maps[name].Iterate()
	for it.Next(&key, &value) {
		count++
	}
	n.ok(it.Err())
	return count
}

// TestIdleSinceLastPacket: a mapping, or a port block, is kept for its idle time after the last
// packet in either direction, not only after its last connection was opened (RFC 4787, REQ-5 and
// REQ-6): a client that sent for an hour, and then paused for a minute, keeps its port. Unused
// mappings and blocks end after that time.
func TestIdleSinceLastPacket(t *testing.T) {
	for _, tt := range []struct {
		name, table string
		idle        uint32
		change      func(*datapath.NAT)
	}{
		{"mapping", kernel.MapLlMappingOuter, kernel.TicksOf(datapath.MappingTimeout), func(v *datapath.NAT) { v.Mapping = datapath.EndpointIndependent }},
		{"block", kernel.MapLlBlock, kernel.TicksOf(datapath.BlockTimeout), func(v *datapath.NAT) { v.BlockSize = 64 }},
	} {
		// answers: the replies fell silent, not the client.
		for spoke, answers := range map[string]bool{"client": true, "server": false} {
			t.Run(tt.name+", the "+spoke+" spoke last", func(t *testing.T) {
				n := newNetwork(t)
				n.attach()
				rule := masquerade("out0")
				tt.change(&rule)
				n.translate(map[datapath.NATName]datapath.NAT{"away": rule})
				reflector(t, n.backends, "10.0.1.11:3478")
				c := n.client.ListenUDP(t, "192.0.2.10:5000")
				before := seenBy(t, c, "10.0.1.11:3478")

				n.heldLong(kernel.TicksOf(time.Hour))
				n.silent(answers, kernel.TicksOf(time.Hour))
				n.passLater(0)
				if got := n.count(tt.table); got != 1 {
					t.Fatalf("%d are left that a connection uses, want one", got)
				}
				flushed, err := n.d.Connections().Flush(context.Background(), datapath.ConnectionFilter{})
				if err != nil || flushed != 1 {
					t.Fatalf("%d connections ended, %v", flushed, err)
				}
				n.passLater(0)
				n.passLater(tt.idle - 10)
				if got := n.count(tt.table); got != 1 {
					t.Fatalf("%d are left before its time is over, want one", got)
				}
				if again := seenBy(t, c, "10.0.1.11:3478"); tt.name == "mapping" && again != before {
					t.Errorf("seen as %s, and before as %s", again, before)
				}
				n.heldLong(kernel.TicksOf(time.Hour))
				n.silent(true, kernel.TicksOf(time.Hour))
				n.silent(false, kernel.TicksOf(time.Hour))
				_, err = n.d.Connections().Flush(context.Background(), datapath.ConnectionFilter{})
				n.ok(err)
				n.passLater(0)
				if got := n.count(tt.table); got != 0 {
					t.Errorf("%d mappings are left, unused for an hour", got)
				}
			})
		}
	}
}

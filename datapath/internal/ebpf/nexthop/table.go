// SPDX-License-Identifier: Apache-2.0

// Package nexthop keeps the next hops that the programs learn for connections and peers: it retires
// those that may have changed, reuses their indexes, and describes the paths of connections. Others
// determine when a next hop may have changed.
package nexthop

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// Table keeps the table of next hops that the programs learn. A next hop that may have changed
// loses its index, so that connections that refer to it learn it again under another index. An
// index is reused after a sweep over all connections has found no reference to it.
type Table struct {
	options Options

	table *bpfmap.Map[uint32, kernel.Nexthop]
	ids   *bpfmap.Map[kernel.NexthopKey, uint32]
	free  *ebpf.Map // a queue
	use   *kernel.Shares

	mu      sync.Mutex
	retired map[uint32]retiredHop
	sweep   uint64         // number of the next sweep
	unused  map[uint32]int // number of successive sweeps without a reference
}

// Options are what a [Table] uses.
type Options struct {
	Tables *kernel.Tables
	Free   *ebpf.Map      // the queue of free indexes
	Shares *kernel.Shares // also written by the programs

	// Peers returns the indexes of the next hops that lead to peers.
	Peers func() map[uint32]bool
	// PeerNames returns the names of peers by their index in the maps.
	PeerNames func() map[uint32]overlay.Name
	// DeviceName returns the name of a device; "": its namespace is not in use.
	DeviceName func(netns uint8, ifindex int) string
}

// retiredHop is an index that was retired and may still be referred to.
type retiredHop struct {
	sweep uint64 // number of the first sweep that counts
	at    int    // index of its counter; -1: retired by an earlier run
}

// Adopt takes over the next hops that an earlier run learnt; first: no earlier run exists.
func Adopt(o Options, first bool) *Table {
	n := &Table{
		options: o,
		use:     o.Shares,
		table:   &o.Tables.Nexthop,
		ids:     &o.Tables.NexthopId,
		free:    o.Free,
		retired: make(map[uint32]retiredHop),
		unused:  make(map[uint32]int),
	}
	n.adopt(first)
	return n
}

// adopt determines which indexes are free. Indexes that are neither free nor in use are retired: an
// earlier run may have been about to use them, and connections may refer to them.
func (n *Table) adopt(first bool) {
	free := make(map[uint32]bool)
	var index uint32
	for n.free.LookupAndDelete(nil, &index) == nil {
		free[index] = true
	}
	used := make(map[uint32]bool)
	var key kernel.NexthopKey
	it := n.ids.Iterate()
	for it.Next(&key, &index) {
		used[index] = true
	}
	for index := uint32(1); index < kernel.NexthopCount; index++ {
		switch {
		case used[index]:
		case first || free[index]:
			n.free.Update(nil, index, ebpf.UpdateAny) // cannot fail: the queue has room for all
		default:
			n.retired[index] = retiredHop{at: -1}
		}
	}
}

// Usage returns how many indexes of next hops are in use or retired, and how many there are.
func (n *Table) Usage() (used, size uint32) {
	return atomic.LoadUint32(&n.use.NexthopTotal), kernel.NexthopCount - 1 // index 0 is not used
}

// Invalidate retires the indexes of the next hops for which match returns true. Packets of their
// connections take the slow path until the next hops are learnt again.
func (n *Table) Invalidate(match func(kernel.NexthopKey) bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var chosen []kernel.NexthopKey
	var indexes []uint32
	err := n.each(func(key kernel.NexthopKey, index uint32) {
		if match(key) {
			chosen = append(chosen, key)
			indexes = append(indexes, index)
		}
	})
	for i, key := range chosen {
		err = errors.Join(err, n.retire(key, indexes[i]))
	}
	return err
}

// Each calls see for each next hop in use.
func (n *Table) Each(see func(kernel.NexthopKey)) error {
	return n.each(func(key kernel.NexthopKey, _ uint32) { see(key) })
}

func (n *Table) each(see func(key kernel.NexthopKey, index uint32)) error {
	var key kernel.NexthopKey
	var index uint32
	it := n.ids.Iterate()
	for it.Next(&key, &index) {
		see(key, index)
	}
	if err := it.Err(); !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	return nil // entries were added or deleted; all others were seen
}

func (n *Table) retire(key kernel.NexthopKey, index uint32) error {
	if err := n.ids.Delete(key); err != nil {
		return fmt.Errorf("next hop %d: %w", index, err)
	}
	if err := n.void(index); err != nil {
		return err
	}
	n.retired[index] = retiredHop{n.sweep, CounterIndex(key)}
	return nil
}

// CounterIndex returns the index of the counter that nh.h uses for a next hop.
func CounterIndex(k kernel.NexthopKey) int {
	const devices = len(kernel.Shares{}.NexthopCount) / 2
	return int(k.Netns&1)*devices + int(k.Ifindex)%devices
}

// Retired returns the indexes that are retired and not free yet, each with the index of its
// counter; -1: retired by an earlier run.
func (n *Table) Retired() map[uint32]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	counters := make(map[uint32]int, len(n.retired))
	for index, r := range n.retired {
		counters[index] = r.at
	}
	return counters
}

// void makes a next hop invalid. Its addresses are kept for programs that have just found it valid
// and are about to write them into a packet.
func (n *Table) void(index uint32) error {
	var now kernel.Nexthop
	err := n.table.Lookup(index, &now)
	if err == nil && now.Ifindex != 0 {
		now.Ifindex = 0
		err = n.table.Put(index, now)
	}
	if err != nil {
		return fmt.Errorf("next hop %d: %w", index, err)
	}
	return nil
}

// sweepBegins is called before a sweep over the connections.
func (n *Table) sweepBegins() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sweep++
}

// sweepEnded frees the indexes to which no connection refers: retired ones at once, others after a
// few sweeps.
func (n *Table) sweepEnded(used func(index uint32) bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs error
	for index, r := range n.retired {
		// A program that was about to learn the next hop may have made it valid again.
		var now kernel.Nexthop
		if n.table.Lookup(index, &now) == nil && now.Ifindex != 0 {
			errs = errors.Join(errs, n.void(index))
			n.retired[index] = retiredHop{n.sweep, r.at}
			continue
		}
		if used(index) || n.sweep <= r.sweep {
			continue
		}
		delete(n.retired, index)
		if err := n.free.Update(nil, index, ebpf.UpdateAny); err != nil {
			errs = errors.Join(errs, fmt.Errorf("free next hop %d: %w", index, err))
		}
	}
	return errors.Join(errs, n.age(used), n.count())
}

// count sets the counters of devices to the actual numbers. A next hop that a program adds
// meanwhile may be counted twice until the next sweep.
func (n *Table) count() error {
	before, all := n.use.NexthopCount, n.use.NexthopTotal
	var seen [len(before)]uint32
	var total uint32
	add := func(at int) {
		total++
		if at >= 0 {
			seen[at]++
		}
	}
	var key kernel.NexthopKey
	var index uint32
	it := n.ids.Iterate()
	for it.Next(&key, &index) {
		add(CounterIndex(key))
	}
	if it.Err() != nil {
		return nil // entries were added or deleted: the next sweep counts them
	}
	for _, r := range n.retired {
		add(r.at)
	}
	atomic.AddUint32(&n.use.NexthopTotal, total-all)
	for at, now := range seen {
		if now != before[at] {
			atomic.AddUint32(&n.use.NexthopCount[at], now-before[at])
		}
	}
	return nil
}

// age retires next hops that have had no reference for more than three sweeps.
func (n *Table) age(used func(index uint32) bool) error {
	var old []kernel.NexthopKey
	var indexes []uint32
	var key kernel.NexthopKey
	var index uint32
	seen := make(map[uint32]int)
	it := n.ids.Iterate()
	for it.Next(&key, &index) {
		if used(index) {
			continue
		}
		seen[index] = n.unused[index] + 1
		if seen[index] > 3 {
			old = append(old, key)
			indexes = append(indexes, index)
			delete(seen, index)
		}
	}
	n.unused = seen
	var err error
	for i, key := range old {
		err = errors.Join(err, n.retire(key, indexes[i]))
	}
	return err
}

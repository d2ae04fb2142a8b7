// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestAnnouncingFails: a failed write of the announced addresses is retried without another change.
func TestAnnouncingFails(t *testing.T) {
	const patience = 90 * time.Second // three times the longest pause between attempts
	ctx := context.Background()
	n := newNetwork(t)
	n.attach()
	table := &n.d.tables.Announced
	var fill []kernel.AnnounceKey // entries of a netns that is not in use
	for i := range table.MaxEntries() + 1 {
		key := kernel.AnnounceKey{PrefixLen: 64 + 128, Ifindex: i + 1, Netns: netnsSwitch}
		if table.Put(key, kernel.Announced{Flags: kernel.AnnouncedNot}) != nil {
			break // it is full now
		}
		fill = append(fill, key)
	}
	pools := prefixes("10.0.1.200/32", "2001:db8:2::c8/128")
	rules := map[datapath.NATName]datapath.NAT{"in": {Type: datapath.DNAT, Match: datapath.Match{Destination: pools}}}
	if err := n.d.announcer.SetNAT(rules, map[datapath.NATName]uint16{"in": 1}); err == nil {
		t.Fatal("written to a full table")
	}
	if err := n.d.Maintain(ctx); err == nil {
		t.Error("maintenance reports no failure")
	}
	for _, key := range fill {
		n.ok(table.Delete(key))
	}
	out0, err := n.host().Netlink.LinkByName("out0")
	n.ok(err)
	testnet.Eventually(t, patience, "the addresses are announced", func() bool {
		_ = n.d.Maintain(ctx) // fails until the next attempt
		for _, pool := range pools {
			key := kernel.AnnounceKey{PrefixLen: 64 + 128, Ifindex: uint32(out0.Attrs().Index), Addr: kernel.AddrOf(pool.Addr())}
			if found, err := table.Find(key, &kernel.Announced{}); err != nil || !found {
				return false
			}
		}
		return true
	})
	n.ok(n.d.Maintain(ctx))
	again := n.d.announcer.Pending()
	for _, pool := range pools {
		if !slices.Contains(again, pool.Addr()) {
			t.Errorf("%s was not announced to the neighbours", pool.Addr())
		}
	}
}

// announced returns the entries of ll_announced.
func (n *network) announced() (keys []kernel.AnnounceKey) {
	n.t.Helper()
	var key kernel.AnnounceKey
	var value kernel.Announced
	it := n.d.tables.Announced.Iterate()
	for it.Next(&key, &value) {
		keys = append(keys, key)
	}
	n.ok(it.Err())
	return keys
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestAnnouncingFails: a failed write of the announced addresses is retried without another change.
func TestAnnouncingFails(t *testing.T) {
	ctx := context.Background()
	n := newNetwork(t)
	n.attach()
	a := n.d.announcer
	whole := a.table.Raw()
	raw, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.LPMTrie, KeySize: whole.KeySize(), ValueSize: whole.ValueSize(), MaxEntries: 1, Flags: unix.BPF_F_NO_PREALLOC,
	})
	n.ok(err)
	defer raw.Close()
	type announceTable = bpfmap.Map[kernel.AnnounceKey, kernel.Announced]
	tiny := &announceTable{}
	tiny.Bind(raw)
	n.ok(tiny.Put(kernel.AnnounceKey{}, kernel.Announced{})) // it is full now
	exchange := func(table *announceTable) (before *announceTable) {
		a.mu.Lock()
		defer a.mu.Unlock()
		before, a.table = a.table, table
		return before
	}
	table := exchange(tiny)
	var list []announcement
	for _, pool := range prefixes("10.0.1.200/32", "2001:db8:2::c8/128") {
		list = append(list, announcement{prefix: pool})
	}
	if err := a.set(announcedByNAT, list); err == nil {
		t.Fatal("written to another table")
	}
	if err := n.d.Maintain(ctx); err == nil {
		t.Error("maintenance reports no failure")
	}
	exchange(table)
	out0, err := n.d.namespaces[netnsHost].Netlink.LinkByName("out0")
	n.ok(err)
	testnet.Eventually(t, 3*announceRetryMax, "the addresses are announced", func() bool {
		_ = n.d.Maintain(ctx) // fails until the next attempt
		for _, x := range list {
			key := announceKey(n.d.namespaces[netnsHost], out0.Attrs().Index, x.prefix)
			if found, err := table.Find(key, &kernel.Announced{}); err != nil || !found {
				return false
			}
		}
		return true
	})
	n.ok(n.d.Maintain(ctx))
	a.mu.Lock()
	told := map[netip.Addr]bool{}
	for _, t := range a.again {
		for _, addr := range t.addrs {
			told[addr] = true
		}
	}
	a.mu.Unlock()
	for _, x := range list {
		if !told[x.prefix.Addr()] {
			t.Errorf("%s was not announced to the neighbours", x.prefix.Addr())
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// fakeNetns is a netns on whose devices nothing is sent.
type fakeNetns struct {
	id       uint8
	networks []Network
	addrs    []netip.Addr
}

func (f *fakeNetns) ID() uint8             { return f.id }
func (f *fakeNetns) Networks() []Network   { return f.networks }
func (f *fakeNetns) Addrs() []netip.Addr   { return f.addrs }
func (f *fakeNetns) Do(func() error) error { return nil }

// Devices of the host, and a bridge of the switch.
const (
	uplink = 3 + iota
	unknown
	other
	bridge
)

// newFakes returns an announcer for a host and a switch, with tables in memory.
//
//	uplink 10.0.1.1/24, unknown 10.0.2.1/24, other 10.0.3.1/24 [host]   [switch] bridge 10.0.4.0/24
func newFakes(t *testing.T, faults *testmap.Faults) *Announcer {
	network := func(index int, role Role, prefix string, neighbours ...netip.Addr) Network {
		local := map[netip.Addr]bool{netip.MustParseAddr("10.0.1.1"): true}
		return Network{Index: index, Name: fmt.Sprint("dev", index), Prefix: netip.MustParsePrefix(prefix), Neighbours: neighbours, Local: local, Role: role, Bridge: index == bridge}
	}
	host := &fakeNetns{
		networks: []Network{
			network(uplink, RoleUplink, "10.0.1.0/24", netip.MustParseAddr("10.0.1.34")),
			network(unknown, RoleUnknown, "10.0.2.0/24"), network(other, RoleOther, "10.0.3.0/24"),
		},
		addrs: []netip.Addr{netip.MustParseAddr("10.0.1.1")},
	}
	pods := &fakeNetns{id: 1, networks: []Network{network(bridge, RoleOther, "10.0.4.0/24", netip.MustParseAddr("10.0.4.9"))}}
	tables, _ := testtables.New(t, testtables.Small, faults)
	a, err := New(Options{
		Table: &tables.Announced, SwitchNetns: 1, Netns: func() []Netns { return []Netns{host, pods} }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// wantTable compares the table with its wanted entries.
func (a *Announcer) wantTable(t *testing.T, want map[kernel.AnnounceKey]kernel.Announced) {
	t.Helper()
	var key kernel.AnnounceKey
	var value kernel.Announced
	for it := a.table.Iterate(); it.Next(&key, &value); {
		if is, ok := want[key]; !ok || is != value {
			t.Errorf("netns %d, device %d, %s/%d: %+v, want %+v (%t)", key.Netns, key.Ifindex, key.Addr.Addr(), key.PrefixLen, value, is, ok)
		}
		delete(want, key)
	}
	for key := range want {
		t.Errorf("netns %d, device %d, %s/%d: missing", key.Netns, key.Ifindex, key.Addr.Addr(), key.PrefixLen)
	}
}

// TestEntries compares the entries of each source with a list by hand.
func TestEntries(t *testing.T) {
	match := func(destination string) datapath.Match {
		return datapath.Match{Destination: []netip.Prefix{netip.MustParsePrefix(destination)}}
	}
	type entry struct {
		netns, device int // device 0: the netns itself
		prefix        string
		value         kernel.Announced
	}
	addr := netip.MustParseAddr
	not := kernel.Announced{Flags: kernel.AnnouncedNot}
	for _, tt := range []struct {
		name string
		set  func(a *Announcer) error
		want []entry
	}{
		{"a pool in a network, with a neighbour and an address of the node", func(a *Announcer) error {
			pool := datapath.NAT{Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/26")}}
			return a.SetNAT(map[datapath.NATName]datapath.NAT{"pool": pool}, map[datapath.NATName]uint16{"pool": 7})
		}, []entry{
			{0, uplink, "10.0.1.0/26", kernel.Announced{NatId: 7}}, {0, uplink, "10.0.1.34/32", not}, {0, 0, "10.0.1.34/32", not},
			{0, 0, "10.0.1.0/26", kernel.Announced{NatId: 7}}, {0, 0, "10.0.1.1/32", not},
			{1, 0, "10.0.1.0/26", kernel.Announced{NatId: 7}}, {1, 0, "10.0.1.1/32", not},
		}},
		{"destinations", func(a *Announcer) error {
			return a.SetNAT(map[datapath.NATName]datapath.NAT{
				"single":      {Type: datapath.DNAT, Match: match("10.0.3.80/32")},
				"network":     {Type: datapath.DNAT, Match: match("10.0.3.96/28")},
				"unannounced": {Type: datapath.DNAT, Match: match("10.0.3.81/32"), Unannounced: true},
				"a neighbour": {Type: datapath.DNAT, Match: match("10.0.1.34/32")},
			}, map[datapath.NATName]uint16{"single": 8, "network": 9, "unannounced": 10, "a neighbour": 11})
		}, []entry{{0, other, "10.0.3.80/32", kernel.Announced{NatId: 8}}, {0, 0, "10.0.3.80/32", kernel.Announced{NatId: 8}}}},
		{"services", func(a *Announcer) error {
			return a.Services().Announce([]netip.Addr{addr("10.0.1.200"), addr("203.0.113.9"), addr("10.0.1.1")})
		}, []entry{{0, uplink, "10.0.1.200/32", kernel.Announced{}}, {0, uplink, "203.0.113.9/32", kernel.Announced{}}}},
		{"peers", func(a *Announcer) error {
			return a.SetPeers([]netip.Addr{addr("10.0.4.9"), addr("10.0.1.200")})
		}, []entry{{1, bridge, "10.0.4.9/32", kernel.Announced{Flags: kernel.AnnouncedFor}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newFakes(t, &testmap.Faults{})
			if err := tt.set(a); err != nil {
				t.Fatal(err)
			}
			want := map[kernel.AnnounceKey]kernel.Announced{}
			for _, e := range tt.want {
				want[announceKey(&fakeNetns{id: uint8(e.netns)}, e.device, netip.MustParsePrefix(e.prefix))] = e.value
			}
			a.wantTable(t, want)
		})
	}
}

// TestRetry: a failed write of the table is retried after a pause, without another change. The
// addresses are announced to the neighbours then, and a second time later.
func TestRetry(t *testing.T) {
	fails := true
	a := newFakes(t, &testmap.Faults{Fail: func() error {
		if fails {
			return unix.EIO
		}
		return nil
	}})
	vip := netip.MustParseAddr("10.0.1.200")
	if err := a.Services().Announce([]netip.Addr{vip}); !errors.Is(err, unix.EIO) {
		t.Fatalf("error %v", err)
	}
	fails = false
	if err := a.Maintain(); !errors.Is(err, unix.EIO) || a.AnnouncesService(vip) {
		t.Errorf("before the pause has ended: error %v, announced %t", err, a.AnnouncesService(vip))
	}
	a.retry = time.Now()
	if err := a.Maintain(); err != nil || !a.AnnouncesService(vip) {
		t.Errorf("after the pause: error %v, announced %t", err, a.AnnouncesService(vip))
	}
	if again := a.Pending(); !slices.Equal(again, []netip.Addr{vip}) {
		t.Errorf("%v are announced a second time, want %s", again, vip)
	}
	a.again[0].due = time.Now()
	if err := a.Maintain(); err != nil || len(a.Pending()) != 0 {
		t.Errorf("error %v; %v are announced once more", err, a.Pending())
	}
}

// TestAdopted: entries of an earlier run stay until their source has set its announcements.
func TestAdopted(t *testing.T) {
	a := newFakes(t, &testmap.Faults{})
	vip, pod := netip.MustParseAddr("10.0.1.200"), netip.MustParseAddr("10.0.4.9")
	if err := errors.Join(a.Services().Announce([]netip.Addr{vip}), a.SetPeers([]netip.Addr{pod})); err != nil {
		t.Fatal(err)
	}
	b, err := New(Options{Table: a.table, SwitchNetns: a.switchNetns, Netns: a.netns, Log: a.log})
	if err != nil {
		t.Fatal(err)
	}
	if before := b.Services().Announced(); len(before) != 1 || !before[vip] {
		t.Errorf("addresses of services of the earlier run: %v", before)
	}
	b.Services().Seed([]netip.Addr{vip})
	if err := b.SetNAT(nil, nil); err != nil || len(b.written) != 2 || len(b.Pending()) != 0 {
		t.Errorf("error %v; %d entries stay, want 2; announced again: %v", err, len(b.written), b.Pending())
	}
	if err := b.SetPeers(nil); err != nil || len(b.written) != 1 || !b.AnnouncesService(vip) {
		t.Errorf("error %v; %d entries stay, want 1", err, len(b.written))
	}
}

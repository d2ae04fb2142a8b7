// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// faultyOverlay has peers in tables in memory, whose changes fail at random.
type faultyOverlay struct {
	*Overlay
	t        *testing.T
	random   *rand.Rand
	fails    float64
	failures int
	desired  map[datapath.PeerName]datapath.Peer

	clock     int               // number of changes
	admission int               // clock when connections were last re-evaluated
	moved     int               // clock of the last change of a prefix or underlay address
	seen      map[string]string // peer of each prefix and address
	voided    map[uint32]int    // by index: clock when its next hops were last invalidated
	written   map[uint32]int    // by index: clock when its entry last changed
}

func (o *faultyOverlay) fail() error {
	if o.fails > 0 && o.random.Float64() < o.fails {
		o.failures++
		return unix.EIO
	}
	return nil
}

func newFaultyOverlay(t *testing.T, seed uint64) *faultyOverlay {
	o := &faultyOverlay{
		t: t, random: rand.New(rand.NewPCG(seed, 6)), desired: map[datapath.PeerName]datapath.Peer{},
		voided: map[uint32]int{}, written: map[uint32]int{},
	}
	all, _ := testtables.New(t, testtables.Small, &testmap.Faults{Fail: o.fail, Changed: o.note})
	o.Overlay = &Overlay{tables: all}
	o.restart()
	return o
}

// restart replaces the overlay by a new one, which adopts the tables as a new run does. The new run
// does not know which connections and next hops must still be checked again after a failed change
// of the previous run.
func (o *faultyOverlay) restart() {
	o.t.Helper()
	o.admission = o.clock
	for index := range o.written {
		o.voided[index] = o.clock
	}
	var err error
	o.Overlay, err = Adopt(Options{
		Tables: o.Overlay.tables, Ports: fakePorts{}, Netns: func(bool) (Netns, error) { return fakeNetns{}, nil },
		Announce: func([]netip.Addr) error { return nil }, Signal: func() {},
		RaiseEpoch: func() error {
			if err := o.fail(); err != nil {
				return err
			}
			o.admission = o.clock
			return nil
		},
		Invalidate: func(match func(kernel.NexthopKey) bool) error {
			if err := o.fail(); err != nil {
				return err
			}
			for index := range o.written {
				if match(kernel.NexthopKey{Dmac: [6]byte{2, 0, 0, 0, byte(index >> 8), byte(index)}}) {
					o.voided[index] = o.clock
				}
			}
			return nil
		},
	})
	if err != nil {
		o.t.Fatal(err)
	}
	for i, name := range []datapath.TunnelName{"mesh", "mesh6"} {
		spec := datapath.Tunnel{Type: datapath.TunnelGeneve, Device: "hs" + string(name), Port: 6081, VNI: uint32(i)}
		o.tunnels[name] = &tunnel{spec: spec, configured: true, whole: true, id: uint32(i + 1), keys: map[kernel.TunnelKey]bool{}, device: 20 + i}
	}
}

// references returns the index of the peer to which each prefix and each underlay address refers.
func (o *faultyOverlay) references() map[string]uint32 {
	list := map[string]uint32{}
	var prefix kernel.PeerPrefixKey
	var id kernel.PeerKey
	var index uint32
	for it := o.Overlay.tables.PeerPrefix.Iterate(); it.Next(&prefix, &index); {
		list["prefix "+prefix.Prefix().String()] = index
	}
	for it := o.Overlay.tables.PeerId.Iterate(); it.Next(&id, &index); {
		list[fmt.Sprintf("underlay %s of tunnel %d", id.Underlay.Addr(), id.TunnelId)] = index
	}
	return list
}

// note records the time of changes that affect packets.
func (o *faultyOverlay) note() {
	o.clock++
	names := map[string]string{}
	for what, index := range o.references() {
		if strings.HasSuffix(what, "of tunnel 0") {
			continue // affects only packets to be encapsulated
		}
		var name kernel.PeerName
		_, _ = o.Overlay.tables.PeerName.Find(index&peerIndexMask, &name)
		names[what] = name.Text()
	}
	added := false
	for what, index := range names {
		is, ok := o.seen[what]
		added = added || !ok || is != index
	}
	if o.seen = names; added {
		o.moved = o.clock
	}
	var entry kernel.Peer
	for index := range o.Overlay.tables.Peer.MaxEntries() {
		_ = o.Overlay.tables.Peer.Lookup(index, &entry)
		if _, was := o.written[index]; entry != (kernel.Peer{}) || was {
			if entry != (kernel.Peer{}) {
				o.written[index] = o.clock
			}
		}
	}
}

// meaning returns the effect of the tables on packets, independently of indexes.
func (o *faultyOverlay) meaning() map[string]string {
	out, byIndex := map[string]string{}, map[uint32]string{}
	var index uint32
	var name kernel.PeerName
	var entry kernel.Peer
	for it := o.Overlay.tables.PeerName.Iterate(); it.Next(&index, &name); {
		_ = o.Overlay.tables.Peer.Lookup(index, &entry)
		entry.Seed = 0
		if other, twice := out["peer "+name.Text()]; twice {
			o.t.Fatalf("peer %s exists twice: %s", name.Text(), other)
		}
		byIndex[index] = name.Text()
		out["peer "+name.Text()] = fmt.Sprintf("%s, tunnel %d, type %d, device %d, out %d, header %x",
			entry.Remote.Addr(), entry.TunnelId, entry.Type, entry.DeviceIfindex, entry.OutIfindex, entry.Header[:entry.HeaderLen])
	}
	for what, index := range o.references() {
		owner, ok := byIndex[index&peerIndexMask]
		if !ok {
			owner = fmt.Sprintf("index %d, which has no peer", index&peerIndexMask)
		}
		out[what] = fmt.Sprintf("%s, flags %x", owner, index&^peerIndexMask)
	}
	used := 0
	for index := range o.Overlay.tables.Peer.MaxEntries() {
		if _ = o.Overlay.tables.Peer.Lookup(index, &entry); entry != (kernel.Peer{}) {
			used++
		}
	}
	out["entries"] = fmt.Sprint(used)
	var gate kernel.TunnelGate
	_ = o.Overlay.tables.TunnelGate.Lookup(0, &gate)
	out["gate"] = fmt.Sprint(gate.Inside)
	return out
}

var faultyPeers = []datapath.PeerName{"n1", "n2", "n3"}

// change makes a random change of the desired peers. Each prefix and each underlay address belongs
// to at most one peer.
func (o *faultyOverlay) change() {
	r := o.random
	name := faultyPeers[r.IntN(len(faultyPeers))]
	if delete(o.desired, name); r.IntN(4) == 0 {
		return
	}
	taken := map[string]bool{}
	for _, p := range o.desired {
		for _, x := range p.Prefixes {
			taken[x.String()] = true
		}
		for _, x := range p.Underlay {
			taken[x.String()] = true
		}
	}
	p := datapath.Peer{Tunnel: []datapath.TunnelName{"mesh", "mesh", "mesh6", ""}[r.IntN(4)], Here: r.IntN(2) == 0}
	if p.Tunnel != "" {
		p.Here = false
		for _, a := range []string{"10.222.0.2", "10.222.0.3", "10.222.0.4", "fd00:222::2"} {
			if addr := netip.MustParseAddr(a); !taken[a] && r.IntN(2) == 0 {
				p.Underlay = append(p.Underlay, addr)
			}
		}
		if len(p.Underlay) == 0 {
			p.Underlay = []netip.Addr{netip.MustParseAddr("10.222.1." + string(name[1]))}
		}
	}
	for _, x := range []string{"10.244.1.0/24", "10.244.2.0/24", "10.244.9.9/32", "fd00:244:1::/64"} {
		if !taken[x] && r.IntN(2) == 0 {
			p.Prefixes = append(p.Prefixes, netip.MustParsePrefix(x))
		}
	}
	o.desired[name] = p
}

// reconcile applies the desired peers once, in a random order.
func (o *faultyOverlay) reconcile() {
	names := map[datapath.PeerName]bool{}
	for name := range o.peers {
		names[name] = true
	}
	for name := range o.desired {
		names[name] = true
	}
	for _, name := range testtables.Shuffled(o.random, names) {
		var err error
		if p, ok := o.desired[name]; ok {
			err = peerTable{o.Overlay}.Update(o.t.Context(), name, p)
		} else {
			err = peerTable{o.Overlay}.Delete(o.t.Context(), name)
		}
		if err != nil && o.fails == 0 || err != nil && !errors.Is(err, unix.EIO) {
			o.t.Fatalf("%s: %v", name, err)
		}
	}
}

// wantDesired applies the desired peers without faults, and compares the tables with the tables of
// a first run.
func (o *faultyOverlay) wantDesired(seed uint64) {
	o.t.Helper()
	o.fails = 0
	clear(o.resting)
	o.reconcile()
	o.reconcile()
	fresh := newFaultyOverlay(o.t, seed)
	fresh.desired = o.desired
	fresh.reconcile()
	have, want := o.meaning(), fresh.meaning()
	for what := range maps.Keys(want) {
		if have[what] != want[what] {
			o.t.Errorf("seed %d: %s:\nhave %s\nwant %s", seed, what, have[what], want[what])
		}
	}
	for what := range have {
		if _, ok := want[what]; !ok {
			o.t.Errorf("seed %d: %s: %s, which is not desired", seed, what, have[what])
		}
	}
	if o.admission < o.moved {
		o.t.Errorf("seed %d: connections are not admitted again after change %d, only after %d", seed, o.moved, o.admission)
	}
	var entry kernel.Peer
	for index, at := range o.written {
		if _ = o.Overlay.tables.Peer.Lookup(index, &entry); entry == (kernel.Peer{}) && o.voided[index] < at {
			o.t.Errorf("seed %d: next hops to index %d stay although its peer is gone", seed, index)
		}
	}
	for name := range o.desired {
		if ok, err := (peerTable{o.Overlay}).Verify(o.t.Context(), name); !ok || err != nil {
			o.t.Errorf("seed %d: %s does not verify: %v", seed, name, err)
		}
	}
	if o.t.Failed() {
		o.t.FailNow()
	}
}

// TestPeersUnderFaults: whichever change of a table fails, and whenever the daemon restarts, after
// the retries the tables are equivalent to the tables of a first run with the desired peers.
// Connections are evaluated again after the last change to the addresses from which peers may send,
// and no next hop refers to the entry of a deleted peer.
func TestPeersUnderFaults(t *testing.T) {
	const rounds, changes = 30, 25
	failures := 0
	for range rounds {
		seed := rand.Uint64()
		o := newFaultyOverlay(t, seed)
		for range changes {
			o.change()
			o.fails = []float64{0, 0.02, 0.1, 0.3}[o.random.IntN(4)]
			for range 1 + o.random.IntN(3) {
				o.reconcile()
				if o.random.IntN(3) == 0 {
					_ = o.Maintain()
				}
				for index := range o.resting {
					o.resting[index] = time.Time{}
				}
			}
			if o.fails = 0; o.random.IntN(5) == 0 {
				o.restart()
			}
			if o.random.IntN(3) == 0 {
				o.wantDesired(seed)
			}
		}
		o.wantDesired(seed)
		failures += o.failures
	}
	if t.Logf("%d failures", failures); failures < 100 {
		t.Error("too few failures")
	}
}

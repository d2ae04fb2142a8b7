// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/rules"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// TestGuardsUnderFaults: whichever change of a table fails, after the retries each device has
// exactly the guard that it should have, even if another device shares its bit, and connections are
// evaluated again after a device has lost an address.
func TestGuardsUnderFaults(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 7))
	var fails float64
	failures := 0
	all, maps := testtables.New(t, testtables.Small, &testmap.Faults{Fail: func() error {
		if random.Float64() < fails {
			failures++
			return unix.EIO
		}
		return nil
	}})
	g := Adopt(all, rules.NewEpoch(all).Raise)
	g.End = func() error { return nil }
	devices := []Device{{0, 5}, {0, 5 + 1<<16}, {1, 5}} // the first two share a bit
	addrs := []netip.Addr{netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("fd00:244::2")}
	desired := map[Device][]netip.Addr{} // no key: no guard
	epoch := func() uint32 {
		var e kernel.Epoch
		if err := all.Epoch.Lookup(0, &e); err != nil {
			t.Fatal(err)
		}
		return e.Count
	}
	mac := [6]byte{2, 0, 0, 0, 0, 9}
	for step := range 2000 {
		v := devices[random.IntN(len(devices))]
		before, was := desired[v]
		if delete(desired, v); random.IntN(3) > 0 {
			list := []netip.Addr{}
			for _, a := range addrs {
				if random.IntN(2) == 0 {
					list = append(list, a)
				}
			}
			desired[v] = list
		}
		raised := epoch()
		apply := func() error {
			list, ok := desired[v]
			if !ok {
				return g.Clear(v)
			}
			_, err := g.Open(v, fmt.Sprint(v), mac, list)
			return err
		}
		fails = 0.4
		for apply() != nil {
			fails *= 0.8
		}
		lost := slices.ContainsFunc(before, func(a netip.Addr) bool { return !slices.Contains(desired[v], a) })
		if _, is := desired[v]; was && is && lost && epoch() == raised {
			t.Fatalf("seed %d, step %d: %v lost an address, and its connections continue", seed, step, v)
		}
		entries := 0
		for _, x := range devices {
			list, guarded := desired[x]
			if guarded {
				entries += len(list) + 2 // the device itself, and the link-local address
				if ok, err := g.Intact(x); !ok || err != nil {
					t.Fatalf("seed %d, step %d: the guard of %v is not as it was written: %v", seed, step, x, err)
				}
			}
			at, bit := x.Word()
			var word uint64
			if err := g.bits.Lookup(at, &word); err != nil {
				t.Fatal(err)
			}
			wanted := false
			for other := range desired {
				a, b := other.Word()
				wanted = wanted || a == at && b == bit
			}
			if wanted != (word&bit != 0) {
				t.Fatalf("seed %d, step %d: bit of %v is %t, want %t", seed, step, x, word&bit != 0, wanted)
			}
		}
		if n := maps["Guard"].Len(); n != entries {
			t.Fatalf("seed %d, step %d: %d entries, want %d", seed, step, n, entries)
		}
	}
	if t.Logf("%d failures", failures); failures < 100 {
		t.Error("too few failures")
	}
}

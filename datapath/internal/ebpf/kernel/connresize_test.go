// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
)

func resizeKey(n int) Ct4Key {
	return Ct4Key{Saddr: uint32(n), Daddr: 1, Sport: uint16(n), Dport: 80, Proto: 6}
}

// holds checks that a table has exactly the entries 0 to n-1, each once, with its number.
func holds(t *testTable, n int) error {
	seen := map[Ct4Key]bool{}
	var k Ct4Key
	var v Ct4Val
	for it := t.Iterate(); it.Next(&k, &v); {
		if seen[k] {
			return fmt.Errorf("%+v exists twice", k)
		}
		seen[k] = true
	}
	if len(seen) != n {
		return fmt.Errorf("%d entries, want %d", len(seen), n)
	}
	for i := range n {
		k := resizeKey(i)
		if err := t.Lookup(&k, &v); err != nil || v.Meta.BackendId != uint32(i) {
			return fmt.Errorf("entry %d: %v, value %d", i, err, v.Meta.BackendId)
		}
	}
	return nil
}

func filledTable(t *testing.T, blocks, n int) *testTable {
	t.Helper()
	var err error
	for range 20 { // with some keys of the hash there is no room for an entry
		table := newTestTable(blocks)
		for i := 0; i < n && err == nil; i++ {
			k := resizeKey(i)
			err = table.Update(&k, &Ct4Val{Meta: CtMeta{BackendId: uint32(i), CreatedTick: 7}}, ebpf.UpdateNoExist)
		}
		if !errors.Is(err, unix.E2BIG) {
			if err != nil {
				t.Fatal(err)
			}
			return table
		}
		err = nil
	}
	t.Fatalf("no room for %d entries in %d blocks", n, blocks)
	return nil
}

// TestResize: a table that is doubled six times and halved again has the same entries after each
// step, in twice as many places, and half as many.
func TestResize(t *testing.T) {
	const n = 5 * ConnBlock * 8 / 10
	table := filledTable(t, 5, n)
	for _, double := range []bool{true, true, true, true, true, true, true, false, false, false, false, false, false, false, true} {
		before, _ := table.Segments()
		if err := table.Resize(double); err != nil {
			t.Fatal(err)
		}
		want := max(1, before/2)
		if double {
			want = min(ConnSegments, 2*before)
		}
		if now, changing := table.Segments(); now != want || changing || table.MaxEntries() != want*5*ConnBlock {
			t.Errorf("%d segments after %d, want %d; changing: %t; %d places", now, before, want, changing, table.MaxEntries())
		}
		if err := holds(table, n); err != nil {
			t.Fatalf("after the change from %d segments: %v", before, err)
		}
		if a, b := table.Fill(2), table.Fill(2); a != b {
			t.Errorf("two estimates of the same table: %v and %v", a, b)
		}
		if used := table.Fill(1000) * float64(want*5*ConnBlock); want <= 16 && used != n {
			t.Errorf("%v places are taken, want %d", used, n)
		}
	}
}

// TestResizeStops: a change of size that ends anywhere is continued by the next attempt, and all
// entries are found in between.
func TestResizeStops(t *testing.T) {
	stop := errors.New("stop")
	t.Cleanup(func() { AtStep = func(string) error { return nil } })
	for _, double := range []bool{true, false} {
		for steps := 0; ; steps++ {
			const n = 5 * ConnBlock * 6 / 10
			table := filledTable(t, 5, n)
			if !double {
				if err := table.Resize(true); err != nil {
					t.Fatal(err)
				}
			}
			left := steps
			AtStep = func(string) error {
				if left--; left < 0 {
					return stop
				}
				return nil
			}
			err := table.Resize(double)
			AtStep = func(string) error { return nil }
			for i := range n { // some exist twice
				k, v := resizeKey(i), Ct4Val{}
				if err := table.Lookup(&k, &v); err != nil || v.Meta.BackendId != uint32(i) {
					t.Fatalf("double %t, %d steps: entry %d: %v, value %d", double, steps, i, err, v.Meta.BackendId)
				}
			}
			if !errors.Is(err, stop) {
				if err != nil || steps < 4 {
					t.Errorf("ends after %d steps: %v", steps, err)
				}
				break
			}
			if _, changing := table.Segments(); changing {
				if err := table.Resize(!double); err != nil {
					t.Fatal(err)
				}
			}
			if err := holds(table, n); err != nil {
				t.Fatalf("double %t, continued after %d steps: %v", double, steps, err)
			}
		}
	}
}

// TestResizeMerges: what programs change in an entry after it was copied, and before they find the
// copy, is in the copy.
func TestResizeMerges(t *testing.T) {
	table := newTestTable(1)
	store := table.store.(*testSegments)
	find := func(k *Ct4Key) (all []*Ct4) {
		for s := range uint32(2) {
			for slot := range uint32(ConnBlock) {
				if i := slot | s<<segmentShift; table.segments[s] != nil && table.is(i, k) {
					all = append(all, table.at(i))
				}
			}
		}
		return all
	}
	for name, c := range map[string]struct {
		change func(e *Ct4)
		want   func(v *Ct4Val)
	}{
		"counters": {func(e *Ct4) { e.Meta.PacketCount += 9; e.Meta.ByteCount += 900; e.Meta.LastSeenTick = 77 },
			func(v *Ct4Val) { v.Meta.PacketCount += 9; v.Meta.ByteCount += 900; v.Meta.LastSeenTick = 77 }},
		"state": {func(e *Ct4) { e.Meta.State, e.Meta.TcpWindow = 3, 99 },
			func(v *Ct4Val) { v.Meta.State, v.Meta.TcpWindow = 3, 99 }},
		"flags": {func(e *Ct4) { e.Meta.Flags = CtLasting | 0x10 },
			func(v *Ct4Val) { v.Meta.Flags = CtLasting | 0x10 }},
		"next hop": {func(e *Ct4) { e.Meta.Nexthop, e.Meta.InPort, e.Meta.TcpAck = 0, 8, 123 },
			func(v *Ct4Val) { v.Meta.Nexthop, v.Meta.InPort, v.Meta.TcpAck = 0, 8, 123 }},
		"written anew": {func(e *Ct4) { e.Sport, e.Meta.State, e.Meta.PacketCount = 4711, 1, 1 },
			func(v *Ct4Val) { v.Sport, v.Meta.State, v.Meta.PacketCount = 4711, 1, 1<<33+1 }},
	} {
		for copied := false; !copied; { // until an entry belongs to the other segment
			k := resizeKey(rand.Int())
			v := Ct4Val{Meta: CtMeta{PacketCount: 1<<33 + 5, ByteCount: 6, LastSeenTick: 7, CreatedTick: 8, TcpAck: 9, TcpWindow: 10, State: 2, Nexthop: 12, InPort: 13, Flags: 0x20}, Sport: 1}
			if err := table.Update(&k, &v, ebpf.UpdateNoExist); err != nil {
				t.Fatal(err)
			}
			store.between = func() {
				if both := find(&k); len(both) == 2 {
					copied = true
					c.change(both[0])
				}
			}
			if err := table.Resize(true); err != nil {
				t.Fatal(err)
			}
			store.between = nil
			c.want(&v)
			var got Ct4Val
			if err := table.Lookup(&k, &got); err != nil || copied && got != v {
				t.Errorf("%s: %+v (%v), want %+v", name, got, err, v)
			}
			if err := errors.Join(table.Delete(&k), table.Resize(false)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestResizeRemoved: a connection that a program removes after it was copied stays removed, unless
// the copy was used; one whose copy is removed does not come back.
func TestResizeRemoved(t *testing.T) {
	for _, c := range []struct {
		name           string
		original, used bool // which one is removed; whether the copy carried a packet
		stays          bool
	}{{"original", true, false, false}, {"original, but the copy was used", true, true, true}, {"copy", false, false, false}} {
		table := filledTable(t, 1, 40)
		moved := map[int]bool{}
		table.store.(*testSegments).between = func() {
			for i := range 40 {
				k := resizeKey(i)
				old, was := table.locateAt(connHomes{first: table.homes(&k).first &^ segmentBits, second: table.homes(&k).second &^ segmentBits}, &k, -1)
				at, is := table.locate(&k, -1)
				if !was || !is || old == at || moved[i] {
					continue
				}
				moved[i] = true
				if c.used {
					table.at(at).Meta.PacketCount++
				}
				if c.original {
					at = old
				}
				table.remove(at, &k)
			}
		}
		if err := table.Resize(true); err != nil {
			t.Fatal(err)
		}
		if len(moved) < 5 {
			t.Fatalf("only %d entries are moved", len(moved))
		}
		for i := range 40 {
			k, v := resizeKey(i), Ct4Val{}
			err := table.Lookup(&k, &v)
			if (err == nil) != (!moved[i] || c.stays) {
				t.Errorf("%s removed: entry %d (moved: %t): %v", c.name, i, moved[i], err)
			}
		}
	}
}

// TestResizeAnew: a program removes the copy of an entry, finds the original, and uses it for a new
// connection, which stays.
func TestResizeAnew(t *testing.T) {
	table := filledTable(t, 1, 40)
	anew := map[int]bool{}
	table.store.(*testSegments).between = func() {
		for i := range 40 {
			k := resizeKey(i)
			h := table.homes(&k)
			at, copied := table.locateAt(connHomes{h.first, h.second, 0}, &k, -1)
			if h.moves == 0 || !copied || anew[i] {
				continue
			}
			anew[i] = true
			table.remove(at, &k)
			if err := table.Update(&k, &Ct4Val{Meta: CtMeta{BackendId: 1000 + uint32(i)}}, ebpf.UpdateExist); err != nil {
				t.Error(err)
			}
		}
	}
	if err := table.Resize(true); !errors.Is(err, ErrNoPlace) {
		t.Fatalf("%v, want that it continues", err)
	}
	if err := table.Resize(true); err != nil || len(anew) < 5 {
		t.Fatalf("%v; %d connections were opened anew", err, len(anew))
	}
	for i := range 40 {
		k, v, want := resizeKey(i), Ct4Val{}, uint32(i)
		if anew[i] {
			want += 1000
		}
		if err := table.Lookup(&k, &v); err != nil || v.Meta.BackendId != want {
			t.Errorf("entry %d: %v, value %d, want %d", i, err, v.Meta.BackendId, want)
		}
	}
}

// TestResizeInUse: while a table is doubled and halved again and again, entries that exist are
// always found, and others can be added and removed.
func TestResizeInUse(t *testing.T) {
	const lasting, workers = 2000, 3
	table := filledTable(t, 64, lasting)
	var lost, stop atomic.Int64
	var all sync.WaitGroup
	var running sync.RWMutex // as the kernel's RCU
	for w := range workers {
		all.Go(func() {
			for n := 0; stop.Load() == 0; n++ {
				running.RLock()
				i := rand.IntN(lasting)
				k, v := resizeKey(i), Ct4Val{}
				if err := table.Lookup(&k, &v); err != nil {
					lost.Add(1)
				}
				k = Ct4Key{Saddr: uint32(n % 300), Daddr: 2, Sport: uint16(w), Proto: 17}
				err := table.Update(&k, &v, ebpf.UpdateNoExist)
				if err != nil {
					lost.Add(1)
				}
				if err := table.Lookup(&k, &v); err != nil {
					lost.Add(1)
				}
				if err := table.Delete(&k); err != nil {
					lost.Add(1)
				}
				running.RUnlock()
			}
		})
	}
	table.store.(*testSegments).between = func() {
		running.Lock()
		defer running.Unlock()
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		for _, double := range []bool{true, true, false, false} {
			if err := table.Resize(double); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop.Store(1)
	all.Wait()
	if lost.Load() > 0 {
		t.Errorf("%d times an entry was not found, or not added", lost.Load())
	}
	if err := holds(table, lasting); err != nil {
		t.Error(err)
	}
}

// TestWalkWhileResized: a walk reads each entry once, also if the table is doubled or halved
// meanwhile, between any two steps.
func TestWalkWhileResized(t *testing.T) {
	const n = 40 * ConnBlock * 6 / 10
	t.Cleanup(func() { AtStep = func(string) error { return nil } })
	for _, size := range []int{ConnBlock, 200, 4 * ConnBlock, 1000} {
		for round := range 20 {
			table := filledTable(t, 40, n)
			for range round % 3 {
				if err := table.Resize(true); err != nil {
					t.Fatal(err)
				}
			}
			ks, vs := make([]Ct4Key, size), make([]Ct4Val, size)
			seen, done := map[Ct4Key]int{}, false
			var cursor bpfmap.Cursor
			read := func() {
				for range 1 + rand.IntN(3) {
					if done {
						return
					}
					got, err := table.BatchLookup(&cursor, ks, vs)
					for _, k := range ks[:got] {
						seen[k]++
					}
					done = errors.Is(err, ebpf.ErrKeyNotExist)
				}
			}
			table.store.(*testSegments).between = read
			AtStep = func(string) error { read(); return nil }
			most := uint32(0)
			for !done {
				if err := table.Resize(rand.IntN(2) == 0); err != nil {
					t.Fatal(err)
				}
				segments, _ := table.Segments()
				most = max(most, 2*segments)
			}
			if size < int(most)*ConnBlock {
				continue // some blocks were not read at once
			}
			if len(seen) != n {
				t.Errorf("batches of %d, round %d: %d entries, want %d", size, round, len(seen), n)
			}
			for k, times := range seen {
				if times != 1 {
					t.Fatalf("batches of %d, round %d: %+v is read %d times", size, round, k, times)
				}
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// reshape returns a type as it might be in a different version: members in a different order, with
// new members between them, and 32-bit numbers in host byte order widened to 64 bits.
func reshape(t testing.TB, random *rand.Rand, of btf.Type, key bool) btf.Type {
	t.Helper()
	switch of := of.(type) {
	case *btf.Typedef:
		if strings.HasPrefix(of.Name, "__be") {
			return of
		}
		return reshape(t, random, of.Type, key)
	case *btf.Int:
		if of.Size == 4 && !key {
			return typeU64
		}
		return of
	case *btf.Array:
		c := *of
		c.Type = reshape(t, random, of.Type, key)
		if !key {
			c.Nelems++
		}
		return &c
	case *btf.Struct:
		var members []member
		for _, m := range of.Members {
			members = append(members, member{m.Name, reshape(t, random, m.Type, key)})
		}
		random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		if !key {
			members = slices.Insert(members, random.IntN(len(members)+1), member{"future", typeU64})
		}
		s := structOf(t, members...)
		s.Name = of.Name
		return s
	}
	return of
}

// reshapeMap returns the specification of a map as it might be in a different version.
func reshapeMap(t testing.TB, random *rand.Rand, spec *ebpf.MapSpec) *ebpf.MapSpec {
	t.Helper()
	s := spec.Copy()
	if hasKeys(s.Type) {
		s.Key = reshape(t, random, s.Key, true)
	}
	s.Value = reshape(t, random, s.Value, false)
	key, err := btf.Sizeof(s.Key)
	if err != nil {
		t.Fatal(err)
	}
	value, err := btf.Sizeof(s.Value)
	if err != nil {
		t.Fatal(err)
	}
	s.KeySize, s.ValueSize = uint32(key), uint32(value)
	return s
}

// hasKeys reports whether the layout of a map's keys may vary.
func hasKeys(t ebpf.MapType) bool {
	return t == ebpf.Hash || t == ebpf.LRUHash || t == ebpf.PerCPUHash
}

// fillFields sets all fields of two layouts of the same type to the same values.
func fillFields(random *rand.Rand, a, b fields) (inA, inB []byte) {
	inA, inB = make([]byte, a.size), make([]byte, b.size)
	for i := range a.list {
		f := &a.list[i]
		g := b.find(f.name)
		if f.padding() || g == nil {
			continue
		}
		for n := range min(f.count, g.count) {
			v := random.Int64() & (1<<(8*min(f.size, g.size)-1) - 1)
			if f.enum != nil {
				v = random.Int64N(2)
			}
			setNumber(inA[f.offset+n*f.size:], f.size, v)
			setNumber(inB[g.offset+n*g.size:], g.size, v)
		}
	}
	return inA, inB
}

// TestEveryMapIsConverted: each map of this version is converted to and from a different layout,
// with fields matched by name.
func TestEveryMapIsConverted(t *testing.T) {
	testnet.RequireRoot(t)
	spec, err := kernel.LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(5, 7))
	for name, ours := range Wanted(spec.Maps, datapath.TablesFor(0)) {
		if classOf(ours).notCopied || classOf(ours).connections || ours.Type == ebpf.ArrayOfMaps {
			continue
		}
		other := reshapeMap(t, random, ours)
		t.Run(name+"/upgrade", func(t *testing.T) { convertMap(t, random, other, ours) })
		t.Run(name+"/downgrade", func(t *testing.T) { convertMap(t, random, ours, other) })
	}
}

// TestSegmentsAreConverted: each entry of an array in segments is converted to and from a different
// layout, in the segment in which it is.
func TestSegmentsAreConverted(t *testing.T) {
	testnet.RequireRoot(t)
	spec, err := kernel.LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(5, 7))
	for _, name := range []string{kernel.MapLlBackend, kernel.MapLlBackendTraffic} {
		ours := Wanted(spec.Maps, datapath.TablesFor(0))[name]
		other := ours.Copy()
		other.InnerMap = reshapeMap(t, random, ours.InnerMap)
		other.InnerMap.Flags = 0 // a segment has whole pages only with values of this version
		t.Run(name+"/upgrade", func(t *testing.T) { convertSegments(t, random, other, ours) })
		t.Run(name+"/downgrade", func(t *testing.T) { convertSegments(t, random, ours, other) })
	}
}

func convertSegments(t *testing.T, random *rand.Rand, from, to *ebpf.MapSpec) {
	dir := testnet.BPFFS(t)
	old, err := ebpf.NewMap(from)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := old.Pin(filepath.Join(dir, from.Name)); err != nil {
		t.Fatal(err)
	}
	before, err := fieldsOf(from.InnerMap.Value)
	if err != nil {
		t.Fatal(err)
	}
	after, err := fieldsOf(to.InnerMap.Value)
	if err != nil {
		t.Fatal(err)
	}
	want := map[[2]uint32][]byte{} // by segment and index
	for _, segment := range []uint32{0, 7} {
		inner, err := ebpf.NewMap(from.InnerMap)
		if err != nil {
			t.Fatal(err)
		}
		defer inner.Close()
		for _, i := range []uint32{0, 5, inner.MaxEntries() - 1} {
			a, b := fillFields(random, before, after)
			if err := inner.Put(i, a); err != nil {
				t.Fatal(err)
			}
			want[[2]uint32{segment, i}] = b
		}
		if err := old.Put(segment, inner); err != nil {
			t.Fatal(err)
		}
	}
	x, err := openMap(dir, to.Copy(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer x.target.Close()
	r := &Replacements{Maps: map[string]*ebpf.Map{to.Name: x.target}, dir: dir, log: slog.New(slog.DiscardHandler), list: []*replacement{x}}
	defer r.Close()
	if err := errors.Join(r.copy(x), r.PinNew(), r.Finish()); err != nil {
		t.Fatal(err)
	}
	for at, value := range want {
		var inner *ebpf.Map
		if err := x.target.Lookup(at[0], &inner); err != nil {
			t.Fatalf("segment %d: %v", at[0], err)
		}
		got, err := inner.LookupBytes(at[1])
		if inner.Close(); err != nil || !bytes.Equal(got, value) {
			t.Errorf("segment %d, entry %d: %x, want %x (%v)", at[0], at[1], got, value, err)
		}
	}
	if c := compareMap(x.target, to); c.action != datapath.PinsAdopt {
		t.Errorf("the next start would find: %s %s", c.action, c.reason)
	}
}

// TestLargeEntriesAreCopied: copying a map with one large entry takes memory for one entry, not for
// a whole batch of such entries, which would be gigabytes.
func TestLargeEntriesAreCopied(t *testing.T) {
	testnet.RequireRoot(t)
	spec, err := kernel.LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	ours := Wanted(spec.Maps, datapath.TablesFor(0))[kernel.MapLlShares]
	random := rand.New(rand.NewPCG(5, 7))
	other := reshapeMap(t, random, ours)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	convertMap(t, random, other, ours)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("copying %d bytes took %d MiB", ours.ValueSize, took>>20)
	}
}

// TestUnknownCounters: a downgrade continues without the counters of drop reasons that only the
// later version has.
func TestUnknownCounters(t *testing.T) {
	testnet.RequireRoot(t)
	spec, err := kernel.LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	newer := Wanted(spec.Maps, datapath.TablesFor(0))[kernel.MapLlPortDrops]
	older := newer.Copy()
	older.Key = btf.Copy(newer.Key)
	reasons := older.Key.(*btf.Struct).Members[slices.IndexFunc(older.Key.(*btf.Struct).Members, func(m btf.Member) bool { return m.Name == "reason" })].Type.(*btf.Enum)
	last := len(reasons.Values) - 2 // before DROP_MAX
	unknown := uint32(reasons.Values[last].Value)
	reasons.Values = slices.Delete(reasons.Values, last, last+1)
	dir := testnet.BPFFS(t)
	m, err := ebpf.NewMap(newer)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	counts := make([]uint64, ebpf.MustPossibleCPU())
	err = errors.Join(m.Pin(filepath.Join(dir, newer.Name)),
		m.Put(kernel.PortDropKey{Ifindex: 1, Reason: 0}, counts), m.Put(kernel.PortDropKey{Ifindex: 1, Reason: unknown}, counts))
	if err != nil {
		t.Fatal(err)
	}
	x, err := openMap(dir, older, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer x.target.Close()
	r := &Replacements{Maps: map[string]*ebpf.Map{older.Name: x.target}, dir: dir, log: slog.New(slog.DiscardHandler), list: []*replacement{x}}
	defer r.Close()
	if err := r.Copy(); err != nil {
		t.Fatal(err)
	}
	var key kernel.PortDropKey
	if err := x.target.NextKey(nil, &key); err != nil || key.Reason != 0 {
		t.Errorf("first key %+v (%v), want the known reason", key, err)
	}
	if err := x.target.NextKey(key, &key); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("another key %+v (%v)", key, err)
	}
}

// entryPair is an entry of a map in two layouts; with one value for each CPU if the map is per-CPU.
type entryPair struct {
	oldKey, newKey []byte
	old, new       [][]byte
}

func convertMap(t *testing.T, random *rand.Rand, from, to *ebpf.MapSpec) {
	dir := testnet.BPFFS(t)
	old, err := ebpf.NewMap(from)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := old.Pin(filepath.Join(dir, from.Name)); err != nil {
		t.Fatal(err)
	}
	before, err := shapeOf(from)
	if err != nil {
		t.Fatal(err)
	}
	after, err := shapeOf(to)
	if err != nil {
		t.Fatal(err)
	}
	var entries []entryPair
	for i := range min(int(old.MaxEntries()), 40) {
		var e entryPair
		e.oldKey, e.newKey = fillFields(random, before.key, after.key)
		switch {
		case !hasKeys(old.Type()) && old.Type() != ebpf.LPMTrie:
			setNumber(e.oldKey, 4, int64(i))
			setNumber(e.newKey, 4, int64(i))
		case old.Type() == ebpf.LPMTrie:
			setNumber(e.oldKey, 4, int64(old.KeySize()-4)*8) // all of its bits
			setNumber(e.newKey, 4, int64(old.KeySize()-4)*8)
		}
		copies := 1
		if perCPUMap(old) {
			copies = ebpf.MustPossibleCPU()
		}
		for range copies {
			a, b := fillFields(random, before.value, after.value)
			e.old, e.new = append(e.old, a), append(e.new, b)
		}
		var value any = e.old
		if copies == 1 && !perCPUMap(old) {
			value = e.old[0]
		}
		if err := old.Put(e.oldKey, value); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	x, err := openMap(dir, to.Copy(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	r := &Replacements{Maps: map[string]*ebpf.Map{to.Name: x.target}, dir: dir, log: slog.New(slog.DiscardHandler), list: []*replacement{x}}
	defer r.Close()
	defer x.target.Close()
	if err := errors.Join(r.copy(x), r.PinNew(), r.Finish()); err != nil {
		t.Fatal(err)
	}
	for i, e := range entries {
		var got any = new([]byte)
		if perCPUMap(old) {
			got = new([][]byte)
		}
		if err := x.target.Lookup(e.newKey, got); err != nil {
			t.Fatalf("entry %d, key %x: %v", i, e.newKey, err)
		}
		var values [][]byte
		switch v := got.(type) {
		case *[]byte:
			values = [][]byte{*v}
		case *[][]byte:
			values = *v
		}
		for cpu := range e.new {
			if !bytes.Equal(values[cpu], e.new[cpu]) {
				t.Fatalf("entry %d:\n%x\nbecame, cpu %d,\n%x, want\n%x", i, e.old[cpu], cpu, values[cpu], e.new[cpu])
			}
		}
	}
	pins, _ := filepath.Glob(filepath.Join(dir, "ll_*"))
	if want := []string{filepath.Join(dir, to.Name)}; !slices.Equal(pins, want) {
		t.Errorf("pins %v, want %v", pins, want)
	}
	if c := compareMap(x.target, to); c.action != datapath.PinsAdopt {
		t.Errorf("the next start would find: %s %s", c.action, c.reason)
	}
}

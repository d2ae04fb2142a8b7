// SPDX-License-Identifier: Apache-2.0

// Package testtables provides in-memory versions of the programs' tables, which fail on demand, for
// tests without root.
package testtables

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
)

// loadKernel parses the programs once: tests create tables many times.
var loadKernel = sync.OnceValues(kernel.LoadKernel)

// New returns tables in memory that have the types and sizes of maps.h, and the maps, keyed by the
// names of the fields of the tables.
func New(t *testing.T, sizes datapath.Tables, faults *testmap.Faults) (*kernel.Tables, map[string]*testmap.Map) {
	t.Helper()
	if os.Getenv("LL_TEST_BRIEF") != "" {
		t.Skip("an emulated machine shows nothing about maps in memory")
	}
	spec, err := loadKernel()
	if err != nil {
		t.Fatal(err)
	}
	specs := pin.Wanted(spec.Maps, sizes)
	all, maps := &kernel.Tables{}, map[string]*testmap.Map{}
	fields := reflect.ValueOf(all).Elem()
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Name
		if !fields.Type().Field(i).IsExported() {
			continue
		}
		m := testmap.New(entriesOf(specs[kernel.MapName(name)], sizes), faults)
		fields.Field(i).Addr().Interface().(interface{ BindStore(bpfmap.Store) }).BindStore(m)
		maps[name] = m
	}
	return all, maps
}

// entriesOf returns the specification of a map whose entries are those of m: for the connection table,
// the entries of its blocks; for tables of backends, the entries of their segments.
func entriesOf(m *ebpf.MapSpec, sizes datapath.Tables) *ebpf.MapSpec {
	m = m.Copy()
	switch m.Name {
	case kernel.MapLlCt4, kernel.MapLlCt6:
		m.Type, m.MaxEntries = ebpf.Hash, m.InnerMap.MaxEntries*kernel.ConnBlock
	case kernel.MapLlBackend, kernel.MapLlBackendTraffic:
		m.Type, m.MaxEntries = ebpf.Array, sizes.Backends+1
	}
	return m
}

// Failing decides which changes fail. One in eight failures simulates a crash of the daemon.
type Failing struct {
	Random   *rand.Rand
	Rate     float64 // probability of a failure of each change
	Killed   bool    // every change fails until the next run
	Failures int
}

// Fails reports whether the next change fails.
func (f *Failing) Fails() bool { return f.FailsAt(f.Rate) }

// FailsAt is Fails with a different probability.
func (f *Failing) FailsAt(rate float64) bool {
	if rate > 0 && f.Random.Float64() < rate {
		f.Failures++
		f.Killed = f.Killed || f.Random.IntN(8) == 0
		return true
	}
	return f.Killed
}

// Small has table sizes that a test fills quickly.
var Small = datapath.Tables{Connections: 16, Services: 64, Backends: 256, Affinity: 16, Ranges: 256, Rules: 64, Prefixes: 64, Entities: 64}

// Shuffled returns the keys of a map in a random order that the seed determines.
func Shuffled[K cmp.Ordered](random *rand.Rand, all map[K]bool) []K {
	order := slices.Sorted(maps.Keys(all))
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
)

// inMemory returns tables in memory that have the types and sizes of maps.h, and the maps by the
// names of the fields of tables.
func inMemory(t *testing.T, sizes datapath.Tables, faults *testmap.Faults) (*kernel.Tables, map[string]*testmap.Map) {
	t.Helper()
	spec, err := kernel.LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	specs := pin.Wanted(spec.Maps, sizes)
	all, maps := &kernel.Tables{}, map[string]*testmap.Map{}
	fields := reflect.ValueOf(all).Elem()
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Name
		m := testmap.New(specs[kernel.MapName(name)], faults)
		fields.Field(i).Addr().Interface().(interface{ BindStore(bpfmap.Store) }).BindStore(m)
		maps[name] = m
	}
	return all, maps
}

// failing decides which changes fail. One of eight failures is the death of the daemon.
type failing struct {
	random   *rand.Rand
	rate     float64 // probability of a failure of each change
	killed   bool    // everything fails until the next run
	failures int
}

func (f *failing) fails() bool { return f.failsAt(f.rate) }

func (f *failing) failsAt(rate float64) bool {
	if rate > 0 && f.random.Float64() < rate {
		f.failures++
		f.killed = f.killed || f.random.IntN(8) == 0
		return true
	}
	return f.killed
}

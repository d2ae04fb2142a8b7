// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"reflect"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
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
	specs := wantedMaps(spec.Maps, sizes)
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

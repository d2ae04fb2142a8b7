// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// TestTables: each map of maps.h with one type of key and value is a field of Tables, with the
// types that the programs use.
func TestTables(t *testing.T) {
	spec, err := LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]reflect.StructField{}
	all := reflect.TypeFor[Tables]()
	for i := range all.NumField() {
		if f := all.Field(i); f.IsExported() {
			fields[MapName(f.Name)] = f
		}
	}
	for name, m := range spec.Maps {
		switch {
		case m.Pinning != ebpf.PinByName:
			continue
		case m.Type == ebpf.Queue, m.Type == ebpf.RingBuf, m.Type == ebpf.ArrayOfMaps:
			continue // without keys, or with maps as values
		}
		f, ok := fields[name]
		delete(fields, name)
		if !ok {
			t.Errorf("%s is no field of tables", name)
			continue
		}
		if slices.Contains(m.Tags, "copy:connections") {
			continue // TestConnTable
		}
		key, value := typesOf(t, f)
		if got, want := goName(key), cName(t, m.Key); got != want {
			t.Errorf("%s has keys of type %s, in C %s", name, got, want)
		}
		if got, want := goName(value), cName(t, m.Value); got != want {
			t.Errorf("%s has values of type %s, in C %s", name, got, want)
		}
		if isPerCPU := strings.HasPrefix(f.Type.Name(), "PerCPU["); isPerCPU != (m.Type == ebpf.PerCPUArray || m.Type == ebpf.PerCPUHash) {
			t.Errorf("%s is a %s", name, m.Type)
		}
	}
	for name := range fields {
		t.Errorf("no map is called %s", name)
	}
}

// typesOf returns the types of the keys and values of a field of Tables.
func typesOf(t *testing.T, f reflect.StructField) (key, value reflect.Type) {
	t.Helper()
	lookup, ok := reflect.PointerTo(f.Type).MethodByName("Lookup")
	if !ok {
		t.Fatalf("%s is no map", f.Name)
	}
	value = lookup.Type.In(2).Elem()
	if value.Kind() == reflect.Slice {
		value = value.Elem()
	}
	return lookup.Type.In(1), value
}

// goName returns what cName returns for a type of the same name.
func goName(x reflect.Type) string { return strings.ToLower(strings.TrimPrefix(x.Name(), "kernel")) }

// cName returns the C name of a struct without underscores, or the Go name of an integer.
func cName(t *testing.T, x btf.Type) string {
	t.Helper()
	if s, ok := btf.As[*btf.Struct](x); ok {
		return strings.ReplaceAll(s.Name, "_", "")
	}
	i, ok := btf.As[*btf.Int](x)
	if !ok {
		t.Fatalf("%v is neither a struct nor an integer", x)
	}
	return map[uint32]string{1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}[i.Size]
}

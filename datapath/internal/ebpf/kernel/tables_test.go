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
	var backends []reflect.StructField // of ll_backend
	for i := range all.NumField() {
		switch f := all.Field(i); {
		case !f.IsExported():
		case MapName(f.Name) == MapLlBackend:
			backends = append(backends, f)
		default:
			fields[MapName(f.Name)] = f
		}
	}
	for name, m := range spec.Maps {
		switch {
		case m.Pinning != ebpf.PinByName:
			continue
		case slices.Contains(m.Tags, "copy:connections"):
			delete(fields, name) // TestConnTable
			continue
		case name == MapLlBackend:
			compareParts(t, backends, elementOf(t, m).(*btf.Struct))
			continue
		case name == MapLlBackendTraffic:
			m = m.InnerMap
			m.Value = elementOf(t, spec.Maps[name])
		case name == MapLlDnsStream, name == MapLlDnsPart:
			continue // only programs use them
		case m.Type == ebpf.Queue, m.Type == ebpf.RingBuf, m.Type == ebpf.ArrayOfMaps:
			continue // without keys, or with maps as values
		}
		f, ok := fields[name]
		delete(fields, name)
		if !ok {
			t.Errorf("%s is no field of tables", name)
			continue
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

// elementOf returns the type of the entries of an array in segments.
func elementOf(t *testing.T, m *ebpf.MapSpec) btf.Type {
	t.Helper()
	one, ok := btf.As[*btf.Array](m.InnerMap.Value)
	if !ok || one.Nelems != 1 {
		t.Fatalf("%s: its values are %v", m.Name, m.InnerMap.Value)
	}
	return btf.UnderlyingType(one.Type)
}

// compareParts compares fields with the members of an entry: the first one with a member of its name,
// others with the member that the rest of their name names.
func compareParts(t *testing.T, fields []reflect.StructField, entry *btf.Struct) {
	t.Helper()
	members := map[string]btf.Type{}
	for _, m := range entry.Members {
		if m.Name != "pad" {
			members[m.Name] = m.Type
		}
	}
	for _, f := range fields {
		name := strings.ToLower(strings.TrimPrefix(f.Name, fields[0].Name))
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		if members[name] == nil {
			t.Errorf("%s has no %s", entry.Name, name)
			continue
		}
		if _, value := typesOf(t, f); goName(value) != cName(t, members[name]) {
			t.Errorf("%s of %s is of type %s, in C %s", name, entry.Name, goName(value), cName(t, members[name]))
		}
		delete(members, name)
	}
	for name := range members {
		t.Errorf("%s of %s is no field of tables", name, entry.Name)
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

// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

var (
	typeU8  = &btf.Int{Name: "unsigned char", Size: 1}
	typeU16 = &btf.Int{Name: "unsigned short", Size: 2}
	typeU32 = &btf.Int{Name: "unsigned int", Size: 4}
	typeU64 = &btf.Int{Name: "unsigned long long", Size: 8}
	typeS16 = &btf.Int{Name: "short", Size: 2, Encoding: btf.Signed}
	typeS32 = &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	wire16  = &btf.Typedef{Name: "__be16", Type: typeU16}
	wire32  = &btf.Typedef{Name: "__be32", Type: typeU32}
)

type member struct {
	name string
	of   btf.Type
}

// structOf returns a struct whose members directly follow each other.
func structOf(t testing.TB, members ...member) *btf.Struct {
	t.Helper()
	s := &btf.Struct{Name: "x"}
	for _, m := range members {
		size, err := btf.Sizeof(m.of)
		if err != nil {
			t.Fatal(err)
		}
		s.Members = append(s.Members, btf.Member{Name: m.name, Type: m.of, Offset: btf.Bits(8 * s.Size)})
		s.Size += uint32(size)
	}
	return s
}

func enumOf(names ...string) *btf.Enum {
	e := &btf.Enum{Name: "e", Size: 4}
	for i, n := range names {
		e.Values = append(e.Values, btf.EnumValue{Name: n, Value: uint64(i)})
	}
	return e
}

func TestConvert(t *testing.T) {
	array := func(of btf.Type, n int) btf.Type { return &btf.Array{Index: typeU32, Type: of, Nelems: uint32(n)} }
	inner := structOf(t, member{"a", typeU16}, member{"b", typeU16})
	turned := structOf(t, member{"b", typeU16}, member{"new", typeU32}, member{"a", typeU16})
	for _, tt := range []struct {
		name     string
		from, to []member
		in, out  string // hex; out "": an error is expected
		why      string
	}{
		{"the same", []member{{"a", typeU32}, {"b", wire16}}, []member{{"a", typeU32}, {"b", wire16}}, "010203040506", "010203040506", ""},
		{"new and gone", []member{{"a", typeU16}, {"b", typeU16}}, []member{{"c", typeU8}, {"b", typeU16}}, "01020304", "000304", ""},
		{"turned round", []member{{"a", typeU16}, {"b", typeU32}}, []member{{"b", typeU32}, {"a", typeU16}}, "010203040506", "030405060102", ""},
		{"wider", []member{{"a", typeU16}, {"b", typeS16}}, []member{{"a", typeU64}, {"b", typeS32}}, "0180feff", "0180000000000000feffffff", ""},
		{"narrower", []member{{"a", typeU64}}, []member{{"a", typeU16}}, "ffff000000000000", "ffff", ""},
		{"narrower, does not fit", []member{{"a", typeU64}}, []member{{"a", typeU16}}, "0000010000000000", "", `"a": 65536 does not fit into 2 bytes`},
		{"narrower, signed", []member{{"a", typeS32}}, []member{{"a", typeS16}}, "feffffff", "feff", ""},
		{"signed, does not fit", []member{{"a", typeU32}}, []member{{"a", typeS16}}, "00800000", "", "does not fit"},
		{"no sign any more", []member{{"a", typeS32}}, []member{{"a", typeU64}}, "ffffffff", "", "does not fit"},
		{"nested", []member{{"i", inner}, {"n", typeU32}}, []member{{"n", typeU64}, {"i", turned}}, "0102030405060708", "05060708000000000304000000000102", ""},
		{"longer array", []member{{"l", array(typeU16, 2)}, {"n", typeU8}}, []member{{"l", array(typeU16, 3)}, {"n", typeU8}}, "0102030405", "010203040000" + "05", ""},
		{"shorter array", []member{{"l", array(typeU16, 2)}}, []member{{"l", array(typeU16, 1)}}, "01020000", "0102", ""},
		{"shorter array, in use", []member{{"l", array(typeU16, 2)}}, []member{{"l", array(typeU16, 1)}}, "01020100", "", `"l": there is no room`},
		{"array of structures", []member{{"l", array(inner, 2)}}, []member{{"l", array(turned, 2)}}, "0102030405060708", "0304000000000102" + "0708000000000506", ""},
		{"enum with a new name between", []member{{"e", enumOf("A", "B", "E_MAX")}}, []member{{"e", enumOf("A", "N", "B", "E_MAX")}}, "01000000", "02000000", ""},
		{"enum whose name is gone", []member{{"e", enumOf("A", "B")}}, []member{{"e", enumOf("B")}}, "00000000", "", "value 0 is not in the new enum"},
		{"padding becomes a field", []member{{"a", typeU16}, {"pad", typeU16}}, []member{{"a", typeU16}, {"b", typeU16}}, "01020304", "01020000", ""},
		{"other byte order", []member{{"a", wire32}}, []member{{"a", typeU32}}, "01020304", "", "byte order"},
		{"wider on the wire", []member{{"a", wire16}}, []member{{"a", wire32}}, "0102", "", "byte order or size on the wire"},
		{"enum becomes a number", []member{{"e", enumOf("A")}}, []member{{"e", typeU32}}, "00000000", "", "enum in only one of the two layouts"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, err := hex.DecodeString(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			out, err := convertOnce(t, structOf(t, tt.from...), structOf(t, tt.to...), in)
			switch {
			case tt.out == "" && (err == nil || !strings.Contains(err.Error(), tt.why)):
				t.Errorf("%x, error %v, want an output with %q", out, err, tt.why)
			case tt.out != "" && (err != nil || hex.EncodeToString(out) != tt.out):
				t.Errorf("%x, error %v, want %s", out, err, tt.out)
			}
		})
	}
}

func convertOnce(t *testing.T, from, to btf.Type, in []byte) ([]byte, error) {
	t.Helper()
	f, err := fieldsOf(from)
	if err != nil {
		t.Fatal(err)
	}
	g, err := fieldsOf(to)
	if err != nil {
		t.Fatal(err)
	}
	c, err := newConverter(f, g, false)
	if err != nil {
		return nil, err
	}
	out := []byte(strings.Repeat("\xaa", c.size))
	return out, c.convert(out, in)
}

// TestKeysThatWouldCollide checks that key fields cannot be dropped or merged.
func TestKeysThatWouldCollide(t *testing.T) {
	for _, tt := range []struct {
		name     string
		from, to []member
		why      string
	}{
		{"gone", []member{{"a", typeU32}, {"b", typeU32}}, []member{{"a", typeU32}}, `"b" of the key is missing`},
		{"new", []member{{"a", typeU32}}, []member{{"a", typeU32}, {"b", typeU32}}, ""},
		{"padding gone", []member{{"a", typeU32}, {"pad", typeU32}}, []member{{"a", typeU32}}, ""},
		{"shorter", []member{{"a", &btf.Array{Index: typeU32, Type: typeU8, Nelems: 4}}}, []member{{"a", &btf.Array{Index: typeU32, Type: typeU8, Nelems: 3}}}, "shorter"},
	} {
		from, err := fieldsOf(structOf(t, tt.from...))
		if err != nil {
			t.Fatal(err)
		}
		to, err := fieldsOf(structOf(t, tt.to...))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newConverter(from, to, true); (err == nil) != (tt.why == "") || err != nil && !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.why)
		}
		same := shape{from, from}
		if _, err := newEntryConverter(ebpf.LPMTrie, same, shape{to, from}); err == nil {
			t.Errorf("%s: taken for the key of a trie", tt.name)
		}
	}
	for name, bad := range map[string]btf.Type{
		"a union":     &btf.Union{Name: "u", Size: 4, Members: []btf.Member{{Name: "a", Type: typeU32}}},
		"a pointer":   &btf.Pointer{Target: typeU32},
		"a bit field": &btf.Struct{Name: "s", Size: 4, Members: []btf.Member{{Name: "a", Type: typeU32, BitfieldSize: 3}}},
	} {
		if _, err := fieldsOf(bad); err == nil {
			t.Errorf("%s is taken for a number", name)
		}
	}
}

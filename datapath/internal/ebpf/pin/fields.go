// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// field is a number in a key or value of a map, or an array of numbers.
type field struct {
	name   string // path, such as meta.flags
	offset int
	size   int // bytes of one number
	count  int
	signed bool
	wire   bool             // in network byte order
	enum   map[string]int64 // names of the values; nil if it is not an enum
}

// fields describes a key or a value.
type fields struct {
	size int
	list []field
}

// padding reports whether f only fills a gap, by its name in types.h.
func (f *field) padding() bool {
	last := f.name[strings.LastIndexByte(f.name, '.')+1:]
	return last == "pad"
}

func (f *field) same(g *field) bool {
	return f.name == g.name && f.offset == g.offset && f.size == g.size && f.count == g.count &&
		f.signed == g.signed && f.wire == g.wire && maps.Equal(f.enum, g.enum)
}

// same reports whether a and b have the same fields at the same offsets.
func (a fields) same(b fields) bool {
	if a.size != b.size {
		return false
	}
	for _, p := range [][2]fields{{a, b}, {b, a}} {
		for i := range p[0].list {
			f := &p[0].list[i]
			if g := p[1].find(f.name); !f.padding() && (g == nil || !f.same(g)) {
				return false
			}
		}
	}
	return true
}

func (a fields) find(name string) *field {
	for i := range a.list {
		if a.list[i].name == name {
			return &a.list[i]
		}
	}
	return nil
}

// fieldsOf returns the fields of a type.
func fieldsOf(t btf.Type) (f fields, err error) {
	if f.size, err = btf.Sizeof(t); err != nil {
		return f, err
	}
	err = f.add("", 0, 1, false, t)
	return f, err
}

// add adds count numbers or structures of type t, starting at offset.
func (a *fields) add(name string, offset, count int, wire bool, t btf.Type) error {
	f := field{name: name, offset: offset, count: count, wire: wire}
	switch t := t.(type) {
	case *btf.Typedef:
		return a.add(name, offset, count, wire || strings.HasPrefix(t.Name, "__be"), t.Type)
	case *btf.Volatile:
		return a.add(name, offset, count, wire, t.Type)
	case *btf.Const:
		return a.add(name, offset, count, wire, t.Type)
	case *btf.Array:
		return a.add(name, offset, count*int(t.Nelems), wire, t.Type)
	case *btf.Int:
		f.size, f.signed = int(t.Size), t.Encoding&btf.Signed != 0
	case *btf.Enum:
		f.size, f.signed, f.enum = int(t.Size), t.Signed, make(map[string]int64)
		for _, v := range t.Values {
			if !strings.HasSuffix(v.Name, "_MAX") { // the count of values is not a value
				f.enum[v.Name] = int64(v.Value)
			}
		}
	case *btf.Struct:
		return a.addStruct(name, offset, count, t)
	default:
		return fmt.Errorf("field %q is of a kind that cannot be compared (%T)", name, t)
	}
	if f.size != 1 && f.size != 2 && f.size != 4 && f.size != 8 {
		return fmt.Errorf("field %q has %d bytes", name, f.size)
	}
	a.list = append(a.list, f)
	return nil
}

func (a *fields) addStruct(name string, offset, count int, t *btf.Struct) error {
	for i := range count {
		prefix := name
		if count > 1 {
			prefix = fmt.Sprintf("%s[%d]", name, i)
		}
		if prefix != "" {
			prefix += "."
		}
		for _, m := range t.Members {
			if m.BitfieldSize != 0 {
				return fmt.Errorf("field %q is a bit field", prefix+m.Name)
			}
			if err := a.add(prefix+m.Name, offset+i*int(t.Size)+int(m.Offset.Bytes()), 1, false, m.Type); err != nil {
				return err
			}
		}
	}
	return nil
}

// shape is the layout of a map's entries.
type shape struct{ key, value fields }

func (a shape) same(b shape) bool { return a.key.same(b.key) && a.value.same(b.value) }

// shapeOf returns the layout that a map should have.
func shapeOf(spec *ebpf.MapSpec) (s shape, err error) {
	if s.key, err = fieldsOf(spec.Key); err == nil {
		s.value, err = fieldsOf(spec.Value)
	}
	return s, err
}

var errNoTypes = errors.New("the kernel has no BTF for its fields")

// shapeOfPinned returns the layout with which a map was created, as stored by the kernel. Reading
// it requires CAP_SYS_ADMIN: without it the error wraps EPERM.
func shapeOfPinned(m *ebpf.Map) (s shape, err error) {
	key, value, err := pinnedTypes(m)
	if err != nil {
		return s, err
	}
	if s.key, err = fieldsOf(key); err == nil {
		s.value, err = fieldsOf(value)
	}
	return s, err
}

// pinnedTypes returns the types of the keys and values with which a map was created, as stored by
// the kernel; the errors are those of shapeOfPinned.
func pinnedTypes(m *ebpf.Map) (key, value btf.Type, err error) {
	keyID, valueID, err := typeIDs(m)
	if err != nil {
		return nil, nil, err
	}
	if keyID == 0 || valueID == 0 {
		return nil, nil, errNoTypes
	}
	handle, err := m.Handle()
	if err != nil {
		return nil, nil, err
	}
	defer handle.Close()
	types, err := handle.Spec(nil)
	if err != nil {
		return nil, nil, err
	}
	if key, err = types.TypeByID(keyID); err == nil {
		value, err = types.TypeByID(valueID)
	}
	return key, value, err
}

// typeIDs reads from the kernel the BTF type ids of key and value, which the library does not
// return.
func typeIDs(m *ebpf.Map) (key, value btf.TypeID, err error) {
	var info struct { // bpf_map_info, up to the fields that are needed
		_          [64]byte
		btf        uint32
		key, value uint32
		_          uint32
	}
	attr := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(m.FD()), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return 0, 0, errno
	}
	return btf.TypeID(info.key), btf.TypeID(info.value), nil
}

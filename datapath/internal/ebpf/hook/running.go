// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"io"
	"slices"

	"github.com/cilium/ebpf"
)

// Verification takes most of the time of a start. So a restarted daemon reuses programs that an
// earlier run loaded if they are identical to its own; they stay attached.

// rodata is the name of the map of a program's constants.
const rodata = ".rodata"

// buildOf returns a hash of a program's instructions: config_build.
func buildOf(p *ebpf.ProgramSpec) uint64 {
	h := fnv.New64a()
	var b [16]byte
	for i := range p.Instructions {
		ins := &p.Instructions[i]
		b[0], b[1], b[2], b[3] = byte(ins.OpCode), byte(ins.OpCode>>8), byte(ins.Dst), byte(ins.Src)
		binary.LittleEndian.PutUint16(b[4:], uint16(ins.Offset))
		binary.LittleEndian.PutUint64(b[8:], uint64(ins.Constant))
		h.Write(b[:])
		_, _ = io.WriteString(h, ins.Symbol()+"\x00"+ins.Reference()+"\x00") // never fails
	}
	binary.LittleEndian.PutUint32(b[:], p.Flags)
	h.Write(b[:4])
	return h.Sum64()
}

// runningProgram returns an already loaded program with the same instructions and constants that
// uses these maps; nil if none is found. Its private scratch maps are kept.
func runningProgram(s *ebpf.CollectionSpec, name string, maps map[string]*ebpf.Map) *ebpf.Program {
	shared := map[ebpf.MapID]bool{}
	for _, m := range maps {
		info, err := m.Info()
		if err != nil {
			return nil
		}
		id, ok := info.ID()
		if !ok {
			return nil
		}
		shared[id] = true
	}
	for id := ebpf.ProgramID(0); ; {
		var err error
		if id, err = ebpf.ProgramGetNextID(id); err != nil {
			return nil // no more programs, or not permitted
		}
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // unloaded meanwhile
		}
		if isProgram(p, name, s, maps, shared) {
			return p
		}
		p.Close() // only closes a file descriptor
	}
}

// isProgram reports whether a program has the name, and uses only shared maps and private maps of
// the specification, its constants among them.
func isProgram(p *ebpf.Program, name string, s *ebpf.CollectionSpec, maps map[string]*ebpf.Map, shared map[ebpf.MapID]bool) bool {
	info, err := p.Info()
	if err != nil || info.Name != name {
		return false
	}
	ids, _ := info.MapIDs()
	same := false
	for _, id := range ids {
		if shared[id] {
			continue
		}
		own, constants := isOwn(id, s, maps)
		if !own {
			return false
		}
		same = same || constants
	}
	return same
}

// isOwn reports whether a map is a private map of the specification, not an earlier generation of one
// of maps, and whether it is the map of constants, which must be frozen and have the same content.
func isOwn(id ebpf.MapID, s *ebpf.CollectionSpec, maps map[string]*ebpf.Map) (own, constants bool) {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return false, false
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return false, false
	}
	spec := s.Maps[info.Name]
	if spec == nil || maps[info.Name] != nil || m.Type() != spec.Type || m.ValueSize() != spec.ValueSize {
		return false, false
	}
	if info.Name != rodata {
		return true, false
	}
	value, err := m.LookupBytes(uint32(0))
	same := err == nil && info.Frozen() && bytes.Equal(value, constantsOf(s))
	return same, same
}

// constantsOf returns the content of the constants map of a specification.
func constantsOf(s *ebpf.CollectionSpec) []byte {
	contents := s.Maps[rodata].Contents
	if len(contents) != 1 {
		return nil
	}
	data, _ := contents[0].Value.([]byte)
	data = slices.Clone(data)
	for _, v := range s.Variables {
		if v.SectionName == rodata && int(v.Offset) < len(data) {
			copy(data[v.Offset:], v.Value)
		}
	}
	return data
}

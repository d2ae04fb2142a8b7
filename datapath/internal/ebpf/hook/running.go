// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"io"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Verification takes most of the time of a start. So a restarted daemon reuses programs that an
// earlier run loaded if they are identical to its own; they stay attached.

// rodata is the name of the map of a program's constants.
const rodata = ".rodata"

// buildOf returns a hash of the instructions of the programs that are loaded together: config_build.
func buildOf(s *ebpf.CollectionSpec) uint64 {
	h := fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys(s.Programs)) {
		hashProgram(h, s.Programs[name])
	}
	return h.Sum64()
}

func hashProgram(h io.Writer, p *ebpf.ProgramSpec) {
	var b [16]byte
	for i := range p.Instructions {
		ins := &p.Instructions[i]
		b[0], b[1], b[2], b[3] = byte(ins.OpCode), byte(ins.OpCode>>8), byte(ins.Dst), byte(ins.Src)
		binary.LittleEndian.PutUint16(b[4:], uint16(ins.Offset))
		binary.LittleEndian.PutUint64(b[8:], uint64(ins.Constant))
		_, _ = h.Write(b[:]) // never fails
		_, _ = io.WriteString(h, ins.Symbol()+"\x00"+ins.Reference()+"\x00")
	}
	binary.LittleEndian.PutUint32(b[:], p.Flags)
	_, _ = h.Write(b[:4])
}

// running recognises programs that an earlier run has loaded from the same specification.
type running struct {
	spec    *ebpf.CollectionSpec
	shared  map[ebpf.MapID]bool // the maps of the data plane that the programs use
	private map[string]bool     // the names of their other maps
}

// newRunning returns a running for a specification of which these maps are replaced.
func newRunning(s *ebpf.CollectionSpec, replaced map[string]*ebpf.Map) (*running, error) {
	r := &running{s, make(map[ebpf.MapID]bool), make(map[string]bool)}
	for name := range s.Maps {
		m := replaced[name]
		if m == nil {
			r.private[name] = true
			continue
		}
		info, err := m.Info()
		if err != nil {
			return nil, err
		}
		if id, ok := info.ID(); ok {
			r.shared[id] = true
		}
	}
	return r, nil
}

// find returns an already loaded program with the same instructions, constants and maps, and the array
// from which it calls its slow path, whose program must be the same too; nil: no such program is
// loaded. The private scratch maps of the programs are kept.
func (r *running) find(name string) (p *ebpf.Program, slow *ebpf.Map) {
	for id := ebpf.ProgramID(0); ; {
		var err error
		if id, err = ebpf.ProgramGetNextID(id); err != nil {
			return nil, nil // no more programs, or not permitted
		}
		if p, err = ebpf.NewProgramFromID(id); err != nil {
			continue // unloaded in the meantime
		}
		if r.is(p, name) {
			if slow = r.slowOf(p); slow != nil || !r.private[kernel.MapLlSlow] {
				return p, slow
			}
		}
		p.Close() // only closes a file descriptor
	}
}

// slowOf returns the array of a loaded ingress program; nil: it cannot be read, or does not contain
// the program of this slow path, for example because its pins were deleted.
func (r *running) slowOf(p *ebpf.Program) *ebpf.Map {
	info, err := p.Info()
	if err != nil {
		return nil
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return nil
		}
		if info, err := m.Info(); err == nil && info.Name == kernel.MapLlSlow && r.holds(m) {
			return m
		}
		m.Close() // only closes a file descriptor
	}
	return nil
}

// holds reports whether an array contains the program of this slow path.
func (r *running) holds(slow *ebpf.Map) bool {
	var p *ebpf.Program
	if err := slow.Lookup(uint32(0), &p); err != nil {
		return false
	}
	defer p.Close() // only closes a file descriptor
	return r.is(p, kernel.ProgLlTcSlow)
}

// is reports whether a program has the name, and uses only shared maps and private maps of the
// specification, its constants among them.
func (r *running) is(p *ebpf.Program, name string) bool {
	info, err := p.Info()
	if err != nil || info.Name != name {
		return false
	}
	ids, _ := info.MapIDs()
	same := false
	for _, id := range ids {
		if r.shared[id] {
			continue
		}
		own, constants := r.owns(id)
		if !own {
			return false
		}
		same = same || constants
	}
	return same
}

// owns reports whether a map is a private map of the specification, and whether it is the map of
// constants, which must be frozen and have the same content.
func (r *running) owns(id ebpf.MapID) (own, constants bool) {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return false, false
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil || !r.private[info.Name] {
		return false, false
	}
	spec := r.spec.Maps[info.Name]
	if m.Type() != spec.Type || m.ValueSize() != spec.ValueSize {
		return false, false
	}
	if info.Name != rodata {
		return true, false
	}
	value, err := m.LookupBytes(uint32(0))
	same := err == nil && info.Frozen() && bytes.Equal(value, constantsOf(r.spec))
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

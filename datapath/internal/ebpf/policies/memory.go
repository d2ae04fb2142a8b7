// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// sizes lists the maps that can contain the image, smallest first, and the usable bytes of the image.
var sizes = []struct {
	name  string
	bytes int
}{
	{kernel.MapLlImage128k, 128 << 10}, {kernel.MapLlImage1m, 1 << 20}, {kernel.MapLlImage8m, 8 << 20}, {kernel.MapLlImage64m, 64 << 20},
}

const (
	magic       = 0x4c4c5001 // POLICY_MAGIC
	headerBytes = 64         // struct policy_header
	headerNode  = 4          // node_class
	headerRoot4 = 12
	headerRoot6 = 20

	line     = 64 // blocks begin and end at multiples of this
	cellSize = 20 // struct policy_cell

	leaf = 1 << 31 // ENTRY_LEAF, with value 0
)

// memory is the image that contains tables, rows, cells and tries, mapped. Blocks are never moved; a
// full image is copied to a larger one.
type memory struct {
	outer map[string]*ebpf.Map     // the maps in sizes; nil: the image is in memory of the process, for no program
	specs map[string]*ebpf.MapSpec // of images in them

	set    kernel.RuleSet // its key in the outer map
	number uint32         // index in sizes, from 1; 0: no image exists
	inner  *ebpf.Map
	b      []byte
	used   int
	free   map[int][]int // offsets of free blocks, by their size
	cells  []int         // offsets of free cells
}

// newMemory creates an image for a set that is not in force.
func newMemory(outer map[string]*ebpf.Map, specs map[string]*ebpf.MapSpec, set kernel.RuleSet) (*memory, error) {
	m := &memory{outer: outer, specs: specs, set: set, used: headerBytes, free: make(map[int][]int)}
	if err := m.grow(); err != nil {
		return nil, err
	}
	m.put32(0, magic)
	for side := range 2 {
		m.put32(headerRoot4+4*side, leaf)
		m.put32(headerRoot6+4*side, leaf)
	}
	return m, nil
}

// grow moves the image to the map for the next size. Programs use the old one until the caller
// publishes the number of the new one.
func (m *memory) grow() error {
	if int(m.number) == len(sizes) {
		return fmt.Errorf("the tables of policies take more than %d MiB: %w", sizes[len(sizes)-1].bytes>>20, datapath.ErrCapacity)
	}
	size := sizes[m.number]
	if m.outer == nil {
		b := make([]byte, size.bytes)
		copy(b, m.b)
		m.number, m.b = m.number+1, b
		return nil
	}
	inner, err := ebpf.NewMap(m.specs[size.name])
	if err != nil {
		return fmt.Errorf("no memory for the %d KiB of the tables of policies; allow more (MemoryMax of the unit counts maps), or use fewer policies: %w", size.bytes>>10, err)
	}
	b, err := unix.Mmap(inner.FD(), 0, int(inner.ValueSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		inner.Close() // programs do not use it
		return fmt.Errorf("map the memory of the tables of policies: %w", err)
	}
	copy(b, m.b[:min(m.used, len(m.b))])
	if err := kernel.Step("insert image of policies", func() error { return m.outer[size.name].Put(uint32(m.set), inner) }); err != nil {
		_ = unix.Munmap(b)
		inner.Close() // programs do not use it
		return fmt.Errorf("insert the tables of policies: %w", err)
	}
	m.close()
	m.number, m.inner, m.b = m.number+1, inner, b
	return nil
}

func (m *memory) close() {
	if m.inner != nil {
		_ = unix.Munmap(m.b)
		m.inner.Close() // the outer map holds it
	}
}

// removeOthers deletes the images of both sets that are not m, or all if m is nil. No program uses
// them.
func removeOthers(outer map[string]*ebpf.Map, m *memory) (err error) {
	for i, size := range sizes {
		for _, set := range []kernel.RuleSet{kernel.RuleSetRULES_POLICY, kernel.RuleSetRULES_POLICY_OTHER} {
			if m != nil && m.set == set && int(m.number) == i+1 {
				continue
			}
			if e := outer[size.name].Delete(uint32(set)); !errors.Is(e, ebpf.ErrKeyNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

// word returns what RULES_POLICY in ll_rules contains if a side of the image is in force.
func (m *memory) word(side int) uint32 {
	word := m.number
	if m.set == kernel.RuleSetRULES_POLICY_OTHER {
		word |= policySlot
	}
	if side == 1 {
		word |= policySide
	}
	return word
}

const (
	policyImage = 0x07 // POLICY_IMAGE
	policySlot  = 0x08 // POLICY_SLOT
	policySide  = 0x10 // POLICY_SIDE
	policyHere  = 0x20 // POLICY_HERE
)

// sizeFor returns the size of a block for n bytes: the waste is at most an eighth, or a line.
func sizeFor(n int) int {
	step := line
	for step*16 < n {
		step *= 2
	}
	return (max(n, 1) + step - 1) / step * step
}

// take returns the offset of a block for n bytes.
func (m *memory) take(n int) (int, error) {
	size := sizeFor(n)
	if list := m.free[size]; len(list) > 0 {
		m.free[size] = list[:len(list)-1]
		return list[len(list)-1], nil
	}
	for m.used+size > sizes[m.number-1].bytes {
		if err := m.grow(); err != nil {
			return 0, err
		}
	}
	m.used += size
	return m.used - size, nil
}

// release frees the block for n bytes at an offset.
func (m *memory) release(at, n int) {
	size := sizeFor(n)
	m.free[size] = append(m.free[size], at)
}

// takeCell returns the offset of a cell.
func (m *memory) takeCell() (int, error) {
	if len(m.cells) == 0 {
		at, err := m.take(line)
		if err != nil {
			return 0, err
		}
		for i := range line / cellSize {
			m.cells = append(m.cells, at+line-cellSize*(i+1))
		}
	}
	at := m.cells[len(m.cells)-1]
	m.cells = m.cells[:len(m.cells)-1]
	return at, nil
}

func (m *memory) put32(at int, v uint32) { binary.LittleEndian.PutUint32(m.b[at:], v) }

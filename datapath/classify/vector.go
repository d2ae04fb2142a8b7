// SPDX-License-Identifier: Apache-2.0

package classify

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/loxilight/loxilight/datapath"
)

const (
	chunkWords = 8 // a cache line
	// vectorMemory limits the memory of all vectors during compilation.
	vectorMemory = 64 << 20
)

type chunk [chunkWords]uint64

// vectors holds each bit vector once, and each chunk of them. Vector 0 and chunk 0
// are all zero.
type vectors struct {
	width    int // chunks of a vector
	chunks   []chunk
	chunkIDs map[chunk]uint32
	parts    []uint32 // of vector v: parts[v*width:][:width]
	ids      map[string]uint32
	ors      map[[2]uint32]uint32
	ands     map[[2]uint32]uint32
	key      []byte
	err      error
}

func newVectors(rules int) *vectors {
	v := &vectors{
		width:    max(1, (rules+64*chunkWords-1)/(64*chunkWords)),
		chunkIDs: make(map[chunk]uint32),
		ids:      make(map[string]uint32),
		ors:      make(map[[2]uint32]uint32),
		ands:     make(map[[2]uint32]uint32),
	}
	v.chunk(chunk{})
	v.intern(make([]uint32, v.width))
	return v
}

func (v *vectors) chunk(c chunk) uint32 {
	id, ok := v.chunkIDs[c]
	if !ok {
		id = uint32(len(v.chunks))
		v.chunks = append(v.chunks, c)
		v.chunkIDs[c] = id
		v.bound()
	}
	return id
}

func (v *vectors) intern(parts []uint32) uint32 {
	v.key = v.key[:0]
	for _, p := range parts {
		v.key = binary.NativeEndian.AppendUint32(v.key, p)
	}
	id, ok := v.ids[string(v.key)]
	if !ok {
		id = uint32(len(v.ids))
		v.ids[string(v.key)] = id
		v.parts = append(v.parts, parts...)
		v.bound()
	}
	return id
}

// bound records an error if the vectors take too much memory; after that, no more vectors are
// combined.
func (v *vectors) bound() {
	if v.err == nil && len(v.chunks)*3*64+len(v.ids)*(v.width*8+64) > vectorMemory {
		v.err = fmt.Errorf("the rules have too many combinations of prefixes, ports and other fields (%d MiB of bit vectors): use fewer of them, or groups: %w",
			vectorMemory>>20, datapath.ErrCapacity)
	}
}

func (v *vectors) of(id uint32) []uint32 { return v.parts[int(id)*v.width:][:v.width] }

// or returns the vector of the bits that are set in a or b.
func (v *vectors) or(a, b uint32) uint32 {
	return v.combine(v.ors, a, b, func(a, b uint32) uint32 {
		if a == 0 || b == 0 {
			return a | b
		}
		c := v.chunks[a]
		for i, w := range v.chunks[b] {
			c[i] |= w
		}
		return v.chunk(c)
	})
}

// and returns the vector of the bits that are set in a and b.
func (v *vectors) and(a, b uint32) uint32 {
	return v.combine(v.ands, a, b, func(a, b uint32) uint32 {
		if a == 0 || b == 0 {
			return 0
		}
		c := v.chunks[a]
		for i, w := range v.chunks[b] {
			c[i] &= w
		}
		return v.chunk(c)
	})
}

func (v *vectors) combine(known map[[2]uint32]uint32, a, b uint32, parts func(a, b uint32) uint32) uint32 {
	if a == b || v.err != nil {
		return a
	}
	key := [2]uint32{min(a, b), max(a, b)}
	if id, ok := known[key]; ok {
		return id
	}
	made := make([]uint32, v.width)
	for i := range made {
		if made[i] = v.of(a)[i]; made[i] != v.of(b)[i] {
			made[i] = parts(made[i], v.of(b)[i])
		}
	}
	id := v.intern(made)
	known[key] = id
	return id
}

// each calls f with the lowest set bit of each non-zero word of a vector.
func (v *vectors) each(id uint32, f func(bit int)) {
	for i, part := range v.of(id) {
		for j, w := range v.chunks[part] {
			if w != 0 {
				f((i*chunkWords+j)*64 + bits.TrailingZeros64(w))
			}
		}
	}
}

// changing is a vector whose bits are changed one by one.
type changing struct {
	v     *vectors
	words []chunk
	parts []uint32
	dirty []int
}

func (v *vectors) changing() *changing {
	return &changing{v: v, words: make([]chunk, v.width), parts: make([]uint32, v.width)}
}

func (c *changing) set(bit int, on bool) {
	part := bit / (64 * chunkWords)
	word, mask := &c.words[part][bit/64%chunkWords], uint64(1)<<(bit%64)
	if on {
		*word |= mask
	} else {
		*word &^= mask
	}
	c.dirty = append(c.dirty, part)
}

// vector returns the current vector.
func (c *changing) vector() uint32 {
	for _, part := range c.dirty {
		c.parts[part] = c.v.chunk(c.words[part])
	}
	c.dirty = c.dirty[:0]
	return c.v.intern(c.parts)
}

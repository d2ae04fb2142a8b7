// SPDX-License-Identifier: Apache-2.0

package state

import (
	"iter"
	"slices"
	"sort"
)

// chunkMax limits the number of objects in a chunk, and thus how much one change copies.
const chunkMax = 128

// table is an immutable ordered set of objects: a list of sorted chunks. Tables share chunks that
// are identical.
type table struct {
	chunks []*chunk // no chunk is empty
	count  int      // number of all objects, including opaque ones
}

type chunk struct {
	objects []*Object
	editor  *editor // the editor that may still write to the chunk; only compared
}

func (c *chunk) last() Key { return c.objects[len(c.objects)-1].Key }

// seek returns the position of the first object whose key is k or later.
func (t *table) seek(k Key) (ci, oi int, found bool) {
	ci = sort.Search(len(t.chunks), func(i int) bool { return t.chunks[i].last().compare(k) >= 0 })
	if ci == len(t.chunks) {
		return ci, 0, false
	}
	oi, found = slices.BinarySearchFunc(t.chunks[ci].objects, k, func(o *Object, k Key) int { return o.Key.compare(k) })
	return ci, oi, found
}

// get returns the object with key k, or nil if there is none or it is opaque.
func (t *table) get(k Key) *Object {
	if o := t.find(k); o != nil && !o.isOpaque() {
		return o
	}
	return nil
}

// find returns the object with key k, which may be opaque, or nil if there is none.
func (t *table) find(k Key) *Object {
	ci, oi, found := t.seek(k)
	if !found {
		return nil
	}
	return t.chunks[ci].objects[oi]
}

// from yields the objects from k onward, in order, without opaque ones.
func (t *table) from(k Key) iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		for o := range t.whole(k) {
			if !o.isOpaque() && !yield(o) {
				return
			}
		}
	}
}

// whole yields the objects from k onward, in order, including opaque ones.
func (t *table) whole(k Key) iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		ci, oi, _ := t.seek(k)
		for ; ci < len(t.chunks); ci, oi = ci+1, 0 {
			for _, o := range t.chunks[ci].objects[oi:] {
				if !yield(o) {
					return
				}
			}
		}
	}
}

// each yields the objects of a kind, in order, without opaque ones.
func (t *table) each(kind string) iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		for o := range t.from(Key{kind, ""}) {
			if o.Kind != kind || !yield(o) {
				return
			}
		}
	}
}

// editor creates a new table from an old table, which does not change. It copies each chunk once,
// before the first write to it.
type editor struct{ table }

func (t *table) edit() *editor {
	return &editor{table{slices.Clone(t.chunks), t.count}}
}

// own returns chunk ci, copied if necessary, ready for writing.
func (e *editor) own(ci int) *chunk {
	c := e.chunks[ci]
	if c.editor != e {
		objects := make([]*Object, len(c.objects), len(c.objects)+1)
		copy(objects, c.objects)
		c = &chunk{objects, e}
		e.chunks[ci] = c
	}
	return c
}

// put adds o, or replaces the object with the same key and returns that object.
func (e *editor) put(o *Object) (old *Object) {
	ci, oi, found := e.seek(o.Key)
	if found {
		c := e.own(ci)
		old, c.objects[oi] = c.objects[oi], o
		return old
	}
	e.count++
	if len(e.chunks) == 0 {
		e.chunks = []*chunk{{[]*Object{o}, e}}
		return nil
	}
	if ci == len(e.chunks) { // after all other objects
		ci--
		oi = len(e.chunks[ci].objects)
	}
	c := e.own(ci)
	c.objects = slices.Insert(c.objects, oi, o)
	if len(c.objects) > chunkMax {
		e.split(ci, oi == len(c.objects)-1 && ci == len(e.chunks)-1)
	}
	return nil
}

// split halves chunk ci. If objects arrive in order (appending), it leaves the chunk nearly full
// instead.
func (e *editor) split(ci int, appending bool) {
	c := e.chunks[ci]
	at := len(c.objects) / 2
	if appending {
		at = len(c.objects) - 1
	}
	right := &chunk{slices.Clone(c.objects[at:]), e}
	clear(c.objects[at:])
	c.objects = c.objects[:at]
	e.chunks = slices.Insert(e.chunks, ci+1, right)
}

// remove removes the object with key k and returns it; it returns nil if that object does not
// exist.
func (e *editor) remove(k Key) *Object {
	ci, oi, found := e.seek(k)
	if !found {
		return nil
	}
	e.count--
	c := e.own(ci)
	old := c.objects[oi]
	c.objects = slices.Delete(c.objects, oi, oi+1)
	switch {
	case len(c.objects) == 0:
		e.chunks = slices.Delete(e.chunks, ci, ci+1)
	case len(c.objects) < chunkMax/8:
		e.merge(ci)
	}
	return old
}

// merge joins the small chunk ci with the next or previous chunk if the result is small.
func (e *editor) merge(ci int) {
	if ci == len(e.chunks)-1 {
		ci--
	}
	if ci < 0 || len(e.chunks[ci].objects)+len(e.chunks[ci+1].objects) > chunkMax/2 {
		return
	}
	c := e.own(ci)
	c.objects = append(c.objects, e.chunks[ci+1].objects...)
	e.chunks = slices.Delete(e.chunks, ci+1, ci+2)
}

// done returns the edited table and resets the editor: chunks refer to the editor that made them,
// and must not keep old tables in memory.
func (e *editor) done() *table {
	t := e.table
	e.table = table{}
	return &t
}

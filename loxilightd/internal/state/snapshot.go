// SPDX-License-Identifier: Apache-2.0

package state

import (
	"iter"
	"maps"
	"sync"

	"github.com/loxilight/loxilight/datapath"
)

// Snapshot is the desired state as of one revision. It is immutable, costs nothing to take, and
// is safe for concurrent use.
type Snapshot struct {
	Revision uint64

	table     *table
	counts    map[string]int // objects by kind, without opaque objects
	cost      datapath.Cost
	peersOnce func() (map[string]datapath.Peer, map[string]error) // result of Peers; computed on demand
	opaque    func() []Key                                        // result of Undecodable; computed on demand
}

// newSnapshot returns a snapshot of table; the caller has counted its objects.
func newSnapshot(revision uint64, table *table, counts map[string]int, cost datapath.Cost) *Snapshot {
	s := &Snapshot{Revision: revision, table: table, counts: counts, cost: cost}
	s.peersOnce = sync.OnceValues(s.peers)
	s.opaque = sync.OnceValue(s.undecodable)
	return s
}

// Get returns the object with key k.
func (s *Snapshot) Get(k Key) (*Object, bool) {
	o := s.table.get(k)
	return o, o != nil
}

// After yields the objects of one kind in the order of their names, starting after the name given
// by after; if that is empty, starting with the first object.
func (s *Snapshot) After(kind, after string) iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		for o := range s.table.from(Key{kind, after}) {
			if o.Kind != kind {
				return
			}
			if o.Name != after && !yield(o) {
				return
			}
		}
	}
}

// All yields every object, ordered by kind and name.
func (s *Snapshot) All() iter.Seq[*Object] { return s.table.from(Key{}) }

// Undecodable returns the objects that this version cannot decode. The other methods leave them out.
func (s *Snapshot) Undecodable() []Key { return s.opaque() }

// UndecodableSpec returns the spec, as configured, of an object that this version cannot decode.
func (s *Snapshot) UndecodableSpec(k Key) string {
	if o := s.table.find(k); o != nil {
		return o.Spec
	}
	return ""
}

func (s *Snapshot) undecodable() (keys []Key) {
	if s.Len() == s.table.count {
		return nil
	}
	for o := range s.table.whole(Key{}) {
		if o.isOpaque() {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

// Len returns the number of objects.
func (s *Snapshot) Len() (n int) {
	for _, count := range s.counts {
		n += count
	}
	return n
}

// Counts returns the number of objects of each kind that has objects.
func (s *Snapshot) Counts() map[string]int { return maps.Clone(s.counts) }

// Cost returns how many table entries all objects need together.
func (s *Snapshot) Cost() datapath.Cost { return s.cost }

// Costs calls each for every object that needs table entries.
func (s *Snapshot) Costs(each func(Key, datapath.Cost)) {
	for o := range s.All() {
		if c := o.Value.cost(); c != (datapath.Cost{}) {
			each(o.Key, c)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package policy

// pool numbers values by their keys, so that equal values have the same number, and counts their
// users. The number of a value without users is free after settle.
type pool[V any] struct {
	items []V
	keys  []string
	users []int
	ids   map[string]int
	gone  []int // without users since the last settle
	free  []int
}

func newPool[V any]() *pool[V] { return &pool[V]{ids: make(map[string]int)} }

// take returns the number of the value with a key for one more user; isNew: there was none, so it is v.
func (p *pool[V]) take(key string, v V) (id int, isNew bool) {
	if id, found := p.ids[key]; found {
		p.users[id]++
		return id, false
	}
	if n := len(p.free); n > 0 {
		id, p.free = p.free[n-1], p.free[:n-1]
		p.items[id], p.keys[id], p.users[id] = v, key, 1
	} else {
		id = len(p.items)
		p.items, p.keys, p.users = append(p.items, v), append(p.keys, key), append(p.users, 1)
	}
	p.ids[key] = id
	return id, true
}

// use adds a user to a value that has one.
func (p *pool[V]) use(id int) { p.users[id]++ }

// drop takes a user off a value, and reports whether it was the last one: then the value is no longer
// found.
func (p *pool[V]) drop(id int) bool {
	if p.users[id]--; p.users[id] > 0 {
		return false
	}
	if p.ids[p.keys[id]] == id {
		delete(p.ids, p.keys[id])
	}
	p.gone = append(p.gone, id)
	return true
}

// settle frees the numbers of values without users, clears these values, and returns the numbers.
func settle[ID ~int, V any](p *pool[V]) (freed []ID) {
	var zero V
	for _, id := range p.gone {
		p.items[id], p.keys[id] = zero, ""
		freed = append(freed, ID(id))
	}
	p.free, p.gone = append(p.free, p.gone...), nil
	return freed
}

// each calls f for the values that have users.
func (p *pool[V]) each(f func(id int, v *V)) {
	for id := range p.items {
		if p.users[id] > 0 {
			f(id, &p.items[id])
		}
	}
}

// rekey gives all values new keys. Of several values that get the same key, the one with the lowest
// number is found by it.
func (p *pool[V]) rekey(key func(v *V) string) {
	clear(p.ids)
	p.each(func(id int, v *V) {
		p.keys[id] = key(v)
		if _, taken := p.ids[p.keys[id]]; !taken {
			p.ids[p.keys[id]] = id
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// ErrImplausible is wrapped if a list cannot be complete and is not used. The list is requested
// again after a pause.
var ErrImplausible = errors.New("implausible list")

// Store holds the objects of one kind as last received from the API server. T is an API type, or a
// type made from it with the same namespace, name and resourceVersion. A reflector fills it.
// Objects in it are shared and must not be modified.
type Store[T any] struct {
	convert func(any) (*T, bool)
	key     func(*T) string
	index   func(*T) string // a second key, that several objects may have; nil: none
	check   func(list []*T) error
	changed func(old, now *T) // one of them is nil for a new or deleted object
	confirm bool

	implausible func(error)                                          // called with the error of check; may be nil
	elsewhere   func(ctx context.Context) (map[string]string, error) // the versions of all objects, from another API server; nil: in tests of the store alone
	again       chan struct{}                                        // asks for a new list

	mu      sync.RWMutex
	items   map[string]*T
	indexed map[string]map[string]*T
	version string        // all changes up to this resourceVersion are in the store; empty: unknown
	synced  chan struct{} // closed with the first complete list
	once    sync.Once
	lists   int  // lists used so far
	absent  bool // the cluster lacks the resource, or did when it was last looked for
}

// StoreOptions make a [Store]. Only Changed must be set.
type StoreOptions[T any] struct {
	// Trim removes fields that are not needed; it is called more than once for an object.
	Trim func(*T)
	// Convert converts the API server's object to the stored type, if they differ: it is called
	// with objects of either type. nil: they do not differ.
	Convert func(any) (*T, bool)
	// Index is a second key; objects are found by it with [Store.By].
	Index func(*T) string
	// Check reports whether a list is plausible.
	Check func(list []*T) error
	// Confirm: a list that lacks known objects, although no watch reported their deletion, is used
	// only if another API server, or the same one if there is no other, lacks them too.
	Confirm bool
	// Changed is called for each object that is added, changed or deleted, one after the other.
	Changed func(old, now *T)
}

// NewStore makes an empty store, which is not synced.
func NewStore[T any](o StoreOptions[T]) *Store[T] {
	if o.Convert == nil {
		o.Convert = func(obj any) (*T, bool) {
			t, ok := obj.(*T)
			if ok && o.Trim != nil {
				o.Trim(t)
			}
			return t, ok
		}
	}
	return &Store[T]{
		convert: o.Convert, index: o.Index, check: o.Check, changed: o.Changed, confirm: o.Confirm, again: make(chan struct{}, 1),
		key: func(t *T) string {
			m := metaOf(t)
			return Key(m.GetNamespace(), m.GetName())
		},
		items: map[string]*T{}, indexed: map[string]map[string]*T{}, synced: make(chan struct{}),
	}
}

func metaOf[T any](t *T) metav1.Object {
	m, err := meta.Accessor(t)
	if err != nil {
		panic(err) // T has an ObjectMeta
	}
	return m
}

// NeverEmpty rejects an empty list of a resource that every cluster has: the API server itself has
// a Service and an EndpointSlice.
func NeverEmpty[T any](resource string) func([]*T) error {
	return func(list []*T) error {
		if len(list) == 0 {
			return fmt.Errorf("%w: no %s at all, not even of the API server itself", ErrImplausible, resource)
		}
		return nil
	}
}

// Key returns namespace/name, or the name of an object without namespace.
func Key(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// Synced is closed when the store has received a complete list.
func (s *Store[T]) Synced() <-chan struct{} { return s.synced }

// Get returns the object with a key, or nil if it does not exist.
func (s *Store[T]) Get(key string) *T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.items[key]
}

// All returns all objects in no particular order.
func (s *Store[T]) All() []*T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return values(s.items)
}

// By returns the objects that have a second key.
func (s *Store[T]) By(index string) []*T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return values(s.indexed[index])
}

// Len returns the number of objects.
func (s *Store[T]) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.items)
}

func values[T any](m map[string]*T) []*T {
	all := make([]*T, 0, len(m))
	for _, t := range m {
		all = append(all, t)
	}
	return all
}

// The methods below implement cache.ReflectorStore.

// Add implements [cache.ReflectorStore].
func (s *Store[T]) Add(obj any) error { return s.put(obj) }

// Update implements [cache.ReflectorStore].
func (s *Store[T]) Update(obj any) error { return s.put(obj) }

// Resync implements [cache.ReflectorStore].
func (s *Store[T]) Resync() error { return nil }

// Delete implements [cache.ReflectorStore].
func (s *Store[T]) Delete(obj any) error {
	t, err := s.cast(obj)
	if err != nil {
		return err
	}
	s.set(s.key(t), nil)
	return nil
}

// Replace implements [cache.ReflectorStore].
func (s *Store[T]) Replace(list []any, version string) error {
	all := make([]*T, len(list))
	for i, obj := range list {
		var err error
		if all[i], err = s.cast(obj); err != nil {
			return err
		}
	}
	there := make(map[string]bool, len(all))
	for _, t := range all {
		there[s.key(t)] = true
	}
	gone := s.without(there)
	if err := s.plausible(all, gone); err != nil {
		if s.implausible != nil {
			s.implausible(err)
		}
		return err
	}
	for _, t := range all {
		s.set(s.key(t), t)
	}
	for _, key := range gone {
		s.set(key, nil)
	}
	s.mu.Lock()
	s.lists++
	s.version = version
	s.mu.Unlock()
	s.once.Do(func() { close(s.synced) })
	return nil
}

// UpdateResourceVersion implements [cache.ResourceVersionUpdater].
func (s *Store[T]) UpdateResourceVersion(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
}

func (s *Store[T]) setAbsent(absent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.absent = absent
}

// LookAgain is called if the cluster has the resource: a store that is empty because the cluster
// lacked the resource looks for it at once.
func (s *Store[T]) LookAgain() {
	s.mu.RLock()
	absent := s.absent
	s.mu.RUnlock()
	if !absent {
		return
	}
	select {
	case s.again <- struct{}{}:
	default: // it was requested already
	}
}

// without returns the keys of objects that are not in a list.
func (s *Store[T]) without(list map[string]bool) (keys []string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key := range s.items {
		if !list[key] {
			keys = append(keys, key)
		}
	}
	return keys
}

// plausible returns why a list is not used; gone are the keys of known objects that it lacks.
func (s *Store[T]) plausible(list []*T, gone []string) error {
	if s.check != nil {
		if err := s.check(list); err != nil {
			return err
		}
	}
	if !s.confirm || len(gone) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), listTimeout)
	defer cancel()
	return s.ConfirmGone(ctx, gone)
}

// Transformer implements [cache.TransformingStore].
func (s *Store[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		t, err := s.cast(obj)
		return t, err
	}
}

func (s *Store[T]) put(obj any) error {
	t, err := s.cast(obj)
	if err != nil {
		return err
	}
	s.set(s.key(t), t)
	return nil
}

func (s *Store[T]) cast(obj any) (*T, error) {
	t, ok := s.convert(obj)
	if !ok {
		return nil, fmt.Errorf("the API server sent a %T in place of a %T", obj, t)
	}
	return t, nil
}

// set stores an object, or removes it, and reports the change.
func (s *Store[T]) set(key string, now *T) {
	s.mu.Lock()
	old := s.items[key]
	if old != nil && s.index != nil {
		i := s.index(old)
		delete(s.indexed[i], key)
		if len(s.indexed[i]) == 0 {
			delete(s.indexed, i)
		}
	}
	if now == nil {
		delete(s.items, key)
	} else {
		s.items[key] = now
		if s.index != nil {
			i := s.index(now)
			if s.indexed[i] == nil {
				s.indexed[i] = map[string]*T{}
			}
			s.indexed[i][key] = now
		}
	}
	s.mu.Unlock()
	if s.changed != nil && (old != nil || now != nil) {
		s.changed(old, now)
	}
}

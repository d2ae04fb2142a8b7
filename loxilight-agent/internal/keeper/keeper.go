// SPDX-License-Identifier: Apache-2.0

// Package keeper keeps the daemon's objects of one owner exactly as desired: by one replace at the
// start of each session, and by small transactions from then on. It knows neither Kubernetes nor
// the source of the objects.
package keeper

import (
	"hash/maphash"
	"log/slog"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// Options of a [Keeper].
type Options struct {
	Client *client.Client
	Owner  string
	Kinds  []string // the owner's objects of other kinds are left alone
	Log    *slog.Logger
	// All calls Set, or Keep, for each existing group: the keeper does not remember the daemon's
	// objects, only that the daemon has them.
	All func()
	// Refused is called when the daemon refuses an object, and again when it refuses another
	// version of it or for another reason. Accepted is called when it accepts an object that it
	// had refused. Both may be nil.
	Refused  func(api.ObjectRef, *api.Error)
	Accepted func(api.ObjectRef)
	// Told is called when the daemon has the state that a group got at since; it may be nil.
	Told func(group string, since time.Time)
	// Sent is called after each transaction with its outcome; it may be nil.
	Sent func(method string, objects int, took time.Duration, err error)
}

// Keeper keeps objects. It is for one goroutine.
type Keeper struct {
	o    Options
	seed maphash.Seed

	want   map[api.ObjectRef]*entry
	groups map[string][]api.ObjectRef
	dirty  map[api.ObjectRef]bool // in want, and possibly different in the daemon
	gone   map[api.ObjectRef]bool // the daemon has it, but it is no longer wanted
	since  map[string]time.Time   // of groups that are not completely sent yet: when they changed

	// stuck are our objects that the daemon refuses to delete.
	stuck     map[api.ObjectRef]api.Object
	stuckNext time.Time // time of the next attempt

	replacing bool            // objects are kept until the daemon has all of them
	own       map[uint64]bool // revisions that are ours
	revision  uint64          // all changes up to it are known
}

// entry is one object that is wanted.
type entry struct {
	object *api.Object // nil: the daemon has it
	group  string
	sum    uint64      // of object
	told   uint64      // of the object in the daemon; 0: the daemon does not have it
	there  bool        // the daemon has an object of ours by that name, in any version
	last   *api.Object // the daemon's version of a refused object; nil: none, or unknown
	// refusal is the reason why the daemon does not have object; nil: it has not refused it.
	// before is the refusal of an earlier session.
	refusal, before *refusal
}

type refusal struct {
	sum   uint64 // of the object that it is about
	err   *api.Error
	next  time.Time // when it is tried again
	pause time.Duration
	// looked: the daemon was asked for its current version of the object.
	looked bool
}

// New makes a keeper that wants nothing.
func New(o Options) *Keeper {
	return &Keeper{
		o: o, seed: maphash.MakeSeed(),
		want: map[api.ObjectRef]*entry{}, groups: map[string][]api.ObjectRef{}, since: map[string]time.Time{},
		dirty: map[api.ObjectRef]bool{}, gone: map[api.ObjectRef]bool{}, own: map[uint64]bool{},
		stuck: map[api.ObjectRef]api.Object{},
	}
}

// Set replaces the objects of a group; without objects the group is removed. since is the time of
// the change, for [Options.Told]; zero: not reported.
func (k *Keeper) Set(group string, objects []api.Object, since time.Time) {
	changed := false
	refs := make([]api.ObjectRef, 0, len(objects))
	for _, o := range objects {
		ref := api.ObjectRef{Kind: o.Kind, Name: o.Name}
		refs = append(refs, ref)
		changed = k.put(ref, group, o) || changed
	}
	for _, ref := range k.groups[group] {
		if e := k.want[ref]; e != nil && e.group == group && !slices.Contains(refs, ref) {
			k.drop(ref, e)
			changed = true
		}
	}
	if k.groups[group] = refs; len(refs) == 0 {
		delete(k.groups, group)
	}
	if before, ok := k.since[group]; changed && !since.IsZero() && (!ok || since.Before(before)) {
		k.since[group] = since
	}
}

// Keep is for a group whose desired objects are unknown at the moment: the daemon's objects stay,
// including objects from an earlier agent.
func (k *Keeper) Keep(group string, refs ...api.ObjectRef) {
	if !k.replacing {
		return // nothing is deleted
	}
	for _, ref := range refs {
		if k.want[ref] == nil {
			k.want[ref] = &entry{group: group}
			k.groups[group] = append(k.groups[group], ref)
			delete(k.gone, ref)
		}
	}
}

func (k *Keeper) put(ref api.ObjectRef, group string, o api.Object) (changed bool) {
	o.Owner = k.o.Owner
	sum := k.sum(&o)
	e := k.want[ref]
	if e == nil {
		e = &entry{}
		k.want[ref] = e
		e.there = k.gone[ref]
		delete(k.gone, ref)
	}
	e.group = group
	if e.sum == sum {
		if e.told != sum || k.replacing {
			e.object = &o
		}
		return false
	}
	e.object, e.sum = &o, sum
	k.dirty[ref] = true
	return true
}

func (k *Keeper) drop(ref api.ObjectRef, e *entry) {
	delete(k.want, ref)
	delete(k.dirty, ref)
	if e.there { // otherwise an object of that name, if any, has another owner
		k.gone[ref] = true
	}
	if e.refused() && k.o.Accepted != nil {
		k.o.Accepted(ref)
	}
}

// refused reports whether the daemon's refusal of the object was reported.
func (e *entry) refused() bool { return e.refusal != nil || e.before != nil }

// sum returns a hash of a version of an object. It is never 0.
func (k *Keeper) sum(o *api.Object) uint64 {
	var h maphash.Hash
	h.SetSeed(k.seed)
	_, _ = h.Write(o.Spec) // never fails
	var labels uint64
	for name, value := range o.Labels {
		labels += maphash.String(k.seed, name+"\x00"+value) // in any order
	}
	return (h.Sum64() ^ labels) | 1
}

// Groups returns the names of all groups.
func (k *Keeper) Groups() []string {
	names := make([]string, 0, len(k.groups))
	for name := range k.groups {
		names = append(names, name)
	}
	return names
}

// Len counts the objects that are wanted, Refused those that the daemon does not have.
func (k *Keeper) Len() int { return len(k.want) }

// Refused counts the objects that the daemon has refused.
func (k *Keeper) Refused() (n int) {
	for _, e := range k.want {
		if e.refusal != nil && e.refusal.sum == e.sum {
			n++
		}
	}
	return n
}

// Refusal returns why the daemon does not accept the desired object; nil: it does, or it was not
// sent.
func (k *Keeper) Refusal(ref api.ObjectRef) *api.Error {
	if e := k.want[ref]; e != nil && e.refusal != nil && e.refusal.sum == e.sum {
		return e.refusal.err
	}
	return nil
}

// Retry makes the next flush retry a refused object: the conflict may be resolved.
func (k *Keeper) Retry(ref api.ObjectRef) {
	if e := k.want[ref]; e != nil && e.refusal != nil {
		e.refusal.next = time.Time{}
	}
}

// Next returns when a refused object must be retried; zero: none.
func (k *Keeper) Next() (next time.Time) {
	if len(k.stuck) > 0 {
		next = k.stuckNext
	}
	for _, e := range k.want {
		if r := e.refusal; r != nil && r.sum == e.sum && (next.IsZero() || r.next.Before(next)) {
			next = r.next
		}
	}
	return next
}

// Foreign reports whether an event's change was made by another client to an object of ours: then
// the daemon does not have the desired object.
func (k *Keeper) Foreign(revision uint64, ref api.ObjectRef) bool {
	return !k.own[revision] && revision > k.revision && k.want[ref] != nil
}

// note records the revision of a change of ours; an empty change returns the revision of another
// client's change.
func (k *Keeper) note(result *api.ChangeResult) {
	revision := result.Revision
	if result.Summary[api.ActionCreated]+result.Summary[api.ActionUpdated]+result.Summary[api.ActionDeleted] == 0 {
		return
	}
	k.own[revision] = true
}

// Seen records that all changes up to a revision are known: their events have arrived.
func (k *Keeper) Seen(revision uint64) {
	k.revision = max(k.revision, revision)
	for r := range k.own {
		if r <= k.revision {
			delete(k.own, r)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package syncer keeps the daemon's objects of one owner exactly as desired: by one replace at the
// start of each session, and by small transactions from then on. It knows neither Kubernetes nor
// the source of the objects.
package syncer

import (
	"hash/maphash"
	"log/slog"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// Options of a [Syncer].
type Options struct {
	Client *client.Client
	Owner  string
	// Kinds are the kinds of the owner's objects, in the order in which they are sent if one
	// transaction is not enough. Objects of other kinds are left alone.
	Kinds []string
	Log   *slog.Logger
	// All calls Set, or Keep, for each existing group: the syncer does not remember the daemon's
	// objects, only that the daemon has them.
	All func()
	// Refused is called when the daemon rejects an object, and again when it rejects a different
	// version of the object, or for a different reason. Accepted is called when it accepts an
	// object that it had rejected. Both may be nil.
	Refused  func(api.ObjectRef, *api.Error)
	Accepted func(api.ObjectRef)
	// Fallback returns what the daemon gets in place of an object that it rejects, in the same
	// transaction as the other objects, until it accepts the object: attempt is 1, and one more
	// each time that the previous fallback is rejected too. nil: the daemon keeps its version.
	// Fallback may be nil.
	Fallback func(rejected *api.Object, attempt int) *api.Object
	// Applied is called when the daemon has the state of a group; since is when the group got that
	// state. Applied may be nil.
	Applied func(group string, since time.Time)
	// Sent is called after each transaction with its outcome; it may be nil.
	Sent func(method string, objects int, took time.Duration, err error)
}

// Syncer keeps objects. Only one goroutine may use it.
type Syncer struct {
	o    Options
	seed maphash.Seed

	want     map[api.ObjectRef]*entry
	groups   map[string][]api.ObjectRef
	dirty    map[api.ObjectRef]bool // in want, and possibly different in the daemon
	toDelete map[api.ObjectRef]bool // the daemon has it, but it is no longer wanted
	since    map[string]time.Time   // of groups that are not completely sent yet: when they changed

	// stuck are our objects that the daemon refuses to delete.
	stuck     map[api.ObjectRef]api.Object
	stuckNext time.Time // time of the next attempt

	replacing bool            // objects are kept until the daemon has all of them
	own       map[uint64]bool // revisions that are ours
	revision  uint64          // all changes up to it are known
}

// entry is one desired object.
type entry struct {
	object     *api.Object // nil: the daemon has it
	group      string
	sum        uint64      // of object
	appliedSum uint64      // of the object in the daemon; 0: the daemon does not have it
	exists     bool        // the daemon has our object of that name, in any version
	last       *api.Object // the daemon's version of a rejected object; nil: none, or unknown
	// refusal is the reason why the daemon does not have object; nil: it has not rejected it.
	// before is the refusal of an earlier session.
	refusal, before *refusal
}

type refusal struct {
	sum   uint64 // of the object that it is about
	err   *api.Error
	next  time.Time // when it is tried again
	pause time.Duration
	// looked is set if the daemon was asked for its current version of the object.
	looked bool
	// attempt counts the fallbacks that were sent in place of the object.
	attempt int
}

// New makes a syncer without desired objects.
func New(o Options) *Syncer {
	return &Syncer{
		o: o, seed: maphash.MakeSeed(),
		want: map[api.ObjectRef]*entry{}, groups: map[string][]api.ObjectRef{}, since: map[string]time.Time{},
		dirty: map[api.ObjectRef]bool{}, toDelete: map[api.ObjectRef]bool{}, own: map[uint64]bool{},
		stuck: map[api.ObjectRef]api.Object{},
	}
}

// Set replaces the objects of a group; without objects the group is removed. since is the time of
// the change, for [Options.Applied]; a zero time is not reported.
func (s *Syncer) Set(group string, objects []api.Object, since time.Time) {
	changed := false
	refs := make([]api.ObjectRef, 0, len(objects))
	for _, o := range objects {
		ref := api.ObjectRef{Kind: o.Kind, Name: o.Name}
		refs = append(refs, ref)
		changed = s.put(ref, group, o) || changed
	}
	for _, ref := range s.groups[group] {
		if e := s.want[ref]; e != nil && e.group == group && !slices.Contains(refs, ref) {
			s.drop(ref, e)
			changed = true
		}
	}
	if s.groups[group] = refs; len(refs) == 0 {
		delete(s.groups, group)
	}
	if before, ok := s.since[group]; changed && !since.IsZero() && (!ok || since.Before(before)) {
		s.since[group] = since
	}
}

// Keep is for a group whose desired objects are unknown at the moment: the daemon's objects stay,
// including objects from an earlier agent.
func (s *Syncer) Keep(group string, refs ...api.ObjectRef) {
	if !s.replacing {
		return // nothing is deleted
	}
	for _, ref := range refs {
		if s.want[ref] == nil {
			s.want[ref] = &entry{group: group}
			s.groups[group] = append(s.groups[group], ref)
			delete(s.toDelete, ref)
		}
	}
}

func (s *Syncer) put(ref api.ObjectRef, group string, o api.Object) (changed bool) {
	o.Owner = s.o.Owner
	sum := s.sum(&o)
	e := s.want[ref]
	if e == nil {
		e = &entry{}
		s.want[ref] = e
		e.exists = s.toDelete[ref]
		delete(s.toDelete, ref)
	}
	e.group = group
	if e.sum == sum {
		if e.appliedSum != sum || s.replacing {
			e.object = &o
		}
		return false
	}
	e.object, e.sum = &o, sum
	s.dirty[ref] = true
	return true
}

func (s *Syncer) drop(ref api.ObjectRef, e *entry) {
	delete(s.want, ref)
	delete(s.dirty, ref)
	if e.exists { // otherwise an object of that name, if any, has a different owner
		s.toDelete[ref] = true
	}
	if e.refused() && s.o.Accepted != nil {
		s.o.Accepted(ref)
	}
}

// refused reports whether the object's rejection by the daemon was reported.
func (e *entry) refused() bool { return e.refusal != nil || e.before != nil }

// sum returns a hash of a version of an object. It is never 0.
func (s *Syncer) sum(o *api.Object) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	_, _ = h.Write(o.Spec) // never fails
	var labels uint64
	for name, value := range o.Labels {
		labels += maphash.String(s.seed, name+"\x00"+value) // in any order
	}
	return (h.Sum64() ^ labels) | 1
}

// Groups returns the names of all groups.
func (s *Syncer) Groups() []string {
	names := make([]string, 0, len(s.groups))
	for name := range s.groups {
		names = append(names, name)
	}
	return names
}

// Len returns the number of desired objects.
func (s *Syncer) Len() int { return len(s.want) }

// Refused returns the number of objects that the daemon has rejected.
func (s *Syncer) Refused() (n int) {
	for _, e := range s.want {
		if e.refusal != nil && e.refusal.sum == e.sum {
			n++
		}
	}
	return n
}

// Refusal returns why the daemon does not accept the desired object, or nil if it was accepted or
// not sent.
func (s *Syncer) Refusal(ref api.ObjectRef) *api.Error {
	if e := s.want[ref]; e != nil && e.refusal != nil && e.refusal.sum == e.sum {
		return e.refusal.err
	}
	return nil
}

// Retry makes the next flush retry a rejected object: the conflict may be resolved.
func (s *Syncer) Retry(ref api.ObjectRef) {
	if e := s.want[ref]; e != nil && e.refusal != nil {
		e.refusal.next = time.Time{}
	}
}

// Next returns when a rejected object must be retried, or the zero time if there is none.
func (s *Syncer) Next() (next time.Time) {
	if len(s.stuck) > 0 {
		next = s.stuckNext
	}
	for _, e := range s.want {
		if r := e.refusal; r != nil && r.sum == e.sum && (next.IsZero() || r.next.Before(next)) {
			next = r.next
		}
	}
	return next
}

// Foreign reports whether an event's change was made by another client to one of our objects: then
// the daemon does not have the desired object.
func (s *Syncer) Foreign(revision uint64, ref api.ObjectRef) bool {
	return !s.own[revision] && revision > s.revision && s.want[ref] != nil
}

// note records the revision of one of our changes. The result of an empty change contains the
// revision of another client's change.
func (s *Syncer) note(result *api.ChangeResult) {
	revision := result.Revision
	if result.Summary[api.ActionCreated]+result.Summary[api.ActionUpdated]+result.Summary[api.ActionDeleted] == 0 {
		return
	}
	s.own[revision] = true
}

// Seen records that all changes up to a revision are known: their events have arrived.
func (s *Syncer) Seen(revision uint64) {
	s.revision = max(s.revision, revision)
	for r := range s.own {
		if r <= s.revision {
			delete(s.own, r)
		}
	}
}

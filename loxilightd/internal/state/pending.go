// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Clock tells the time. A field that is nil is the machine's.
type Clock struct {
	// Now is the time of day, which people and time servers set.
	Now func() time.Time
	// Boot returns an id of this run of the machine and how long it has run, sleep
	// included: nobody sets that. An empty id: it is not known.
	Boot func() (id string, since time.Duration)
}

func (c Clock) orMachine() Clock {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Boot == nil {
		c.Boot = machineBoot
	}
	return c
}

func machineBoot() (string, time.Duration) {
	var ts unix.Timespec
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return "", 0
	}
	return strings.TrimSpace(string(id)), time.Duration(ts.Nano())
}

// Pending is a change that is in force until a deadline, and taken back then
// unless somebody confirms it.
type Pending struct {
	Revision uint64
	Begun    time.Time
	Until    time.Time
	Within   time.Duration // from Begun to Until
	Author   Author        // who made the change

	bootID string
	bootAt time.Duration // at Begun
}

func (c Clock) begin(revision uint64, within time.Duration, by Author) *Pending {
	p := &Pending{Revision: revision, Begun: c.Now().Round(0).UTC(), Within: within, Author: by}
	p.Until = p.Begun.Add(within)
	p.bootID, p.bootAt = c.Boot()
	return p
}

// left returns how long p may still be confirmed. Clocks that disagree count as
// the one by which less is left: what should have been confirmed is taken back
// rather too early than too late.
func (c Clock) left(p *Pending) time.Duration {
	now := c.Now()
	left := min(p.Until.Sub(now), p.Within)
	if id, since := c.Boot(); id != "" && id == p.bootID {
		left = min(left, p.Within-(since-p.bootAt))
	} else if now.Before(p.Begun) {
		left = 0 // another run of the machine, and its clock was set back: nobody knows
	}
	return max(left, 0)
}

const pendingKey = "pending"

func (p *Pending) encode() []byte {
	buf := binary.AppendUvarint(make([]byte, 4, 128), entryFormat)
	buf = binary.AppendUvarint(buf, p.Revision)
	for _, n := range []int64{p.Begun.UnixNano(), int64(p.Within), int64(p.bootAt)} {
		buf = binary.LittleEndian.AppendUint64(buf, uint64(n))
	}
	buf = appendString(buf, p.bootID)
	seal(pendingKey, buf)
	return buf
}

// loadPending reads the promise to take a change back. One that cannot be read, or
// is about a change that the history does not have, is a loss of the history.
func (c *content) loadPending(record []byte) {
	if record == nil {
		return
	}
	payload, _, ok := unseal(pendingKey, record)
	r := reader{rest: payload}
	if ok = ok && r.uvarint() == entryFormat; ok {
		p := &Pending{Revision: r.uvarint(), Begun: r.time()}
		p.Within, p.bootAt = time.Duration(r.int64()), time.Duration(r.int64())
		p.Until, p.bootID = p.Begun.Add(p.Within), r.string()
		c.pending = p
	}
	i, known := 0, false
	if ok = ok && !r.bad; ok {
		i, known = find(c.history, c.pending.Revision)
	}
	switch {
	case known:
		c.pending.Author = c.history[i].Author
	case c.historyLost == "":
		c.history, c.historyLost = nil, "the change that waits to be confirmed is not in it"
	}
}

func (r *reader) int64() int64 {
	if len(r.rest) < 8 {
		r.bad, r.rest = true, nil
		return 0
	}
	n := int64(binary.LittleEndian.Uint64(r.rest))
	r.rest = r.rest[8:]
	return n
}

// waiting is a change that waits for its confirmation, with what it holds until
// then: it must be possible to take it back. It is never changed once it is in the store.
type waiting struct {
	Pending
	base   uint64          // the revision before it
	keys   map[Key]bool    // the objects that it changed
	all    map[string]bool // owners of these objects
	owners map[string]bool // whose other objects wait with it
	claims map[claim]Key   // what its former objects claimed

	// back is the state that there is once it is taken back: the one before it, with what
	// others did since. A commit has to fit both.
	back     *table
	dark     map[Key]*Object // as back, what is not understood
	networks []*Object       // pod networks that it made or changed, as they are
}

// machineOwners are programs that cannot wait for people: what they hold may
// change while a change by others waits.
var machineOwners = map[string]bool{OwnerFile: true, "cni": true, "k8s": true}

func newWaiting(p *Pending, base uint64) *waiting {
	return &waiting{Pending: *p, base: base, keys: map[Key]bool{}, all: map[string]bool{}, owners: map[string]bool{}, claims: map[claim]Key{}}
}

// hold notes that the change touched an object: as it was, and as it is.
func (w *waiting) hold(k Key, before, after *Object) {
	w.keys[k] = true
	for _, o := range []*Object{before, after} {
		if o == nil {
			continue
		}
		w.all[o.Owner] = true
		if !machineOwners[o.Owner] {
			w.owners[o.Owner] = true
		}
	}
	if before != nil && before.Value != nil {
		before.Value.claims(func(c claim, _ func() string) { w.claims[c] = k })
	}
	if after != nil && after.Value != nil && k.Kind == KindPodNetwork {
		w.networks = append(w.networks, after)
	}
}

// resumeWaiting takes up the promise that an earlier run gave.
func (s *Store) resumeWaiting(c *content) error {
	if c.pending == nil || c.historyLost != "" {
		return nil
	}
	i, _ := find(c.history, c.pending.Revision)
	w := newWaiting(c.pending, c.history[i].Previous)
	back := s.Snapshot().table.edit()
	w.dark = maps.Clone(s.Snapshot().dark)
	err := s.Diffs(c.pending.Revision, "", func(d Diff) bool {
		w.hold(d.Key, d.Before, d.After)
		back.remove(d.Key)
		delete(w.dark, d.Key)
		switch o := d.Before; {
		case o == nil:
		case o.Value == nil:
			w.dark[d.Key] = o
		default:
			back.put(o)
		}
		return true
	})
	if err != nil {
		return err
	}
	w.back = back.done()
	s.waiting.Store(w)
	return nil
}

// Pending returns the change that waits for its confirmation, and how much longer;
// nil: none does.
func (s *Store) Pending() (p *Pending, left time.Duration) {
	w := s.waiting.Load()
	if w == nil {
		return nil, 0
	}
	return &w.Pending, s.clock.left(&w.Pending)
}

// checkConfirmed refuses to have a plan taken back that changes what goes with pods: those
// come and go meanwhile.
func (p *plan) checkConfirmed() error {
	for _, f := range p.formers {
		if belongsTo(f.object, OwnerCNI) || belongsTo(p.edit.get(f.Key), OwnerCNI) {
			return refuse(Conflict, f.Key, "owner", "goes with a pod, and pods do not wait for a confirmation: leave it out, or change it without confirm")
		}
	}
	return nil
}

// checkWaiting refuses a plan that would keep the change that waits for its
// confirmation from being taken back, is of the same owner, or would wait beside it.
func (s *Store) checkWaiting(p *plan, confirm time.Duration) error {
	w := s.waiting.Load()
	if w == nil {
		return nil
	}
	for _, f := range p.formers {
		if w.keys[f.Key] {
			return s.refuseWaiting(w, f.Key, "", "this object was changed by it")
		}
		if f.object != nil && w.owners[f.object.Owner] {
			return s.refuseWaiting(w, f.Key, "", "this object has the same owner ("+f.object.Owner+") as that change")
		}
	}
	for _, o := range p.puts {
		if w.owners[o.Owner] {
			return s.refuseWaiting(w, o.Key, "", "this object has the same owner ("+o.Owner+") as that change")
		}
	}
	if confirm > 0 && len(p.formers) > 0 {
		return s.refuseWaiting(w, Key{}, "confirm", "one change waits at a time")
	}
	p.back = w.plan(p)
	err := p.back.check(func(c claim) (Key, bool) {
		if k, held := w.claims[c]; held {
			return k, true
		}
		return s.holder(c)
	}, s.merged)
	if err == nil {
		err = p.back.checkStays(w)
	}
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		return s.refuseWaiting(w, refusal.Key, refusal.Field, "this object does not fit what there is once it is taken back: "+refusal.Message)
	}
	return err
}

// plan is what a plan makes of the state that there is once w is taken back. No object of w
// is in it.
func (w *waiting) plan(p *plan) *plan {
	back := &plan{
		edit: w.back.edit(), puts: p.puts, gone: p.gone, dropped: p.dropped, dark: w.dark, lit: p.lit, darkens: p.darkens, formers: p.formers,
		restores: true,
	}
	for _, f := range p.formers {
		if o := p.edit.get(f.Key); o != nil {
			back.edit.put(o)
		} else {
			back.edit.remove(f.Key)
		}
	}
	return back
}

// checkStays refuses a plan in which an Endpoint is in a pod network that is no more, or has
// other subnets, once w is taken back.
func (p *plan) checkStays(w *waiting) error {
	for _, o := range p.puts {
		e, ok := o.Value.(*Endpoint)
		if !ok {
			continue
		}
		for _, was := range w.networks {
			switch i, ends := e.livesIn(was, p.edit.get(was.Key)); {
			case !ends:
			case i < 0:
				return refuse(Conflict, o.Key, "spec.network", "there is no %s then", was.Key)
			default:
				return refuse(Conflict, o.Key, fmt.Sprintf("spec.addresses[%d]", i), "%s is in no subnet of %s then", e.Addresses[i], was.Key)
			}
		}
	}
	return nil
}

// with is w after a commit that made back of what there is once it is taken back.
func (w *waiting) with(back *plan) *waiting {
	next := *w
	next.back = back.edit.done()
	if len(back.lit)+len(back.darkens) > 0 {
		next.dark = maps.Clone(w.dark)
		for _, o := range back.lit {
			delete(next.dark, o.Key)
		}
		for _, o := range back.darkens {
			next.dark[o.Key] = o
		}
	}
	return &next
}

func (s *Store) refuseWaiting(w *waiting, k Key, field, why string) error {
	return refuse(Conflict, k, field, "the change of revision %d by %s waits to be confirmed until %s (for %s), and %s: confirm it (llcli confirm), or take it back (llcli rollback --last), then try again",
		w.Revision, w.Author, w.Until.Format(time.RFC3339), s.clock.left(&w.Pending).Round(time.Second), why)
}

// String names a user for people.
func (a Author) String() string {
	if a.User != "" {
		return a.User
	}
	return "user id " + strconv.Itoa(a.UID)
}

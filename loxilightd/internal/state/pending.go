// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/binary"
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
// then: it must be possible to take it back.
type waiting struct {
	Pending
	base   uint64          // the revision before it
	keys   map[Key]bool    // the objects that it changed
	all    map[string]bool // owners of these objects
	owners map[string]bool // whose other objects wait with it
	claims map[claim]Key   // what its former objects claimed
	others map[Key]bool    // what its former objects referred to
}

// machineOwners are programs that cannot wait for people: what they hold may
// change while a change by others waits.
var machineOwners = map[string]bool{OwnerFile: true, "cni": true, "k8s": true}

func newWaiting(p *Pending, base uint64) *waiting {
	return &waiting{Pending: *p, base: base, keys: map[Key]bool{}, all: map[string]bool{}, owners: map[string]bool{}, claims: map[claim]Key{}, others: map[Key]bool{}}
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
		for other := range refersTo(before.Value) {
			w.others[other] = true
		}
	}
}

// resumeWaiting takes up the promise that an earlier run gave.
func (s *Store) resumeWaiting(c *content) error {
	if c.pending == nil || c.historyLost != "" {
		return nil
	}
	i, _ := find(c.history, c.pending.Revision)
	w := newWaiting(c.pending, c.history[i].Previous)
	err := s.Diffs(c.pending.Revision, "", func(d Diff) bool {
		w.hold(d.Key, d.Before, d.After)
		return true
	})
	if err != nil {
		return err
	}
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

// checkWaiting refuses a plan that would keep the change that waits for its
// confirmation from being taken back, or that is of the same owner.
func (s *Store) checkWaiting(p *plan) error {
	w := s.waiting.Load()
	if w == nil {
		return nil
	}
	for _, f := range p.formers {
		if w.keys[f.Key] {
			return s.refuseWaiting(w, f.Key, "was changed by it")
		}
		if w.others[f.Key] && p.edit.get(f.Key) == nil {
			return s.refuseWaiting(w, f.Key, "is referred to by what goes back unless it is confirmed")
		}
		if f.object != nil && w.owners[f.object.Owner] {
			return s.refuseWaiting(w, f.Key, "belongs to owner "+f.object.Owner+" as it does")
		}
	}
	for _, o := range p.puts {
		if w.owners[o.Owner] {
			return s.refuseWaiting(w, o.Key, "belongs to owner "+o.Owner+" as it does")
		}
		if err := s.checkHeld(w, o); err != nil {
			return err
		}
	}
	return nil
}

// checkHeld refuses an object that claims, or refers to, what goes back or away
// unless the change that waits is confirmed.
func (s *Store) checkHeld(w *waiting, o *Object) (err error) {
	o.Value.claims(func(c claim, _ func() string) {
		holder, held := w.claims[c]
		if !held && s.merged {
			holder, held = w.claims[c.elsewhere()]
		}
		if held && err == nil {
			err = s.refuseWaiting(w, o.Key, "claims "+c.String()+", which goes back to "+holder.String()+" unless it is confirmed")
		}
	})
	for k := range refersTo(o.Value) {
		if w.keys[k] && err == nil {
			err = s.refuseWaiting(w, o.Key, "refers to "+k.String()+", which was changed by it")
		}
	}
	return err
}

func (s *Store) refuseWaiting(w *waiting, k Key, why string) error {
	return refuse(Conflict, k, "", "the change of revision %d by %s waits to be confirmed until %s (for %s), and this object %s: confirm it (llcli confirm), or take it back (llcli rollback --last), then try again",
		w.Revision, w.Author, w.Until.Format(time.RFC3339), s.clock.left(&w.Pending).Round(time.Second), why)
}

// String names a user for people.
func (a Author) String() string {
	if a.User != "" {
		return a.User
	}
	return "user id " + strconv.Itoa(a.UID)
}

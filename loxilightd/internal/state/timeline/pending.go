// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/loxilightd/internal/state/record"
)

// Clock provides the time. A nil field means the machine's clock.
type Clock struct {
	// Now returns the wall-clock time, which users and time servers can set.
	Now func() time.Time
	// Boot returns the boot ID of the machine and the time since boot, including suspend; this time
	// cannot be set. An empty id means that both are unknown.
	Boot func() (id string, since time.Duration)
}

// OrMachine returns c with the machine's clock in place of each nil.
func (c Clock) OrMachine() Clock {
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

// Pending is a change that is in force until a deadline and is then rolled back unless it is
// confirmed. Further changes that require confirmation join it: the deadline stays, and all of
// these changes are confirmed or rolled back together.
type Pending struct {
	Revision uint64   // the latest revision
	Joined   []uint64 // the revisions that Revision joined, oldest first
	Begun    time.Time
	Until    time.Time
	Within   time.Duration // the time from Begun to Until
	Author   Author        // author of Revision

	bootID string
	bootAt time.Duration // time since boot at Begun
}

// MaxJoined limits the number of revisions in one pending change, because the history keeps them
// regardless of their size.
const MaxJoined = 100

// Revisions returns all revisions of the change, oldest first.
func (p *Pending) Revisions() []uint64 { return append(slices.Clone(p.Joined), p.Revision) }

// Join returns the change extended by one revision.
func (p *Pending) Join(revision uint64, by Author) *Pending {
	next := *p
	next.Revision, next.Joined, next.Author = revision, p.Revisions(), by
	return &next
}

// Begin returns a change that must be confirmed in time.
func (c Clock) Begin(revision uint64, within time.Duration, by Author) *Pending {
	p := &Pending{Revision: revision, Begun: c.Now().Round(0).UTC(), Within: within, Author: by}
	p.Until = p.Begun.Add(within)
	p.bootID, p.bootAt = c.Boot()
	return p
}

// Left returns how much time remains to confirm p. If the clocks disagree, the clock with less time
// left applies: an unconfirmed change is rolled back too early rather than too late.
func (c Clock) Left(p *Pending) time.Duration {
	now := c.Now()
	left := min(p.Until.Sub(now), p.Within)
	if id, since := c.Boot(); id != "" && id == p.bootID {
		left = min(left, p.Within-(since-p.bootAt))
	} else if now.Before(p.Begun) {
		left = 0 // the machine was rebooted and its clock was set back, so the elapsed time is unknown
	}
	return max(left, 0)
}

// PendingKey is the key of the record.
const PendingKey = "pending"

// pendingFormat is the version of the record of the pending change. Version 1 ends before Joined.
const pendingFormat = 2

// Encode returns the record of a change.
func (p *Pending) Encode() []byte {
	buf := binary.AppendUvarint(make([]byte, record.SumSize, 128), pendingFormat)
	buf = binary.AppendUvarint(buf, p.Revision)
	for _, n := range []int64{p.Begun.UnixNano(), int64(p.Within), int64(p.bootAt)} {
		buf = binary.LittleEndian.AppendUint64(buf, uint64(n))
	}
	buf = record.AppendString(buf, p.bootID)
	buf = binary.AppendUvarint(buf, uint64(len(p.Joined)))
	for _, revision := range p.Joined {
		buf = binary.AppendUvarint(buf, revision)
	}
	record.Seal(PendingKey, buf)
	return buf
}

// DecodePending is the reverse of [Pending.Encode].
func DecodePending(sealed []byte) (p *Pending, ok bool) {
	payload, _, ok := record.Unseal(PendingKey, sealed)
	r := record.Reader{Rest: payload}
	if !ok {
		return nil, false
	}
	format := r.Uvarint()
	p = &Pending{Revision: r.Uvarint(), Begun: r.Time()}
	p.Within, p.bootAt = time.Duration(r.Int64()), time.Duration(r.Int64())
	p.Until, p.bootID = p.Begun.Add(p.Within), r.Text()
	if format > 1 {
		for range min(r.Uvarint(), MaxJoined) {
			p.Joined = append(p.Joined, r.Uvarint())
		}
	}
	return p, !r.Bad && 1 <= format && format <= pendingFormat
}

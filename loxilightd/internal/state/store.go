// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state/disk"
)

// fileName is the name of the store in the state directory.
const fileName = "state.db"

// Config is the configuration of a [Store].
type Config struct {
	Dir    string          // state directory; created if it does not exist
	Tables datapath.Tables // sizes of the tables
	// InUse is set if a data plane from an earlier run is active, so that a missing store counts as
	// lost.
	InUse bool
	// Decode decodes the spec of a stored object into its value.
	Decode  func(kind string, spec []byte) (Value, error)
	History HistoryLimits
	Clock   Clock // zero: the machine's
	// OneNamespace is set if host and switch are the same network namespace.
	OneNamespace bool
}

// Report contains findings of [Open] that an operator should know.
type Report struct {
	// Damage describes the last store that was set aside, at this or an earlier start; nil: none
	// has been set aside.
	Damage *Damage
	// RolledBack is set if a damaged page may have destroyed the last commit. The store is
	// consistent, but possibly one commit old.
	RolledBack bool
	// Unreadable are stored objects that this version cannot decode. They stay in the store without
	// effect until an object with the same name is put or deleted, or until a version that can
	// decode them runs.
	Unreadable []Unreadable
	// HistoryLost is why the store's history was restarted; empty: it was not.
	HistoryLost string
	// Unconfirmed is a change that was waiting for confirmation and cannot be rolled back, because
	// the history has been lost; nil: none.
	Unconfirmed *Pending
}

// Damage describes a damaged store that was set aside. The daemon has lost its objects: until their
// owners have configured them again, it is unknown which parts of the data plane are still needed.
type Damage struct {
	At    time.Time `json:"at"`
	File  string    `json:"file"` // current path of the damaged store; empty: the store was missing
	Cause string    `json:"cause"`
	// Restored is the revision of the copy that replaced the store; 0: there was no usable copy.
	Restored uint64 `json:"restored,omitempty"`
}

// Unreadable is a stored object that this version cannot decode.
type Unreadable struct {
	Key Key
	Err error
}

// Store keeps the desired state. It is safe for concurrent use.
type Store struct {
	tables datapath.Tables

	writer sync.Mutex // held throughout a commit
	disk   *disk.File
	decode func(kind string, spec []byte) (Value, error)
	limits HistoryLimits
	clock  Clock
	merged bool // host and switch are the same network namespace

	// claims maps claims to their holders. Plans may read it without holding writer, so it has its
	// own lock.
	claiming sync.RWMutex
	claims   map[claim]Key

	path   string // path of the file
	copied uint64 // the revision of the copy; protected by writer
	// failure is why the last change could not be made durable; nil: it was made durable.
	failure  atomic.Pointer[error]
	waiting  atomic.Pointer[waiting] // the pending change; nil: none
	history  atomic.Pointer[[]Entry]
	snapshot atomic.Pointer[Snapshot]

	mu      sync.Mutex // held briefly; always acquired after writer
	log     changeLog
	watches map[*Watch]struct{}
}

// Open opens the store in cfg.Dir and creates it if it does not exist. A damaged store is renamed
// and replaced, and the report describes the damage. An error means that the directory cannot be
// used at all, or wraps [disk.ErrLocked].
func Open(cfg Config) (*Store, *Report, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("state directory: %w", err)
	}
	path := filepath.Join(cfg.Dir, fileName)
	f, content, err := openFile(path, cfg.Decode)
	if errors.Is(err, disk.ErrDamaged) {
		var damage *Damage
		if damage, err = setAside(path, err); err != nil {
			return nil, nil, err
		}
		f, content, err = recreate(path, damage, cfg.Decode)
	} else if errors.Is(err, os.ErrNotExist) && cfg.InUse {
		damage := &Damage{At: time.Now().UTC(), Cause: "it did not exist, although the data plane was active"}
		f, content, err = recreate(path, damage, cfg.Decode)
	} else if errors.Is(err, os.ErrNotExist) {
		if err = create(path, 0, nil); err != nil {
			return nil, nil, err
		}
		f, content, err = openFile(path, cfg.Decode)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("state in %s: %w", path, err)
	}
	s := newStore(&cfg, f, content)
	if err := f.ReadOnly(); err != nil {
		s.noteFailure(err)
	}
	if err := s.resumeWaiting(content); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("state in %s: %w", path, err), f.Close())
	}
	return s, content.report(), nil
}

func (c *content) report() *Report {
	r := &Report{Damage: c.damage, RolledBack: c.rolledBack, Unreadable: c.unreadable, HistoryLost: c.historyLost}
	if c.historyLost != "" {
		r.Unconfirmed = c.pending
	}
	return r
}

func newStore(cfg *Config, f *disk.File, c *content) *Store {
	s := &Store{
		tables:  cfg.Tables,
		disk:    f,
		path:    f.Path(),
		decode:  cfg.Decode,
		limits:  cfg.History.OrDefault(),
		clock:   cfg.Clock.OrMachine(),
		merged:  cfg.OneNamespace,
		claims:  map[claim]Key{},
		watches: map[*Watch]struct{}{},
		log:     changeLog{oldest: c.Revision},
	}
	edit := (&table{}).edit()
	counts, cost := map[string]int{}, datapath.Cost{}
	for _, o := range c.objects {
		if edit.put(o); o.isOpaque() {
			continue
		}
		counts[o.Kind]++
		cost = cost.Add(o.Value.cost())
		o.Value.claims(func(c claim, _ func() string) { s.claims[c] = o.Key })
	}
	s.snapshot.Store(newSnapshot(c.Revision, edit.done(), counts, cost))
	s.history.Store(&c.history)
	return s
}

// setAside renames a damaged store.
func setAside(path string, cause error) (*Damage, error) {
	now := time.Now().UTC()
	damage := &Damage{At: now, File: path + ".damaged-" + now.Format("20060102T150405.000Z"), Cause: cause.Error()}
	if err := os.Rename(path, damage.File); err != nil {
		return nil, fmt.Errorf("set the damaged store aside (%v): %w", cause, err)
	}
	return damage, nil
}

// freshRevision returns a revision that no store has ever had, so that clients cannot confuse it
// with a revision that they have seen before the store lost data.
func freshRevision(now time.Time) uint64 { return uint64(now.UnixMilli()) }

// Snapshot returns the desired state as it is now.
func (s *Store) Snapshot() *Snapshot { return s.snapshot.Load() }

// Tables returns the table sizes against which transactions are checked.
func (s *Store) Tables() datapath.Tables { return s.tables }

// noteFailure records why a change could not be made durable; nil means that it was made durable.
func (s *Store) noteFailure(err error) {
	if err == nil {
		s.failure.Store(nil)
		return
	}
	s.failure.Store(&err)
}

// Problem returns why changes are, or soon will be, rejected; empty: no problem.
func (s *Store) Problem() string {
	var failed error
	if f := s.failure.Load(); f != nil {
		failed = *f
	}
	return disk.Problem(filepath.Dir(s.path), failed)
}

// Close closes the store. Later commits are rejected.
func (s *Store) Close() error {
	s.writer.Lock()
	defer s.writer.Unlock()
	return s.disk.Close()
}

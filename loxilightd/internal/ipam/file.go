// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// format is the version of the file format.
const format = 1

// record is one line in the file, which contains one change. A line consists of the CRC32C of the
// rest, a space, and the record as JSON.
type record struct {
	Format int            `json:"format,omitempty"` // only in the first line
	Lease  *Lease         `json:"lease,omitempty"`  // the owner has this lease from now on
	Picked []netip.Prefix `json:"picked,omitempty"` // addresses that were chosen, not requested
	Free   *freed         `json:"free,omitempty"`   // the owner has no addresses from now on
	Rest   *rested        `json:"rest,omitempty"`
	Next   *turn          `json:"next,omitempty"`
}

type freed struct {
	Owner
	At time.Time `json:"at"`
}

type rested struct {
	Address netip.Addr `json:"address"`
	At      time.Time  `json:"at"`
}

type turn struct {
	Subnet  netip.Prefix `json:"subnet"`
	Address netip.Addr   `json:"address"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// append adds the record to text as a line.
func (r record) append(text []byte) []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // it contains only types that can be encoded
	}
	return fmt.Appendf(text, "%08x %s\n", crc32.Checksum(b, castagnoli), b)
}

// parse parses one line; ok is false if the line is damaged.
func parse(line []byte) (r record, ok bool) {
	sum, text, found := bytes.Cut(line, []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if !found || len(sum) != 8 || err != nil || uint32(want) != crc32.Checksum(text, castagnoli) || json.Unmarshal(text, &r) != nil {
		return record{}, false
	}
	return r, true
}

// file stores the leases. Calls must not be concurrent.
type file struct {
	path   string // empty: leases are not stored
	f      *os.File
	size   int  // in bytes
	broken bool // the content at the end of the file is unknown
}

// wantsRewrite reports whether the file must be rewritten: it is much longer than that number of
// entries requires, or it is broken.
func (f *file) wantsRewrite(entries int) bool {
	return f.broken || f.size > 1<<16+1024*entries
}

// append appends text durably to the file.
func (f *file) append(text []byte) error {
	if f.path == "" || len(text) == 0 {
		return nil
	}
	_, err := f.f.Write(text)
	if err == nil {
		err = f.f.Sync()
	}
	if err != nil {
		f.broken = true
		return fmt.Errorf("store leases: %w", err)
	}
	f.size += len(text)
	return nil
}

// begin continues to use the existing file if it has the same lines as text, in any order;
// otherwise it rewrites the file.
func (f *file) begin(text []byte) error {
	if f.path == "" {
		return nil
	}
	content, err := os.ReadFile(f.path)
	if err != nil || !sameLines(content, text) {
		return f.rewrite(text)
	}
	if f.f, err = os.OpenFile(f.path, os.O_APPEND|os.O_WRONLY, 0); err != nil {
		f.broken = true
		return fmt.Errorf("store leases: %w", err)
	}
	f.size = len(content)
	return nil
}

// sameLines reports whether two files have the same first line and the same set of other lines.
func sameLines(a, b []byte) bool {
	lines := func(text []byte) []string {
		all := strings.SplitAfter(string(text), "\n")
		slices.Sort(all[1:])
		return all
	}
	return len(a) == len(b) && slices.Equal(lines(a), lines(b))
}

// rewrite replaces the content of the file with text, durably.
func (f *file) rewrite(text []byte) error {
	if f.path == "" {
		return nil
	}
	fresh, err := writeBeside(f.path, text)
	if err == nil {
		err = os.Rename(fresh.Name(), f.path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(f.path))
	}
	if err != nil {
		if fresh != nil {
			_ = fresh.Close() // its content is not needed
		}
		// The rename may have succeeded.
		f.broken = true
		return fmt.Errorf("store leases: %w", err)
	}
	if f.f != nil {
		_ = f.f.Close() // the file's content is durable or discarded
	}
	f.f, f.size, f.broken = fresh, len(text), false
	return nil
}

// writeBeside writes text durably to a new file beside path, and returns that file, open.
func writeBeside(path string, text []byte) (*os.File, error) {
	fresh, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = fresh.Write(text); err == nil {
		err = fresh.Sync()
	}
	return fresh, err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (f *file) close() error {
	if f.f == nil {
		return nil
	}
	return f.f.Close()
}

// load reads the readable records of the file.
func (s *Store) load() {
	if s.opts.Path == "" {
		return
	}
	content, err := os.ReadFile(s.opts.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var why string
	if err != nil {
		why = err.Error()
	} else if why = s.replay(content); why == "" {
		return
	}
	aside := s.opts.Path + ".damaged-" + s.opts.Now().UTC().Format("20060102T150405.000000000Z")
	if err := os.Rename(s.opts.Path, aside); err != nil {
		aside = err.Error()
	}
	s.problem = fmt.Sprintf("the leases of addresses were damaged (%s), and the file set aside (%s): %d leases could be read", why, aside, len(s.leases))
	s.opts.Log.Error("the leases of addresses were damaged: the file is set aside, and its readable records are used",
		slog.String("cause", why), slog.String("file", aside), slog.Int("leases", len(s.leases)))
}

// replay applies the records of a file, and returns a description of the file's damage, or an empty
// string if there is none. An incomplete last line is not damage: it was being written when the
// daemon was killed, and its request was not answered.
func (s *Store) replay(content []byte) (why string) {
	bad, first := 0, true
	for len(content) > 0 {
		line, rest, whole := bytes.Cut(content, []byte("\n"))
		if !whole && !first && bytes.IndexByte(line, 0) < 0 {
			break
		}
		content = rest
		r, ok := parse(line)
		if ok = ok && whole; !ok {
			bad++
		} else if first && r.Format != format {
			why = fmt.Sprintf("it begins with format %d, and this version reads %d", r.Format, format)
		}
		first = false
		if ok {
			s.take(r)
		}
	}
	switch {
	case first:
		return "it is empty"
	case bad > 0:
		return fmt.Sprintf("%d of its lines are damaged", bad)
	}
	return why
}

// take applies one record.
func (s *Store) take(r record) {
	now := s.opts.Now()
	past := func(t time.Time) time.Time { // the clock may have been set back
		if t.After(now) {
			return now
		}
		return t
	}
	switch {
	case r.Lease != nil:
		if old := s.leases[r.Lease.Owner]; old != nil {
			s.drop(old)
		}
		s.grant(r.Lease)
		s.advance(r.Picked)
	case r.Free != nil:
		if l := s.leases[r.Free.Owner]; l != nil {
			s.retire(l, past(r.Free.At))
		}
	case r.Rest != nil:
		s.rest(r.Rest.Address, past(r.Rest.At))
	case r.Next != nil:
		s.next[r.Next.Subnet] = r.Next.Address
	}
}

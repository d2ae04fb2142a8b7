// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
	"github.com/loxilight/loxilight/datapath/internal/network/route"
)

// journalName is the file in the daemon's state directory.
const journalName = "network.journal"

// journal records which objects of the kernel's own forwarding are ours, because the kernel mostly
// cannot report that. It has one line for each change, written before the kernel is changed. If the
// daemon is killed, the journal may name changes that were never made, but never lacks a change
// that was made. It becomes void at the next boot, because the kernel's network state does not
// survive a reboot; so single lines are not synced.
//
// If the journal cannot be written (a full or read-only file system), the network continues with
// the records in memory, [journal.problem] reports the error, and each further note tries to
// rewrite the whole journal.
type journal struct {
	mu      sync.Mutex
	file    *os.File // nil: the journal is not kept, or is broken
	current records
	lines   int
	dir     string // empty: the journal is not kept
	broken  error  // why the file differs from current; nil: it is equal
}

// records is the current contents of the journal.
type records struct {
	Bridges   map[string]*bridgeRecord
	Routes    map[string]*routeRecord
	Links     map[string]*linkRecord
	Endpoints map[string]*endpointRecord
	Tunnels   map[string]*tunnelRecord
	holders   map[routeRecord]string // by entry of Routes
}

func newRecords() records {
	return records{
		Bridges: map[string]*bridgeRecord{}, Routes: map[string]*routeRecord{}, Links: map[string]*linkRecord{},
		Endpoints: map[string]*endpointRecord{}, Tunnels: map[string]*tunnelRecord{}, holders: map[routeRecord]string{},
	}
}

// bridgeRecord is the part of a bridge that is ours.
type bridgeRecord struct {
	Device    string                 `json:"device"`
	Space     namespace.ID           `json:"space"`
	Made      bool                   `json:"made,omitempty"` // else it existed before
	Index     int                    `json:"index,omitempty"`
	Filtering bool                   `json:"filtering,omitempty"` // we switched VLAN filtering on
	Ports     map[string]*portRecord `json:"ports,omitempty"`
	Addresses []string               `json:"addresses,omitempty"`
}

// portRecord is the part of a port that is ours. The record of the bridge itself has the bridge's
// name.
type portRecord struct {
	Enslaved bool     `json:"enslaved,omitempty"` // else it belonged to the bridge before
	VLANs    []uint16 `json:"vlans,omitempty"`
	Isolated bool     `json:"isolated,omitempty"`
}

// routeRecord is the entry of the main table that belongs to a route.
type routeRecord struct {
	Space namespace.ID `json:"space"`
	Key   route.Key    `json:"key"`
}

// linkRecord is the part of a device that is ours.
type linkRecord struct {
	Device    string       `json:"device"`
	Space     namespace.ID `json:"space"`
	Index     int          `json:"index"`
	Addresses []string     `json:"addresses,omitempty"`
	MTU       int          `json:"mtu,omitempty"`    // that we set; 0: none
	Before    int          `json:"before,omitempty"` // the MTU that it had then
}

// tunnelRecord is a device that we made for a tunnel.
type tunnelRecord struct {
	Device string       `json:"device"`
	Space  namespace.ID `json:"space"`
}

// line is one change in the journal; a line with only a name deletes the record.
type line struct {
	Boot     string          `json:"boot,omitempty"` // the first line has nothing else
	Kind     string          `json:"kind,omitempty"`
	Name     string          `json:"name,omitempty"`
	Bridge   *bridgeRecord   `json:"bridge,omitempty"`
	Route    *routeRecord    `json:"route,omitempty"`
	Link     *linkRecord     `json:"link,omitempty"`
	Endpoint *endpointRecord `json:"endpoint,omitempty"`
	Tunnel   *tunnelRecord   `json:"tunnel,omitempty"`
}

const (
	kindBridge   = "bridge"
	kindRoute    = "route"
	kindLink     = "link"
	kindEndpoint = "endpoint"
	kindTunnel   = "tunnel"
)

// bootID returns the boot ID, which is different after each boot.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// readJournal returns the records of this boot from the journal in dir.
func readJournal(dir string) (records, error) {
	records := newRecords()
	boot, err := bootID()
	if err != nil {
		return records, err
	}
	content, err := os.ReadFile(filepath.Join(dir, journalName))
	if errors.Is(err, fs.ErrNotExist) {
		return records, nil
	}
	if err != nil {
		return records, err
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 1<<24)
	for first := true; lines.Scan(); first = false {
		var l line
		if json.Unmarshal(lines.Bytes(), &l) != nil {
			continue // truncated
		}
		if first && l.Boot != boot {
			return records, nil
		}
		records.take(l)
	}
	return records, lines.Err()
}

// count returns the number of lines in the shortest journal with these records.
func (r *records) count() int {
	return len(r.Bridges) + len(r.Routes) + len(r.Links) + len(r.Endpoints) + len(r.Tunnels)
}

func (r *records) take(l line) {
	switch {
	case l.Kind == kindBridge && l.Bridge != nil:
		r.Bridges[l.Name] = l.Bridge
	case l.Kind == kindBridge:
		delete(r.Bridges, l.Name)
	case l.Kind == kindLink && l.Link != nil:
		r.Links[l.Name] = l.Link
	case l.Kind == kindLink:
		delete(r.Links, l.Name)
	case l.Kind == kindEndpoint && l.Endpoint != nil:
		r.Endpoints[l.Name] = l.Endpoint
	case l.Kind == kindEndpoint:
		delete(r.Endpoints, l.Name)
	case l.Kind == kindTunnel && l.Tunnel != nil:
		r.Tunnels[l.Name] = l.Tunnel
	case l.Kind == kindTunnel:
		delete(r.Tunnels, l.Name)
	case l.Kind == kindRoute:
		if old := r.Routes[l.Name]; old != nil && r.holders[*old] == l.Name {
			delete(r.holders, *old)
		}
		delete(r.Routes, l.Name)
		if l.Route != nil {
			r.Routes[l.Name] = l.Route
			r.holders[*l.Route] = l.Name
		}
	}
}

// openJournal reads the journal in dir and continues it. It writes only differences.
func openJournal(dir string) (*journal, error) {
	current, err := readJournal(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, journalName), err)
	}
	j := &journal{dir: dir, current: current}
	text, err := j.whole()
	if err != nil {
		return nil, err
	}
	if j.file, err = openSame(j.path(), text); err != nil {
		return nil, err
	}
	if j.file != nil {
		return j, nil
	}
	if j.broken = j.rewrite(); j.broken != nil && !lacksRoom(j.broken) {
		return nil, j.broken
	}
	return j, nil
}

func (j *journal) path() string { return filepath.Join(j.dir, journalName) }

// whole returns the shortest journal with the current records. Equal records result in identical
// text.
func (j *journal) whole() ([]byte, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	err = e.Encode(line{Boot: boot})
	for _, name := range slices.Sorted(maps.Keys(j.current.Bridges)) {
		err = errors.Join(err, e.Encode(line{Kind: kindBridge, Name: name, Bridge: j.current.Bridges[name]}))
	}
	for _, name := range slices.Sorted(maps.Keys(j.current.Routes)) {
		err = errors.Join(err, e.Encode(line{Kind: kindRoute, Name: name, Route: j.current.Routes[name]}))
	}
	for _, name := range slices.Sorted(maps.Keys(j.current.Links)) {
		err = errors.Join(err, e.Encode(line{Kind: kindLink, Name: name, Link: j.current.Links[name]}))
	}
	for _, name := range slices.Sorted(maps.Keys(j.current.Endpoints)) {
		err = errors.Join(err, e.Encode(line{Kind: kindEndpoint, Name: name, Endpoint: j.current.Endpoints[name]}))
	}
	for _, name := range slices.Sorted(maps.Keys(j.current.Tunnels)) {
		err = errors.Join(err, e.Encode(line{Kind: kindTunnel, Name: name, Tunnel: j.current.Tunnels[name]}))
	}
	return b.Bytes(), err
}

// rewrite writes a new journal file, which is synced before it takes the journal's name.
func (j *journal) rewrite() error {
	text, err := j.whole()
	if err != nil {
		return err
	}
	fresh, err := writeSynced(j.path()+".new", text)
	if err == nil {
		err = os.Rename(fresh.Name(), j.path())
	}
	if err != nil {
		if fresh != nil {
			_ = fresh.Close()           // its contents are not needed
			_ = os.Remove(fresh.Name()) // frees the space
		}
		return fmt.Errorf("record our objects: %w", err)
	}
	if j.file != nil {
		_ = j.file.Close() // nothing is left to be written
	}
	j.file, j.lines, j.broken = fresh, 0, nil
	return nil
}

// note records a change, unless nothing differs.
func (j *journal) note(l line) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	same := j.current.contains(l)
	j.current.take(l)
	if j.dir == "" || same && j.broken == nil {
		return nil
	}
	// A journal that is broken, or much longer than its contents, is rewritten.
	if j.broken != nil || j.lines > 1000+4*j.current.count() {
		j.broken = j.rewrite()
	} else {
		j.broken = j.append(l)
	}
	if j.broken != nil && !lacksRoom(j.broken) {
		return j.broken
	}
	return nil
}

func (j *journal) append(l line) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	j.lines++
	if _, err := j.file.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("record our objects: %w", err)
	}
	return nil
}

// problem returns why the journal on disk is broken, or nil if it is intact.
func (j *journal) problem() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken != nil {
		j.broken = j.rewrite()
	}
	return j.broken
}

// contains reports whether the record in l equals the current one. The caller of note may later
// change maps and lists in a record, so only records with plain fields can be compared.
func (r *records) contains(l line) bool {
	switch {
	case l.Kind == kindRoute && l.Route != nil:
		old := r.Routes[l.Name]
		return old != nil && *old == *l.Route
	case l.Kind == kindEndpoint && l.Endpoint != nil:
		old := r.Endpoints[l.Name]
		return old != nil && *old == *l.Endpoint
	case l.Kind == kindTunnel && l.Tunnel != nil:
		old := r.Tunnels[l.Name]
		return old != nil && *old == *l.Tunnel
	}
	return false
}

// recordOf returns the record with a name, or nil if there is no such record.
func recordOf[R any](j *journal, current map[string]*R, name string) *R {
	j.mu.Lock()
	defer j.mu.Unlock()
	return current[name]
}

// namesOf returns the sorted names of all records of a kind.
func namesOf[R any](j *journal, current map[string]*R) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Sorted(maps.Keys(current))
}

// keysOf returns names in the form of a table's Keys.
func keysOf[K, N ~string](names []N) iter.Seq2[K, error] {
	return func(yield func(K, error) bool) {
		for _, name := range names {
			if !yield(K(name), nil) {
				return
			}
		}
	}
}

func (j *journal) bridge(name string) *bridgeRecord { return recordOf(j, j.current.Bridges, name) }
func (j *journal) route(name string) *routeRecord   { return recordOf(j, j.current.Routes, name) }
func (j *journal) link(name string) *linkRecord     { return recordOf(j, j.current.Links, name) }
func (j *journal) endpoint(name string) *endpointRecord {
	return recordOf(j, j.current.Endpoints, name)
}
func (j *journal) tunnel(name string) *tunnelRecord { return recordOf(j, j.current.Tunnels, name) }

// holder returns the name of the route that holds an entry of the main table.
func (j *journal) holder(r routeRecord) (string, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	name, ok := j.current.holders[r]
	return name, ok
}

func (j *journal) close() error {
	if j.file == nil {
		return nil
	}
	return j.file.Close()
}

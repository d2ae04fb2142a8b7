// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// replacement is a map that replaces others: the entries of sources, newest first, are copied to
// target.
type replacement struct {
	name    string
	class   mapClass
	spec    *ebpf.MapSpec
	target  *ebpf.Map
	pin     string // where target is, or will be, pinned
	pinned  bool
	grown   bool // a connection table that had several segments
	sources generations
	since   uint32 // entries added since this tick may be missing; 0: any entries
}

// Replacements are the maps of a run, and the work that remains at its start: replacing maps of an
// earlier run. The order of calls is Copy, PinNew, CatchUp as often as needed while programs are
// replaced, Finish, Close. Connections are copied before all others, because a packet may need them
// at once.
type Replacements struct {
	Maps      map[string]*ebpf.Map // of this run, by name
	KeptSizes []string             // messages: tables that keep a size other than the configured one

	dir  string
	log  *slog.Logger
	list []*replacement
}

// Pending reports whether there is anything to replace.
func (r *Replacements) Pending() bool { return len(r.list) > 0 }

// Apart reports whether earlier programs may add entries that this run's programs do not see.
func (r *Replacements) Apart() bool {
	return slices.ContainsFunc(r.list, func(x *replacement) bool { return len(x.sources) > 0 && follows(x) })
}

// Close closes the maps that were replaced; the maps of this run stay open.
func (r *Replacements) Close() {
	for _, x := range r.list {
		x.sources.close()
	}
}

// Open takes over the maps of specs that are pinned in dir, or creates new ones with the sizes of
// t. It neither pins nor changes anything.
func Open(dir string, specs map[string]*ebpf.MapSpec, t datapath.Tables, log *slog.Logger) (_ *Replacements, err error) {
	r := &Replacements{Maps: make(map[string]*ebpf.Map), dir: dir, log: log}
	defer func() {
		if err != nil {
			CloseMaps(r.Maps)
			r.Close()
		}
	}()
	wanted := Wanted(specs, t)
	for _, name := range largestFirst(wanted) {
		spec := wanted[name]
		x, err := openMap(dir, spec, log)
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", name, noRoom(err, spec, specs, t))
		}
		r.Maps[name] = x.target
		if key, _, want := sizeOf(specs[name], t); key != "" && x.class.connections && x.grown && entriesIn(spec) != want {
			r.KeptSizes = append(r.KeptSizes, fmt.Sprintf("table %s has grown, and keeps parts of %d connections, of which it can have %d; the next start with one part uses the new limits of %s",
				name, kernel.ConnCapacity(entriesIn(spec)*kernel.ConnBlock), kernel.ConnSegments, key))
		} else if key != "" && !x.class.segmented && entriesIn(spec) > want {
			r.KeptSizes = append(r.KeptSizes, fmt.Sprintf("table %s keeps %d entries instead of %d, fewer than it contained at the start: raise %s, or restart the daemon when it contains fewer",
				name, entriesOf(spec, entriesIn(spec)), entriesOf(spec, want), key))
		}
		if !x.pinned || len(x.sources) > 0 {
			r.list = append(r.list, x)
		}
	}
	slices.Sort(r.KeptSizes)
	slices.SortFunc(r.list, func(a, b *replacement) int {
		return cmp.Or(cmp.Compare(a.class.copyOrder, b.class.copyOrder), strings.Compare(a.name, b.name))
	})
	if r.Maps[kernel.MapLlShares] == nil {
		return r, nil // some tests have only some maps
	}
	if err := r.copyFirst(); err != nil {
		return nil, err
	}
	blocks := [2]uint32{entriesIn(wanted[kernel.MapLlCt4]), entriesIn(wanted[kernel.MapLlCt6])}
	return r, noRoom(kernel.PrepareConnTable(r.Maps, blocks), wanted[kernel.MapLlCt6], specs, t)
}

// openMap returns the pinned map of spec in dir, or a new one.
func openMap(dir string, spec *ebpf.MapSpec, log *slog.Logger) (*replacement, error) {
	all, err := openGenerations(dir, spec)
	if err != nil {
		return nil, err
	}
	x := &replacement{name: spec.Name, class: classOf(spec), spec: spec, pin: filepath.Join(dir, spec.Name)}
	if len(all) == 0 {
		x.target, err = ebpf.NewMap(spec)
		return x, err
	}
	x.grown = slices.ContainsFunc(all, func(g generation) bool { return g.grown })
	i, c := all.choose()
	if i < 0 && c.action == datapath.PinsRefuse {
		all.close()
		if c.shortage != nil {
			return nil, fmt.Errorf("map %s: %w", spec.Name, c.shortage)
		}
		return nil, refusedPins(dir, "", c.reason)
	}
	if i < 0 {
		if i, err = keepSize(all, spec, log); err != nil {
			all.close()
			return nil, err
		}
	}
	if i >= 0 {
		x.target, x.pin, x.pinned = all[i].m, all[i].path, true
		all = slices.Delete(all, i, i+1)
	} else {
		x.pin += fmt.Sprint(generationMark, all[0].number+1)
		if x.target, err = ebpf.NewMap(spec); err != nil {
			all.close()
			return nil, err
		}
	}
	x.sources = slices.DeleteFunc(all, func(g generation) bool {
		if g.action != datapath.PinsRefuse {
			return false
		}
		log.Warn("unfinished copy of another version is kept: this version cannot read it", "pin", g.path, "reason", g.reason)
		g.m.Close()
		return true
	})
	return x, nil
}

// keepSize keeps the size of a table that contains more entries than its new size has room for: it
// sets the size in spec, or returns the index of the map that stays.
func keepSize(all generations, spec *ebpf.MapSpec, log *slog.Logger) (int, error) {
	old := all[0].m
	size, err := entriesAt(old, classOf(spec))
	if err != nil || entriesIn(spec) >= size {
		return -1, err
	}
	held, err := CountEntries(old)
	if blocks := all[0].blocks; blocks != nil {
		if held, err = blocks.countConnections(old); err == nil {
			held = kernel.ConnBlocks((held + 1) / 2 * 4 / 3) // connections that begin meanwhile need places too
		}
	}
	if err != nil || held <= entriesIn(spec) {
		return -1, err
	}
	log.Warn("table keeps its size: it holds more entries than the configured size; raise the table sizes in the configuration, or restart after connections have ended",
		"table", spec.Name, "entries", held, "wanted", entriesIn(spec), "size", size)
	setEntries(spec, size)
	if all[0].convert == nil && spec.Compatible(old) == nil {
		return 0, nil
	}
	return -1, nil
}

// Copy fills the new maps, before they are in use.
func (r *Replacements) Copy() error {
	for _, x := range r.list {
		if x.class.copyOrder > 0 {
			if err := r.copy(x); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyFirst copies the map with the keys of the connection table, which programs need to be loaded.
func (r *Replacements) copyFirst() error {
	for _, x := range r.list {
		if x.class.copyOrder == 0 {
			if err := r.copy(x); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Replacements) copy(x *replacement) error {
	if len(x.sources) == 0 || x.class.notCopied {
		return nil
	}
	if err := kernel.AtStep("copy " + x.name); err != nil {
		return err
	}
	begin, fresh := kernel.NowTick(), !x.pinned
	for i, g := range x.sources {
		var n int
		var err error
		switch {
		case x.class.connections:
			n, err = r.addConnections(x, g, 0)
		case fresh && i == 0: // the newest contains everything that the daemon wrote
			n, err = fill(x.target, x.spec, g)
		case follows(x):
			n, err = addMissing(x.target, g, 0)
		}
		if err != nil {
			return fmt.Errorf("copy map %s: %w", x.name, err)
		}
		r.log.Info("table copied", "table", x.name, "entries", n, "from", filepath.Base(g.path), "reason", g.reason)
	}
	x.since = begin
	return nil
}

// PinNew pins the new maps.
func (r *Replacements) PinNew() error {
	for _, x := range r.list {
		if x.pinned {
			continue
		}
		if err := kernel.AtStep("pin " + x.name); err != nil {
			return err
		}
		if err := x.target.Pin(x.pin); err != nil {
			return err
		}
		x.pinned = true
	}
	return nil
}

// CatchUp copies entries that earlier programs have added since the last copy. An entry that cannot
// be converted must not prevent others from being copied.
func (r *Replacements) CatchUp() error {
	for _, x := range r.list {
		if len(x.sources) == 0 || !follows(x) {
			continue
		}
		if err := kernel.AtStep("catch up " + x.name); err != nil {
			return err
		}
		begin := kernel.NowTick()
		for _, g := range x.sources {
			var err error
			if x.class.connections {
				_, err = r.addConnections(x, g, x.since)
			} else {
				_, err = addMissing(x.target, g, x.since)
			}
			if err != nil {
				return fmt.Errorf("copy map %s: %w", x.name, err)
			}
		}
		x.since = begin
	}
	return nil
}

// Finish gives the new maps their names, and removes unused ones.
func (r *Replacements) Finish() error {
	for _, x := range r.list {
		name := filepath.Join(r.dir, x.name)
		for _, g := range x.sources {
			if g.path == name && x.pin != name {
				continue // the new one replaces it atomically
			}
			if err := kernel.Step("remove "+g.path, func() error { return Remove(g.path) }); err != nil {
				return err
			}
		}
		if x.pin == name {
			continue
		}
		if err := kernel.Step("rename "+x.name, func() error { return os.Rename(x.pin, name) }); err != nil {
			return err
		}
	}
	return r.removeUnknown()
}

// removeUnknown removes maps that only other versions have. No program uses them now.
func (r *Replacements) removeUnknown() error {
	pins, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, p := range pins {
		name, _, ok := SplitGeneration(p.Name())
		stale := ok && r.Maps[name] != nil && p.Name() != name
		if p.IsDir() || !strings.HasPrefix(name, "ll_") || name == OriginName || r.Maps[name] != nil && !stale {
			continue
		}
		if err := Remove(filepath.Join(r.dir, p.Name())); err != nil {
			return err
		}
		r.log.Info("removed a table that this version does not use", "table", p.Name())
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package testdaemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// A spare is the maps and programs of a daemon whose test has ended. The maps are emptied, and the
// next daemon with the same sizes of tables starts as after an earlier run without objects: it
// reuses the programs. Otherwise the verifier would take most of the time of many tests. The first
// daemon with these sizes creates its maps.
type spare struct {
	layout string // the folder of the maps in the folder of the pins
	maps   map[string]*ebpf.Map
	kept   []io.Closer // programs, and the arrays through which they call each other
}

// spares are the unused spares by the configuration that determines their sizes.
var spares = struct {
	sync.Mutex
	of map[string][]*spare
}{of: make(map[string][]*spare)}

const (
	sparesMax        = 4       // of each configuration
	sparePrograms    = 12      // more indicate that the daemon has replaced programs
	spareBytesMax    = 1 << 28 // of an array, which is zeroed
	arrayOfSlowPaths = "ll_slow"
)

var mapName = regexp.MustCompile(`^ll_[a-z0-9_]+$`)

// sizesOf returns the lines of a configuration that determine the sizes of the maps.
func sizesOf(lines []string) string {
	var sizes []string
	for _, line := range lines {
		if strings.HasPrefix(line, "tables:") || strings.HasPrefix(line, "datapath:") {
			sizes = append(sizes, line)
		}
	}
	return strings.Join(sizes, "\n")
}

// Release closes the test's handles of an earlier daemon's programs. Then only the daemon and its
// pins keep the programs that it uses.
func (d *Daemon) Release() {
	closeAll(d.kept)
	d.kept = nil
}

// borrow pins the emptied maps of a spare if the daemon has no pins.
func (d *Daemon) borrow() {
	sizes := d.programs.Daemon + "\n" + d.sizes
	if d.launched == "" {
		d.launched = sizes
	}
	if d.launched != sizes {
		d.fresh = true // its maps may have the sizes of either configuration
	}
	if _, err := os.Stat(d.PinDir); d.fresh || !errors.Is(err, fs.ErrNotExist) {
		return
	}
	spares.Lock()
	var s *spare
	if all := spares.of[sizes]; len(all) > 0 {
		s, spares.of[sizes] = all[0], all[1:]
	}
	spares.Unlock()
	if s == nil {
		return
	}
	defer s.close() // the pins hold the maps, and the programs must not be unloaded before the start
	if err := s.pin(d.PinDir); err != nil {
		d.t.Fatalf("maps of an earlier daemon: %v", err)
	}
	d.kept = append(d.kept, s.kept...)
	s.kept = nil
}

// pin empties the maps and pins them below dir.
func (s *spare) pin(dir string) error {
	dir = filepath.Join(dir, s.layout)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, m := range s.maps {
		if err := empty(m); err != nil {
			return fmt.Errorf("empty %s: %w", name, err)
		}
		if err := m.Pin(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func (s *spare) close() {
	for _, m := range s.maps {
		m.Close() // only closes a file descriptor
	}
	closeAll(s.kept)
}

func closeAll(all []io.Closer) {
	for _, x := range all {
		x.Close() // only closes a file descriptor
	}
}

// leave makes a spare of the maps of the daemon, which has ended, if its maps are as a start would
// create them. A daemon of a failed test leaves none.
func (d *Daemon) leave() {
	defer d.Release()
	sizes := d.programs.Daemon + "\n" + d.sizes
	if d.fresh || d.launched != sizes || d.owner.Failed() {
		return
	}
	spares.Lock()
	defer spares.Unlock()
	if len(spares.of[sizes]) >= sparesMax {
		return
	}
	s, err := newSpare(d.PinDir)
	if err != nil {
		d.owner.Logf("the maps of the daemon are not used again: %v", err)
		return
	}
	spares.of[sizes] = append(spares.of[sizes], s)
}

// newSpare opens the maps that are pinned below dir, and their programs, which it detaches from all
// devices.
func newSpare(dir string) (s *spare, err error) {
	s = &spare{maps: make(map[string]*ebpf.Map)}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	layouts, err := filepath.Glob(filepath.Join(dir, "layout-*"))
	if err != nil {
		return s, err
	}
	layouts = slices.DeleteFunc(layouts, func(path string) bool { return strings.Contains(path, "+") })
	if len(layouts) != 1 {
		return s, fmt.Errorf("%d layouts", len(layouts))
	}
	s.layout = filepath.Base(layouts[0])
	if err := detach(layouts[0]); err != nil {
		return s, err
	}
	if err := s.open(layouts[0]); err != nil {
		return s, err
	}
	return s, s.keep()
}

// detach detaches all programs that links below dir attach.
func detach(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Dir(path) == dir {
			return err
		}
		if strings.HasPrefix(entry.Name(), "tc_") {
			return errors.New("a filter is attached")
		}
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			return nil // a map or a program
		}
		defer l.Close()
		return l.Detach()
	})
}

// open opens the maps that are pinned in a folder.
func (s *spare) open(dir string) error {
	pins, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range pins {
		if entry.IsDir() {
			continue
		}
		if !mapName.MatchString(entry.Name()) {
			return fmt.Errorf("the pin %s", entry.Name())
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, entry.Name()), nil)
		if err != nil {
			return err
		}
		s.maps[entry.Name()] = m
		if m.Type() == ebpf.Array && uint64(m.MaxEntries())*uint64(m.ValueSize()) > spareBytesMax {
			return fmt.Errorf("%s is large", entry.Name())
		}
	}
	return nil
}

// keep opens the programs that use the maps.
func (s *spare) keep() error {
	own := make(map[ebpf.MapID]bool)
	for _, m := range s.maps {
		info, err := m.Info()
		if err != nil {
			return err
		}
		if id, ok := info.ID(); ok {
			own[id] = true
		}
	}
	programs := 0
	for id := ebpf.ProgramID(0); ; {
		var err error
		if id, err = ebpf.ProgramGetNextID(id); err != nil {
			break // no more programs
		}
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // unloaded in the meantime
		}
		info, err := p.Info()
		if err != nil {
			p.Close()
			return err
		}
		ids, _ := info.MapIDs()
		if !slices.ContainsFunc(ids, func(id ebpf.MapID) bool { return own[id] }) {
			p.Close()
			continue
		}
		s.kept = append(s.kept, p)
		if programs++; programs > sparePrograms {
			return errors.New("the daemon has replaced programs")
		}
		if err := s.keepSlow(ids); err != nil {
			return err
		}
	}
	return nil
}

// keepSlow opens the array from which a program with these maps calls its slow path: the kernel
// empties the array when its last file descriptor is closed.
func (s *spare) keepSlow(ids []ebpf.MapID) error {
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return err
		}
		if info, err := m.Info(); err != nil || info.Name != arrayOfSlowPaths {
			m.Close()
			continue
		}
		s.kept = append(s.kept, m)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

// Package keeper restores the pins of maps and programs that another program deleted, and detects
// the programs that another program detached. It attaches nothing.
package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// Keeper restores pins that another program deleted, and detects links that another program
// detached: the kernel reports neither. Without pins, maps and programs end with the daemon. A nil
// Keeper has not started: Wake, Noted, Forget, Repaired and Problems do nothing.
type Keeper struct {
	options Options
	repairs atomic.Uint64
	woken   chan struct{} // signalled by Wake
	done    chan struct{}
	ended   sync.WaitGroup

	mu      sync.Mutex
	inodes  map[string]uint64   // of the pins of maps, by name
	folders map[string]folderID // folders of pins that were complete
	notes   map[string][]string // pins in ports' folders that record what we changed
	err     error               // of the last restoration
}

// Options are what a [Keeper] uses. The functions must be safe for concurrent use.
type Options struct {
	Dir    string               // the folder of pins
	PinDir string               // as configured, for messages
	Maps   map[string]*ebpf.Map // by the names of their pins
	Origin pin.Origin
	Log    *slog.Logger
	Ports  Ports

	// PinNote creates a note in the folder of a port in a namespace.
	PinNote func(netns uint8, path string) error
	// Severed reports whether another program detached a program of a mirror. Repin restores the pins
	// of these programs, after prepare if one is missing, and returns the number of restored pins.
	Severed func() bool
	Repin   func(prepare func() error) (restored int, err error)
	// IsIdle reports whether no programs are attached.
	IsIdle func() bool
	// EachRound is called in each round.
	EachRound func()
	// Signal is called while programs are detached, so that they are attached again.
	Signal func()
}

// Ports are the devices with our programs.
type Ports interface {
	// Each calls f for each port that has programs on a device, while no port changes.
	Each(f func(Port))
	// Locked calls f for the ports with these names that have programs, while no other operation on
	// ports runs.
	Locked(names []datapath.PortName, f func(Port))
	// Describe returns the name of a port for messages.
	Describe(name datapath.PortName) string
}

// Port is a port with its programs.
type Port struct {
	Name   datapath.PortName
	Netns  uint8
	Folder string // of its pins
	Hooks  []hook.Attachment
}

// folderID changes when a pin is created in a folder or deleted from it.
type folderID struct {
	inode    uint64
	modified time.Time
}

// New returns a keeper. Everything must already be pinned.
func New(o Options) *Keeper {
	k := &Keeper{
		options: o, woken: make(chan struct{}, 1), done: make(chan struct{}),
		inodes: map[string]uint64{}, folders: map[string]folderID{}, notes: map[string][]string{},
	}
	for name := range o.Maps {
		k.inodes[name], _ = inodeOf(filepath.Join(o.Dir, name))
	}
	k.inodes[pin.OriginName], _ = inodeOf(filepath.Join(o.Dir, pin.OriginName))
	return k
}

// KeepPins restores missing pins, and logs an error only when it first occurs.
func (k *Keeper) KeepPins() {
	n, err := k.keepMaps()
	restored, portsErr := k.keepPorts()
	n += restored
	restored, mirrorsErr := k.options.Repin(k.prepareDir)
	n += restored
	err = errors.Join(err, portsErr, mirrorsErr)
	k.mu.Lock()
	before := k.err
	k.err = err
	k.mu.Unlock()
	if n > 0 {
		k.repairs.Add(uint64(n))
		k.options.Log.Warn("pins were deleted by another program and are restored", slog.Int("pins", n))
	}
	if err != nil && before == nil {
		k.options.Log.Warn("pins that another program deleted cannot be restored", slog.Any("error", err))
	}
}

// keepMaps restores the pins of maps, and returns the number of restored pins.
func (k *Keeper) keepMaps() (restored int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unchanged(k.options.Dir) {
		return 0, nil
	}
	missing := k.missingMaps()
	if len(missing) > 0 {
		if err := k.prepareDir(); err != nil {
			return 0, err
		}
	}
	for _, name := range missing {
		if e := k.restore(name); e != nil {
			err = errors.Join(err, fmt.Errorf("pin map %s: %w", name, e))
			continue
		}
		restored++
	}
	if err == nil {
		k.complete(k.options.Dir)
	}
	return restored, err
}

// missingMaps returns the maps whose pin is missing or refers to another object. k.mu is held.
func (k *Keeper) missingMaps() (missing []string) {
	for _, name := range slices.Sorted(maps.Keys(k.inodes)) {
		inode, err := inodeOf(filepath.Join(k.options.Dir, name))
		if err == nil && (inode != k.inodes[name] || inode == 0) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			missing = append(missing, name)
		}
	}
	return missing
}

// restore pins a map from the daemon's own descriptor. k.mu is held.
func (k *Keeper) restore(name string) error {
	path := filepath.Join(k.options.Dir, name)
	if err := os.RemoveAll(path); err != nil { // a pin of another object, if any
		return err
	}
	var err error
	if name == pin.OriginName {
		err = pin.WriteOrigin(k.options.Dir, k.options.Origin)
	} else if m, e := k.options.Maps[name].Clone(); e != nil {
		err = e
	} else {
		err = errors.Join(m.Pin(path), m.Close())
	}
	if err != nil {
		return err
	}
	k.inodes[name], err = inodeOf(path)
	return err
}

// prepareDir creates the folder of pins again. It does not mount a file system: a mount that only
// this process sees, as in a sandbox, would end with the process.
func (k *Keeper) prepareDir() error {
	dir := k.options.Dir
	for dir != "/" && dir != "." {
		if _, err := os.Lstat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	if !pin.OnBPFFS(dir) {
		return fmt.Errorf("no BPF file system is mounted for pinDir %s: mount it again (mount -t bpf bpf /sys/fs/bpf) before the daemon ends", k.options.PinDir)
	}
	return os.MkdirAll(k.options.Dir, 0o700)
}

// keepPorts restores the pins of hooks, and returns the number of restored pins.
func (k *Keeper) keepPorts() (restored int, err error) {
	var incomplete []datapath.PortName
	k.options.Ports.Each(func(p Port) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.unchanged(p.Folder) {
			incomplete = append(incomplete, p.Name)
		}
	})
	if len(incomplete) == 0 {
		return 0, nil
	}
	k.options.Ports.Locked(incomplete, func(p Port) {
		k.mu.Lock()
		defer k.mu.Unlock()
		n, e := k.pinHooks(p)
		restored += n
		if e != nil {
			err = errors.Join(err, fmt.Errorf("pin the programs of %s: %w", k.options.Ports.Describe(p.Name), e))
			return
		}
		k.complete(p.Folder)
	})
	return restored, err
}

// Repaired counts repairs that other code made.
func (k *Keeper) Repaired(n int) {
	if k != nil {
		k.repairs.Add(uint64(n))
	}
}

// Mend restores the missing pins in a port's folder, and counts them.
func (k *Keeper) Mend(p Port) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	n, err := k.pinHooks(p)
	k.repairs.Add(uint64(n))
	return err
}

// pinHooks restores the missing pins in a port's folder, and returns the number of restored pins.
// k.mu is held.
func (k *Keeper) pinHooks(p Port) (restored int, err error) {
	if err := k.prepareDir(); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(p.Folder, 0o700); err != nil {
		return 0, err
	}
	for _, h := range p.Hooks {
		done, e := h.Repin()
		if done {
			restored++
		}
		err = errors.Join(err, e)
	}
	for _, path := range k.lacking(p.Folder) {
		if e := k.options.PinNote(p.Netns, path); e != nil {
			err = errors.Join(err, e)
			continue
		}
		restored++
	}
	return restored, err
}

// lacking returns the missing pins in a port's folder, except pins of hooks. k.mu is held.
func (k *Keeper) lacking(folder string) (paths []string) {
	for _, note := range k.notes[folder] {
		path := filepath.Join(folder, note)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			paths = append(paths, path)
		}
	}
	return paths
}

// Noted makes the keeper preserve the pins in a port's folder that record what to undo later.
func (k *Keeper) Noted(folder string) {
	if k == nil {
		return // not started yet
	}
	var found []string
	for _, name := range hook.Notes() {
		if _, err := os.Lstat(filepath.Join(folder, name)); err == nil {
			found = append(found, name)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range found {
		if !slices.Contains(k.notes[folder], name) {
			k.notes[folder] = append(k.notes[folder], name)
		}
	}
}

// Forget makes the keeper ignore the folder of a port that is about to be removed.
func (k *Keeper) Forget(folder string) {
	if k == nil {
		return // not started yet
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.folders, folder)
	delete(k.notes, folder)
}

// unchanged reports whether a folder of pins is unchanged since it was complete. k.mu is held.
func (k *Keeper) unchanged(folder string) bool {
	id, err := folderOf(folder)
	return err == nil && k.folders[folder] == id
}

// complete records that a folder has all its pins. k.mu is held. File times are only as precise as
// the kernel's tick, so a folder that has just changed is compared again.
func (k *Keeper) complete(folder string) {
	id, err := folderOf(folder)
	if err != nil || time.Since(id.modified) < time.Second {
		delete(k.folders, folder)
		return
	}
	k.folders[folder] = id
}

func folderOf(path string) (id folderID, err error) {
	var st unix.Stat_t
	if err = unix.Lstat(path, &st); err != nil {
		return id, err
	}
	return folderID{st.Ino, time.Unix(st.Mtim.Unix())}, nil
}

func inodeOf(path string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	return st.Ino, err
}

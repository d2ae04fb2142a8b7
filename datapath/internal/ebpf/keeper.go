// SPDX-License-Identifier: Apache-2.0

package ebpf

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

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// keeperInterval is the interval at which pins and links are compared with their wanted state.
const keeperInterval = 400 * time.Millisecond

// keeper restores pins that another program deleted, and detects links that another program
// detached: the kernel reports neither. Without pins, maps and programs end with the daemon.
type keeper struct {
	d       *DataPlane
	origin  pin.Origin
	repairs atomic.Uint64
	done    chan struct{}
	ended   sync.WaitGroup

	mu      sync.Mutex
	inodes  map[string]uint64   // of the pins of maps, by name
	folders map[string]folderID // folders of pins that were complete
	notes   map[string][]string // pins in ports' folders that record what we changed
	err     error               // of the last restoration
}

// folderID changes when a pin is created in a folder or deleted from it.
type folderID struct {
	inode    uint64
	modified time.Time
}

// newKeeper starts the keeper. Everything must already be pinned.
func newKeeper(d *DataPlane, o pin.Origin) *keeper {
	k := &keeper{
		d: d, origin: o, done: make(chan struct{}),
		inodes: map[string]uint64{}, folders: map[string]folderID{}, notes: map[string][]string{},
	}
	for name := range d.maps {
		k.inodes[name], _ = inodeOf(filepath.Join(d.dir, name))
	}
	k.inodes[pin.OriginName], _ = inodeOf(filepath.Join(d.dir, pin.OriginName))
	for name, t := range d.ports.byName {
		k.noted(d.ports.folder(t.namespace, name))
	}
	k.ended.Go(k.run)
	return k
}

func (k *keeper) close() {
	close(k.done)
	k.ended.Wait()
}

func (k *keeper) run() {
	ticker := time.NewTicker(keeperInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-k.done:
			return
		}
		if k.detached() || k.d.mirrors.Severed() {
			k.d.signal()
		}
		// Maintain reports the errors of both.
		_ = errors.Join(k.d.renewSwitch(), k.d.followLoopback())
		k.keepPins()
	}
}

// keepPins restores missing pins, and logs an error only when it first occurs.
func (k *keeper) keepPins() {
	n, err := k.keepMaps()
	restored, portsErr := k.keepPorts()
	n += restored
	restored, mirrorsErr := k.d.mirrors.Repin(k.prepareDir)
	n += restored
	err = errors.Join(err, portsErr, mirrorsErr)
	k.mu.Lock()
	before := k.err
	k.err = err
	k.mu.Unlock()
	if n > 0 {
		k.repairs.Add(uint64(n))
		k.d.log.Warn("pins were deleted by another program and are restored", slog.Int("pins", n))
	}
	if err != nil && before == nil {
		k.d.log.Warn("pins that another program deleted cannot be restored", slog.Any("error", err))
	}
}

// keepMaps restores the pins of maps, and returns the number of restored pins.
func (k *keeper) keepMaps() (restored int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unchanged(k.d.dir) {
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
		k.complete(k.d.dir)
	}
	return restored, err
}

// missingMaps returns the maps whose pin is missing or refers to another object. k.mu is held.
func (k *keeper) missingMaps() (missing []string) {
	for _, name := range slices.Sorted(maps.Keys(k.inodes)) {
		inode, err := inodeOf(filepath.Join(k.d.dir, name))
		if err == nil && (inode != k.inodes[name] || inode == 0) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			missing = append(missing, name)
		}
	}
	return missing
}

// restore pins a map from the daemon's own descriptor. k.mu is held.
func (k *keeper) restore(name string) error {
	path := filepath.Join(k.d.dir, name)
	if err := os.RemoveAll(path); err != nil { // a pin of another object, if any
		return err
	}
	var err error
	if name == pin.OriginName {
		err = pin.WriteOrigin(k.d.dir, k.origin)
	} else if m, e := k.d.maps[name].Clone(); e != nil {
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
func (k *keeper) prepareDir() error {
	dir := k.d.dir
	for dir != "/" && dir != "." {
		if _, err := os.Lstat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	if !pin.OnBPFFS(dir) {
		return fmt.Errorf("no BPF file system is mounted for pinDir %s: mount it again (mount -t bpf bpf /sys/fs/bpf) before the daemon ends", k.d.config.PinDir)
	}
	return os.MkdirAll(k.d.dir, 0o700)
}

// keepPorts restores the pins of hooks, and returns the number of restored pins.
func (k *keeper) keepPorts() (restored int, err error) {
	p := k.d.ports
	var incomplete []datapath.PortName
	p.mu.RLock()
	k.mu.Lock()
	for name, t := range p.byName {
		if len(t.hooks) == 0 || t.ifindex == 0 {
			continue
		}
		if !k.unchanged(p.folder(t.namespace, name)) {
			incomplete = append(incomplete, name)
		}
	}
	k.mu.Unlock()
	p.mu.RUnlock()
	if len(incomplete) == 0 {
		return 0, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range incomplete {
		t := p.byName[name]
		if t == nil || len(t.hooks) == 0 {
			continue
		}
		folder := p.folder(t.namespace, name)
		n, e := k.pinHooks(t, folder)
		restored += n
		if e != nil {
			err = errors.Join(err, fmt.Errorf("pin the programs of %s: %w", describe(name), e))
			continue
		}
		k.complete(folder)
	}
	return restored, err
}

// repaired counts repairs that other code made.
func (k *keeper) repaired(n int) {
	if k != nil {
		k.repairs.Add(uint64(n))
	}
}

// mend restores the missing pins in a port's folder, and counts them.
func (k *keeper) mend(t *port, folder string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	n, err := k.pinHooks(t, folder)
	k.repairs.Add(uint64(n))
	return err
}

// mend restores pins that another program removed, so that no hook has to be detached. p.mu is
// held.
func (p *ports) mend(t *port, folder string) error {
	if k := p.d.keeper; k != nil {
		return k.mend(t, folder)
	}
	err := os.MkdirAll(folder, 0o700)
	for _, h := range t.hooks {
		_, e := h.Repin()
		err = errors.Join(err, e)
	}
	return err
}

// pinHooks restores the missing pins in a port's folder, and returns the number of restored pins.
// k.mu is held.
func (k *keeper) pinHooks(t *port, folder string) (restored int, err error) {
	if err := k.prepareDir(); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return 0, err
	}
	for _, h := range t.hooks {
		done, e := h.Repin()
		if done {
			restored++
		}
		err = errors.Join(err, e)
	}
	z, e := k.d.namespace(t.namespace)
	if e != nil {
		return restored, errors.Join(err, e)
	}
	for _, path := range k.lacking(folder) {
		if e := z.PinNote(path); e != nil {
			err = errors.Join(err, e)
			continue
		}
		restored++
	}
	return restored, err
}

// lacking returns the missing pins in a port's folder, except pins of hooks. k.mu is held.
func (k *keeper) lacking(folder string) (paths []string) {
	for _, note := range k.notes[folder] {
		path := filepath.Join(folder, note)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			paths = append(paths, path)
		}
	}
	return paths
}

// noted makes the keeper preserve the pins in a port's folder that record what to undo later.
func (k *keeper) noted(folder string) {
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

// forget makes the keeper ignore the folder of a port that is about to be removed.
func (k *keeper) forget(folder string) {
	if k == nil {
		return // not started yet
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.folders, folder)
	delete(k.notes, folder)
}

// unchanged reports whether a folder of pins is unchanged since it was complete. k.mu is held.
func (k *keeper) unchanged(folder string) bool {
	id, err := folderOf(folder)
	return err == nil && k.folders[folder] == id
}

// complete records that a folder has all its pins. k.mu is held. File times are only as precise as
// the kernel's tick, so a folder that has just changed is compared again.
func (k *keeper) complete(folder string) {
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

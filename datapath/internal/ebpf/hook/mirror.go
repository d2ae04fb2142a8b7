// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// The indexes of the programs of mirrors in [MirrorSides].
const (
	MirrorIn   = iota // ingress hook of a mirrored port, before its other programs
	MirrorOut         // egress hook of a mirrored port, after its other programs
	MirrorSend        // egress hook of a target, before its other programs

	mirrorSideCount
)

// The priorities of the filters of mirrors: outside the range that the programs of a port and their
// shadow programs use.
const (
	mirrorSendPriority = filterPriority - 3
	mirrorInPriority   = filterPriority - 2
	mirrorOutPriority  = filterPriority + 1
	namesPriority      = filterPriority + 2 // see NamesSide
)

// mirrorPrograms are the names of the programs, by the indexes above.
var mirrorPrograms = [mirrorSideCount]string{kernel.MirrorsProgLlMirrorIn, kernel.MirrorsProgLlMirrorOut, kernel.MirrorsProgLlMirrorSend}

// MirrorSides returns the hooks to which programs of mirrors are attached, by the indexes above.
func MirrorSides() [mirrorSideCount]Side {
	return [mirrorSideCount]Side{
		{"mirror_in", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, mirrorInPriority, link.Head(), func(p *Pair) *ebpf.Program { return p.mirrors[MirrorIn] }, nil, false},
		{"mirror_out", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, mirrorOutPriority, link.Tail(), func(p *Pair) *ebpf.Program { return p.mirrors[MirrorOut] }, nil, false},
		{"mirror_send", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, mirrorSendPriority, link.Head(), func(p *Pair) *ebpf.Program { return p.mirrors[MirrorSend] }, nil, false},
	}
}

// mirrorProgram returns a program of mirrors, without the others in its object.
func mirrorProgram(name string) Program {
	return Program{name, func() (*ebpf.CollectionSpec, error) {
		s, err := kernel.LoadMirrors()
		if err != nil {
			return nil, err
		}
		for _, other := range mirrorPrograms {
			if other != name {
				delete(s.Programs, other)
			}
		}
		return s, nil
	}}
}

// LoadMirrors loads the programs of mirrors, unless already done. [Netns.Load] must have been
// called.
func (z *Netns) LoadMirrors() error {
	for i, name := range mirrorPrograms {
		if z.mirrors[i] != nil {
			continue
		}
		p, _, err := loadProgram(copyOf{mirrorProgram(name), z.ID, false}, z.maps)
		if err != nil {
			return refusedProgram(name, z.ID, err)
		}
		z.mirrors[i] = p
	}
	return nil
}

// MirrorFolder returns the folder for the pins of the programs of mirrors on a device; dir is the
// folder of a layout.
func MirrorFolder(dir string, netns uint8, index int) string {
	return filepath.Join(dir, "mirrors", strconv.Itoa(int(netns)), strconv.Itoa(index))
}

// AttachMirror attaches a program of mirrors to a device and pins it; side is an index of
// [MirrorSides], the other parameters are as for [Netns.Attach]. [Netns.LoadMirrors] must have been
// called.
func (z *Netns) AttachMirror(side int, how, folder string, index int) (Attachment, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	h, err := attachHook(z, MirrorSides()[side], how, folder, index)
	if err != nil {
		_ = os.Remove(folder) // fails if it contains other pins
	}
	return h, err
}

// OpenMirrors opens the programs of mirrors that an earlier run pinned below dir, the folder of a
// layout, by the ifindex of their device. A program whose device is gone is detached.
func (z *Netns) OpenMirrors(dir string) (map[int][mirrorSideCount]Attachment, error) {
	all := map[int][mirrorSideCount]Attachment{}
	folders, err := mirrorFolders(dir, z.ID)
	for index, folder := range folders {
		pins, err := os.ReadDir(folder)
		if err != nil {
			return nil, err
		}
		var found [mirrorSideCount]Attachment
		for i, s := range MirrorSides() {
			hooks, at, err := z.openSides([]Side{s}, folder, pins)
			if err != nil {
				return nil, fmt.Errorf("take over %s: %w", folder, err)
			}
			for _, h := range hooks {
				if at == index {
					found[i] = h
				} else if err := h.Detach(); err != nil {
					return nil, fmt.Errorf("remove %s in %s: %w", h.Name(), folder, err)
				}
			}
		}
		if found == [mirrorSideCount]Attachment{} {
			if err := os.RemoveAll(folder); err != nil {
				return nil, err
			}
			continue
		}
		all[index] = found
	}
	return all, err
}

// HasMirrors reports whether an earlier run attached programs of mirrors in a namespace.
func HasMirrors(dir string, netns uint8) bool {
	folders, err := mirrorFolders(dir, netns)
	return err != nil || len(folders) > 0
}

// RemoveMirrors removes the pins of the programs of mirrors in a namespace that no longer exists. A
// device of a new namespace may get the ifindex, and so the folder, of a deleted one.
func RemoveMirrors(dir string, netns uint8) error {
	return os.RemoveAll(filepath.Dir(MirrorFolder(dir, netns, 0)))
}

// mirrorFolders returns the folders of pins by ifindex.
func mirrorFolders(dir string, netns uint8) (map[int]string, error) {
	parent := filepath.Dir(MirrorFolder(dir, netns, 0))
	entries, err := os.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	folders := map[int]string{}
	for _, e := range entries {
		if index, err := strconv.Atoi(e.Name()); err == nil && e.IsDir() {
			folders[index] = filepath.Join(parent, e.Name())
		}
	}
	return folders, err
}

// InOrder reports whether a program of mirrors is before, or after, the program of the port on the
// same hook. Links are before all filters, and the filters are in order by their priorities.
func InOrder(a Attachment) bool {
	switch h := a.(type) {
	case *tcx:
		own, port := h.namespace.linked(h.side, h.index, h.Program())
		if port >= 0 && own >= 0 {
			return (own > port) == h.side.isMirrorOut()
		}
		return !h.side.isMirrorOut() || port >= 0 || !h.namespace.hasPortFilter(h.side, h.index)
	case *Filter:
		_, port := h.namespace.linked(h.side, h.index, 0)
		return port < 0 || h.side.isMirrorOut()
	}
	return true
}

// isMirrorOut reports whether the program of this side runs after the program of the port.
func (s Side) isMirrorOut() bool { return s.Name == MirrorSides()[MirrorOut].Name }

// linked returns the positions of a program, and of the program of the port, among the programs that
// are attached by links to the hook of a side; negative: not attached so.
func (z *Netns) linked(s Side, index int, program ebpf.ProgramID) (own, port int) {
	x := z.Egress
	if s.AttachType == ebpf.AttachTCXIngress {
		x = z.Ingress
	}
	info, err := x.Info()
	if err != nil {
		return -1, -1
	}
	id, _ := info.ID()
	var ids []ebpf.ProgramID
	_ = z.Do(func() error { // after an error, none is known: older kernels have no such links
		r, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: s.AttachType})
		if err != nil {
			return err
		}
		for _, p := range r.Programs {
			ids = append(ids, p.ID)
		}
		return nil
	})
	return slices.Index(ids, program), slices.Index(ids, id)
}

// hasPortFilter reports whether the program of the port on the hook of a side is a filter.
func (z *Netns) hasPortFilter(s Side, index int) bool {
	for _, of := range Sides() {
		if of.AttachType == s.AttachType {
			b, err := NewFilter(z, of, index, "").mine()
			return err == nil && b != nil
		}
	}
	return false
}

// leaveQdisc passes the note that we created the qdisc on, if only filters of the other kind remain:
// those of mirrors, or those of the port.
func (f *Filter) leaveQdisc() error {
	dir := filepath.Dir(filepath.Dir(filepath.Dir(f.folder))) // of the layout
	heir := MirrorFolder(dir, f.namespace.ID, f.index)
	if f.folder == heir {
		ports, err := filepath.Glob(filepath.Join(dir, "ports", strconv.Itoa(int(f.namespace.ID)), "*", "tc_*_"+strconv.Itoa(f.index)))
		if err != nil || len(ports) == 0 {
			return err
		}
		heir = filepath.Dir(ports[0])
	}
	own, err := f.hasFilters(func(s Side) bool {
		return strings.HasPrefix(s.Name, "mirror_") == strings.HasPrefix(f.side.Name, "mirror_")
	})
	if err != nil || own {
		return err
	}
	if _, err := os.Stat(heir); errors.Is(err, fs.ErrNotExist) {
		return nil // the filters that remain are not ours
	}
	return os.Rename(f.qdiscPin(), filepath.Join(heir, qdiscNote))
}

// hasFilters reports whether the device has a filter of ours on one of the selected sides.
func (f *Filter) hasFilters(selected func(Side) bool) (bool, error) {
	ports, mirrors := Sides(), MirrorSides()
	for _, s := range append(ports[:], mirrors[:]...) {
		if !selected(s) {
			continue
		}
		filters, err := f.list(s.Parent)
		if err != nil {
			return false, err
		}
		for _, x := range filters {
			if b, ok := x.(*netlink.BpfFilter); ok && s.Owns(b) {
				return true, nil
			}
		}
	}
	return false, nil
}

// detachMirrors detaches the programs of mirrors that are pinned below dir, the folder of a layout.
// z is nil if the namespace no longer exists.
func detachMirrors(z *Netns, dir string, netns uint8) error {
	folders, err := mirrorFolders(dir, netns)
	for _, folder := range folders {
		pins, e := os.ReadDir(folder)
		err = errors.Join(err, e)
		for _, s := range MirrorSides() {
			err = errors.Join(err, detachSide(z, s, folder, pins))
		}
		if err != nil {
			return err
		}
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// maxKernelName is the length to which the kernel truncates the name of a map.
const maxKernelName = 15

// repinnable sets l.Repin if the daemon or attached programs still hold maps whose pins may be
// missing.
func (x *inspector) repinnable(l *datapath.InspectedLayout) {
	held := mapsOf(x.PID)
	for _, p := range x.out.Ports {
		for _, h := range p.Hooks {
			if p.Current && h.Attached && h.Program != 0 {
				held = append(held, mapsOfProgram(ebpf.ProgramID(h.Program))...)
			}
		}
	}
	if len(held) == 0 {
		return
	}
	dir, missing := l.Path, slices.Clone(l.Missing)
	l.Repin = func() error { return repin(dir, missing, held) }
}

// mapsOfProgram returns the maps that a program uses.
func mapsOfProgram(id ebpf.ProgramID) []ebpf.MapID {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil
	}
	defer p.Close() // only closes a file descriptor
	info, err := p.Info()
	if err != nil {
		return nil
	}
	ids, _ := info.MapIDs() // older kernels return none
	return ids
}

// mapsOf returns the maps that a process has open.
func mapsOf(pid int) (ids []ebpf.MapID) {
	if pid == 0 {
		return nil
	}
	infos, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid)) // the pattern is valid
	for _, path := range infos {
		if id, ok := mapOfDescriptor(path); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// repin pins the missing maps that are among held.
func repin(dir string, missing []string, held []ebpf.MapID) error {
	for _, id := range held {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(missing, func(name string) bool { return name[:min(len(name), maxKernelName)] == kernelName(m) })
		if i >= 0 {
			err = m.Pin(filepath.Join(dir, missing[i]))
			missing = slices.Delete(missing, i, i+1)
		}
		if err = errors.Join(err, m.Close()); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s no longer exist in any process", strings.Join(missing, ", "))
	}
	return nil
}

func kernelName(m *ebpf.Map) string {
	info, err := m.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// mirrorPins reads the pins of the programs of mirrors.
func (x *inspector) mirrorPins(id uint8, dir string) {
	paths, err := filepath.Glob(filepath.Join(filepath.Dir(hook.MirrorFolder(dir, id, 0)), "*", "*"))
	if err != nil {
		x.unseen(dir, err)
	}
	for _, path := range paths {
		for _, s := range hook.MirrorSides() {
			if filepath.Base(path) == s.Name {
				if _, err := x.pinnedLink(path, &datapath.InspectedHook{}); err != nil {
					x.unseen(path, err)
				}
			} else if rest, tc := s.CutFilterPin(filepath.Base(path)); tc {
				if index, err := strconv.Atoi(rest); err == nil {
					x.mirrors[filterKey{id, index, s.Parent}] = true
				}
			}
		}
	}
}

// isMirror reports whether a filter on a device is one of a mirror.
func (x *inspector) isMirror(id uint8, b *netlink.BpfFilter) bool {
	for _, s := range hook.MirrorSides() {
		if s.Owns(b) && x.mirrors[filterKey{id, b.LinkIndex, s.Parent}] {
			return true
		}
	}
	return false
}

// siblings searches for pin folders of other instances beside PinDir.
func (x *inspector) siblings() {
	base := filepath.Dir(x.PinDir)
	if !pin.OnBPFFS(base) {
		return
	}
	paths, err := filepath.Glob(filepath.Join(base, "loxilight*"))
	if err != nil {
		x.unseen(base, err)
		return
	}
	for _, path := range paths {
		if path == x.PinDir {
			continue
		}
		s := datapath.InspectedSibling{Path: path}
		s.Attached = attachedBelow(path)
		if s.Attached == 0 {
			s.Remove = func() error {
				if n := attachedBelow(path); n > 0 {
					return fmt.Errorf("it now has %d attached programs", n)
				}
				return hook.Detach(datapath.Config{PinDir: path, SwitchNamespace: "host"}, slog.New(slog.DiscardHandler))
			}
		}
		x.out.Siblings = append(x.out.Siblings, s)
	}
}

// attachedBelow counts the programs that are attached by pins below dir. Every pin of a filter is
// counted.
func attachedBelow(dir string) (n int) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // best effort
		if err != nil || d.IsDir() {
			return nil
		}
		if strings.HasPrefix(d.Name(), "tc_") {
			n++
		} else if d.Name() == "ingress" || d.Name() == "egress" {
			l, err := link.LoadPinnedLink(path, nil)
			if err != nil {
				n++ // it may be attached
				return nil
			}
			if info, err := l.Info(); err != nil || info.TCX() == nil || info.TCX().Ifindex != 0 {
				n++
			}
			l.Close() // the pin holds it
		}
		return nil
	})
	return n
}

// linkAttrs returns the attributes of all devices of a namespace.
func linkAttrs(z *hook.Netns) ([]netlink.Link, error) { return dump.Retry(z.Netlink.LinkList) }

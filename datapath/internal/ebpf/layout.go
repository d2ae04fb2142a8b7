// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// layoutVersion is LAYOUT_VERSION of types.h: it changes where the meaning of what
// is pinned does.
const layoutVersion = 1

const layoutPrefix = "layout-"

func layoutDir(pinDir string) string {
	return filepath.Join(pinDir, fmt.Sprint(layoutPrefix, layoutVersion))
}

// otherLayout says whether there are pins of another layout version, whose
// programs would go on beside those of this one.
func otherLayout(pinDir string) (string, error) {
	folders, err := os.ReadDir(pinDir)
	if err != nil {
		return "", err
	}
	for _, f := range folders {
		number, ok := strings.CutPrefix(f.Name(), layoutPrefix)
		dir := filepath.Join(pinDir, f.Name())
		if ok && dir != layoutDir(pinDir) && !isEmpty(dir) {
			return fmt.Sprintf("they are of layout %s, this version has %d", number, layoutVersion), nil
		}
	}
	return "", nil
}

// isEmpty reports whether there are no pins below dir.
func isEmpty(dir string) bool {
	empty := true
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() {
			empty = false
			return fs.SkipAll
		}
		return nil
	})
	return empty && err == nil
}

// onBPFFS reports whether path is there and on a BPF file system.
func onBPFFS(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.BPF_FS_MAGIC
}

// compareMap says what is to become of a pinned map: whether it stays, or why
// it does not.
func compareMap(old *ebpf.Map, spec *ebpf.MapSpec) (action, reason string) {
	switch {
	case old.Type() != spec.Type:
		return datapath.PinsRefuse, fmt.Sprintf("it is a %s, to be a %s", old.Type(), spec.Type)
	case old.KeySize() != spec.KeySize:
		return datapath.PinsRefuse, fmt.Sprintf("its keys have %d bytes, to have %d", old.KeySize(), spec.KeySize)
	case old.ValueSize() != spec.ValueSize:
		return datapath.PinsRefuse, fmt.Sprintf("its values have %d bytes, to have %d", old.ValueSize(), spec.ValueSize)
	case spec.Compatible(old) != nil:
		return datapath.PinsConvert, fmt.Sprintf("it has room for %d, to have it for %d", old.MaxEntries(), spec.MaxEntries)
	}
	return datapath.PinsAdopt, ""
}

// pinsOf is what would become of the pins in a folder.
type pinsOf struct{ datapath.PreflightPins }

// preflightPins says what would become of what is pinned in cfg.PinDir.
func preflightPins(cfg datapath.Config) (p pinsOf, err error) {
	p.OK, p.Dir, p.Action = true, cfg.PinDir, datapath.PinsNone
	if !onBPFFS(cfg.PinDir) {
		return p, nil
	}
	if p.Error, err = otherLayout(cfg.PinDir); err != nil {
		return p, err
	} else if p.Error != "" {
		p.OK, p.Action = false, datapath.PinsRefuse
		return p, nil
	}
	spec, err := loadKernel()
	if err != nil {
		return p, err
	}
	for name, spec := range wantedMaps(spec.Maps, cfg.Tables) {
		old, err := ebpf.LoadPinnedMap(filepath.Join(layoutDir(cfg.PinDir), name), &ebpf.LoadPinOptions{ReadOnly: true})
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return p, fmt.Errorf("pinned map %s: %w", name, err)
		}
		action, reason := compareMap(old, spec)
		old.Close() // harmless: a file descriptor
		p.Action = worst(p.Action, action)
		if action != datapath.PinsAdopt {
			p.Maps = append(p.Maps, datapath.PreflightMap{Map: name, Action: action, Reason: reason})
		}
	}
	slices.SortFunc(p.Maps, func(a, b datapath.PreflightMap) int { return cmp.Compare(a.Map, b.Map) })
	p.OK = p.Action != datapath.PinsRefuse
	return p, nil
}

func worst(a, b string) string {
	order := []string{datapath.PinsNone, datapath.PinsAdopt, datapath.PinsConvert, datapath.PinsRefuse}
	return order[max(slices.Index(order, a), slices.Index(order, b))]
}

// refused says why the pins cannot be taken over, and what to do.
func (p *pinsOf) refused() error {
	why := p.Error
	for _, m := range p.Maps {
		if m.Action == datapath.PinsRefuse {
			why += fmt.Sprintf("; map %s: %s", m.Map, m.Reason)
		}
	}
	return fmt.Errorf("what is pinned in %s cannot be taken over: %s: %w; install the version of loxilight again that pinned it, or run llcli detach, which ends forwarding until the next start",
		p.Dir, strings.TrimPrefix(why, "; "), datapath.ErrRefused)
}

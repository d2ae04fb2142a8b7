// SPDX-License-Identifier: Apache-2.0

// Package pin takes over the maps that an earlier run pinned. Maps of a different layout or size
// are replaced: their entries are converted field by field, by the names of the fields, while
// programs of both runs may be in use. The layouts are read from BTF, so a newer and an older
// version can each take over the other's maps.
package pin

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
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// LayoutVersion is LAYOUT_VERSION of types.h. It changes only if the meaning of pinned data
// changes: the layout of entries is described by the maps' BTF types, and entries are converted.
const LayoutVersion = 1

// DirPrefix begins the name of each layout's directory, which is in the pin directory.
const DirPrefix = "layout-"

// Dir returns the directory of this version's layout.
func Dir(pinDir string) string {
	return filepath.Join(pinDir, fmt.Sprint(DirPrefix, LayoutVersion))
}

// Attached reports whether an earlier run left programs attached.
func Attached(pinDir string) bool {
	ports, err := filepath.Glob(filepath.Join(pinDir, DirPrefix+"*", "ports", "*", "*"))
	return err == nil && len(ports) > 0
}

// otherLayout describes pins of a different layout version, if any: their programs would run beside
// this version's.
func otherLayout(pinDir string) (string, error) {
	folders, err := os.ReadDir(pinDir)
	if err != nil {
		return "", err
	}
	for _, f := range folders {
		number, ok := strings.CutPrefix(f.Name(), DirPrefix)
		dir := filepath.Join(pinDir, f.Name())
		if ok && dir != Dir(pinDir) && !IsUse(pinDir, dir) && !IsEmpty(dir) {
			return fmt.Sprintf("they have layout %s%s, this version uses %d", number, by(ReadOrigin(dir).Version), LayoutVersion), nil
		}
	}
	return "", nil
}

func by(version string) string {
	if version == "" {
		return ""
	}
	return fmt.Sprintf(" (pinned by version %s)", version)
}

// IsEmpty reports whether no pins exist below dir.
func IsEmpty(dir string) bool {
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
	return errors.Is(err, fs.ErrNotExist) || empty && err == nil
}

// OnBPFFS reports whether path exists and is on a BPF file system.
func OnBPFFS(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.BPF_FS_MAGIC
}

// comparison is the result of comparing a pinned map with the wanted one.
type comparison struct {
	action  string // datapath.Pins…
	reason  string
	convert *entryConverter // nil: entries stay unchanged
	blocks  *blockConverter // of the connection table; nil for other maps
	// shortage is the temporary lack of resources that prevented the comparison, or nil.
	shortage error
}

// compareMap compares a pinned map with the wanted one.
func compareMap(old *ebpf.Map, spec *ebpf.MapSpec) comparison {
	if classOf(spec).connections {
		blocks, same, err := compareBlocks(old, spec)
		return comparisonOf(old, spec, !same, blocks, nil, err)
	}
	convert, err := compareEntries(old, spec)
	return comparisonOf(old, spec, convert != nil, nil, convert, err)
}

func comparisonOf(old *ebpf.Map, spec *ebpf.MapSpec, differs bool, blocks *blockConverter, convert *entryConverter, err error) comparison {
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("reading its layout takes CAP_SYS_ADMIN: %w", err)
	}
	switch {
	case err != nil && datapath.IsShortage(err):
		return comparison{action: datapath.PinsRefuse, reason: err.Error(), shortage: err}
	case err != nil && classOf(spec).notCopied:
		return comparison{action: datapath.PinsConvert, reason: "is recreated empty: " + err.Error()}
	case err != nil:
		return comparison{action: datapath.PinsRefuse, reason: err.Error()}
	case differs:
		return comparison{action: datapath.PinsConvert, reason: "its entries have another layout", convert: convert, blocks: blocks}
	}
	is, err := entriesAt(old, classOf(spec))
	switch want := entriesIn(spec); {
	case err != nil:
		return comparison{action: datapath.PinsRefuse, reason: err.Error()}
	case is != want:
		return comparison{action: datapath.PinsConvert, reason: fmt.Sprintf("size %d, want %d", is, want), blocks: blocks}
	case spec.Compatible(old) != nil:
		return comparison{action: datapath.PinsConvert, reason: "it was made with other options", blocks: blocks}
	}
	return comparison{action: datapath.PinsAdopt, blocks: blocks}
}

// compareEntries returns the converter from entries of old to entries of spec, or nil if entries
// stay unchanged.
func compareEntries(old *ebpf.Map, spec *ebpf.MapSpec) (*entryConverter, error) {
	if !sameFamily(old.Type(), spec.Type) {
		return nil, fmt.Errorf("type %s, want %s", old.Type(), spec.Type)
	}
	if t := spec.Type; (t == ebpf.Queue || t == ebpf.RingBuf) && old.KeySize() == spec.KeySize && old.ValueSize() == spec.ValueSize {
		return nil, nil // the kernel stores no types for these
	}
	if classOf(spec).segmented {
		return compareSegments(old, spec.InnerMap)
	}
	if spec.Type == ebpf.ArrayOfMaps {
		return nil, nil // the inner maps describe their own format; see fw_classify.h
	}
	to, err := shapeOf(spec)
	if err != nil {
		return nil, err
	}
	from, err := shapeOfPinned(old)
	if err != nil {
		return nil, err
	}
	return newEntryConverter(spec.Type, from, to)
}

// compareSegments is compareEntries for an array in segments.
func compareSegments(old *ebpf.Map, spec *ebpf.MapSpec) (*entryConverter, error) {
	segments, err := innerMaps(old)
	if err != nil || len(segments) == 0 {
		return nil, err
	}
	defer kernel.CloseMaps(segments)
	if is := segments[0].MaxEntries(); is != spec.MaxEntries {
		return nil, fmt.Errorf("its segments have %d entries, want %d", is, spec.MaxEntries)
	}
	return compareEntries(segments[0], spec)
}

// sameFamily reports whether a map of type b can hold the entries of a map of type a.
func sameFamily(a, b ebpf.MapType) bool {
	hash := func(t ebpf.MapType) bool { return t == ebpf.Hash || t == ebpf.LRUHash }
	perCPU := func(t ebpf.MapType) bool { return t == ebpf.PerCPUHash || t == ebpf.LRUCPUHash }
	return a == b || hash(a) && hash(b) || perCPU(a) && perCPU(b)
}

// Report reports what would be done with the pins in a directory.
type Report struct{ datapath.PreflightPins }

// Preflight reports what a version with the maps of specs would do with the pins in cfg.PinDir.
func Preflight(cfg datapath.Config, specs map[string]*ebpf.MapSpec) (p Report, err error) {
	p.OK, p.Dir, p.Action = true, cfg.PinDir, datapath.PinsNone
	if !OnBPFFS(cfg.PinDir) {
		return p, nil
	}
	if p.Error, err = otherLayout(cfg.PinDir); err != nil {
		return p, err
	} else if p.Error != "" {
		p.OK, p.Action = false, datapath.PinsRefuse
		return p, nil
	}
	dir := Dir(cfg.PinDir)
	p.Writer = ReadOrigin(dir).Version
	for name, spec := range Wanted(specs, cfg.Tables) {
		g, err := openGenerations(dir, spec)
		if err != nil {
			return p, fmt.Errorf("map %s: %w", name, err)
		}
		if len(g) == 0 {
			continue
		}
		_, c := g.choose()
		g.close()
		if c.shortage != nil {
			return p, fmt.Errorf("map %s: %w", name, c.shortage)
		}
		p.Action = worst(p.Action, c.action)
		if c.action != datapath.PinsAdopt {
			p.Maps = append(p.Maps, datapath.PreflightMap{Map: name, Action: c.action, Reason: c.reason})
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

// Refused returns the reason why the pins cannot be taken over, and what to do.
func (p *Report) Refused() error {
	why := p.Error
	for _, m := range p.Maps {
		if m.Action == datapath.PinsRefuse {
			why += fmt.Sprintf("; map %s: %s", m.Map, m.Reason)
		}
	}
	return refusedPins(p.Dir, p.Writer, strings.TrimPrefix(why, "; "))
}

func refusedPins(dir, writer, why string) error {
	return fmt.Errorf("the pins in %s%s cannot be taken over: %s: %w; install the version of loxilight again that pinned it, or run llcli detach, which ends forwarding until the next start",
		dir, by(writer), why, datapath.ErrRefused)
}

// Remove removes a pin, or another file, if it exists.
func Remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

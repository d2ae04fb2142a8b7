// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/classify"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// imageSizes lists the maps of compiled rule sets, smallest first, with the size of their entries.
// rules.image is an index into this list, counted from 1.
var imageSizes = []struct {
	name string
	size int
}{
	{kernel.MapLlImage128k, 128 << 10}, {kernel.MapLlImage1m, 1 << 20}, {kernel.MapLlImage8m, 8 << 20}, {kernel.MapLlImage64m, 64 << 20},
}

// Images holds the rule sets in force, each compiled to an image. It is safe for concurrent use.
type Images struct {
	rules *bpfmap.Map[uint32, kernel.Rules]
	maps  map[string]*ebpf.Map     // of ll_image_…
	inner map[string]*ebpf.MapSpec // specs of the inner maps

	mu  sync.Mutex
	ids [kernel.RuleSetRULE_SET_MAX]ebpf.MapID // of the published images
}

func NewImages(t *kernel.Tables, maps map[string]*ebpf.Map) (*Images, error) {
	spec, err := kernel.LoadKernel()
	if err != nil {
		return nil, err
	}
	m := &Images{rules: &t.Rules, maps: maps, inner: make(map[string]*ebpf.MapSpec)}
	for _, s := range imageSizes {
		m.inner[s.name] = spec.Maps[s.name].InnerMap
	}
	return m, nil
}

// stagedImage is an image of a set in a map of its own, which programs do not use yet.
type stagedImage struct {
	set   kernel.RuleSet
	now   kernel.Rules // in force
	entry kernel.Rules // to be in force
	same  bool         // entry is already in force
	inner *ebpf.Map    // nil: the set has no rules, or the same rules
}

// Publish atomically makes an image take effect for a set. image is nil if the set has no rules.
// Publish reports whether anything has changed since Settle was last called.
func (m *Images) Publish(set kernel.RuleSet, image *classify.Image) (changed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.stage(set, image)
	if err != nil {
		return false, err
	}
	return m.put(s)
}

// PublishAll makes the images of several sets take effect, one after the other. If there is no
// memory for one of them, none of them takes effect.
func (m *Images) PublishAll(sets []kernel.RuleSet, images []*classify.Image) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	staged := make([]*stagedImage, 0, len(sets))
	for i, set := range sets {
		s, err := m.stage(set, images[i])
		if err != nil {
			for _, s := range staged {
				s.inner.Close() // it was never in force
			}
			return err
		}
		staged = append(staged, s)
	}
	var err error
	for _, s := range staged {
		_, e := m.put(s)
		err = errors.Join(err, e)
	}
	return err
}

// stage writes an image into a map of its own.
func (m *Images) stage(set kernel.RuleSet, image *classify.Image) (*stagedImage, error) {
	now, err := m.read(set)
	if err != nil {
		return nil, err
	}
	s := &stagedImage{set: set, now: now, entry: entryOf(image)}
	if s.same, err = m.same(set, now, s.entry, image); err != nil || s.same || image == nil {
		return s, err
	}
	s.inner, err = m.write(s.entry.Image, image)
	return s, err
}

// put makes a staged image take effect. It returns what Publish returns.
func (m *Images) put(s *stagedImage) (changed bool, err error) {
	defer s.inner.Close() // the outer map holds it
	if s.same {
		return s.now.Flags&kernel.RulesPending != 0, m.removeOthers(s.set, s.now.Image)
	}
	s.entry.Flags |= kernel.RulesPending
	if s.inner != nil {
		if err := m.prepare(s.set, s.now, s.entry.Flags); err != nil {
			return false, err
		}
		if err := m.insert(s.set, s.entry.Image, s.inner); err != nil {
			return false, err
		}
	}
	// So far programs use the old image, from here on the new one. If both are in the same map,
	// insert has already replaced the old one.
	if err := kernel.Step("publish image", func() error { return m.rules.Put(uint32(s.set), s.entry) }); err != nil {
		return true, err
	}
	if s.inner == nil {
		m.ids[s.set] = 0
	}
	return true, m.removeOthers(s.set, s.entry.Image)
}

// entryOf returns the ll_rules entry of an image.
func entryOf(image *classify.Image) (entry kernel.Rules) {
	if image == nil {
		return entry
	}
	for i, s := range imageSizes {
		if entry.Image == 0 && len(image.Bytes()) <= s.size {
			entry.Image = uint32(i + 1)
		}
	}
	if image.AsksWhereTo() {
		entry.Flags |= kernel.RulesOut
	}
	if image.AsksOfFrames() {
		entry.Flags |= kernel.RulesFrame
	}
	return entry
}

// same reports whether an image is already in force; if so, it counts as published.
func (m *Images) same(set kernel.RuleSet, now, entry kernel.Rules, image *classify.Image) (bool, error) {
	now.Flags &^= kernel.RulesPending
	if now != entry || image == nil {
		return now == entry, nil
	}
	old, err := m.InForce(set)
	if err != nil || old == nil || !bytes.Equal(old.Bytes(), image.Bytes()) {
		return false, err
	}
	return true, m.remember(set, now.Image)
}

// prepare makes programs look up what the new image needs while the old one is still in force. If
// this run is killed, the entry also shows the next run that the rules may have changed.
func (m *Images) prepare(set kernel.RuleSet, now kernel.Rules, flags uint32) error {
	if now.Image == 0 || flags&^now.Flags == 0 {
		return nil
	}
	now.Flags |= flags
	return kernel.Step("prepare image", func() error { return m.rules.Put(uint32(set), now) })
}

// Settle records that all consequences of a changed set have been carried out.
func (m *Images) Settle(set kernel.RuleSet) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, err := m.read(set)
	if err != nil || now.Flags&kernel.RulesPending == 0 {
		return err
	}
	now.Flags &^= kernel.RulesPending
	return kernel.Step("settle image", func() error { return m.rules.Put(uint32(set), now) })
}

func (m *Images) read(set kernel.RuleSet) (r kernel.Rules, err error) {
	return r, m.rules.Lookup(uint32(set), &r)
}

// write returns a new map with an image.
func (m *Images) write(which uint32, image *classify.Image) (*ebpf.Map, error) {
	spec := m.inner[imageSizes[which-1].name]
	inner, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("no memory for the %d KiB of a compiled rule set; "+
			"allow more (MemoryMax of the unit counts maps), or use fewer rules and addresses: %w", spec.ValueSize>>10, err)
	}
	err = mapped(inner, unix.PROT_READ|unix.PROT_WRITE, func(b []byte) error {
		copy(b, image.Bytes())
		return nil
	})
	if err != nil {
		inner.Close() // it was never in force
		return nil, err
	}
	return inner, nil
}

// insert puts a map with an image into the outer map that programs use.
func (m *Images) insert(set kernel.RuleSet, which uint32, inner *ebpf.Map) error {
	name := imageSizes[which-1].name
	info, err := inner.Info()
	if err != nil {
		return err
	}
	if err := kernel.Step("insert image "+name, func() error { return m.maps[name].Put(uint32(set), inner) }); err != nil {
		return err
	}
	m.ids[set], _ = info.ID()
	return nil
}

// mapped calls f with the memory of an array's only value, for reading or writing.
func mapped(m *ebpf.Map, access int, f func([]byte) error) error {
	b, err := unix.Mmap(m.FD(), 0, int(m.ValueSize()), access, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the memory of a compiled rule set: %w", err)
	}
	return errors.Join(f(b), unix.Munmap(b))
}

// removeOthers removes the images of a set that are not in force, after waiting for programs that
// may be reading one.
func (m *Images) removeOthers(set kernel.RuleSet, which uint32) (err error) {
	synchronized := false
	for i, s := range imageSizes {
		if uint32(i+1) == which {
			continue
		}
		var id ebpf.MapID
		if e := m.maps[s.name].Lookup(uint32(set), &id); errors.Is(e, ebpf.ErrKeyNotExist) {
			continue
		}
		if !synchronized {
			kernel.Synchronize()
			synchronized = true
		}
		err = errors.Join(err, kernel.Step("remove image "+s.name, func() error { return m.maps[s.name].Delete(uint32(set)) }))
	}
	return err
}

// InForce returns a copy of the image that programs use for a set; nil if none exists or it cannot
// be read.
func (m *Images) InForce(set kernel.RuleSet) (image *classify.Image, err error) {
	now, err := m.read(set)
	if err != nil || now.Image == 0 || int(now.Image) > len(imageSizes) {
		return nil, err
	}
	var inner *ebpf.Map
	if err := m.maps[imageSizes[now.Image-1].name].Lookup(uint32(set), &inner); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer inner.Close() // only read
	err = mapped(inner, unix.PROT_READ, func(b []byte) error {
		if found, err := classify.Open(b); err == nil {
			image = found.Clone()
		}
		return nil
	})
	return image, err
}

// remember records the image in force as the published one.
func (m *Images) remember(set kernel.RuleSet, which uint32) error {
	return m.maps[imageSizes[which-1].name].Lookup(uint32(set), &m.ids[set])
}

// IsEmpty reports whether a set has no rules in force.
func (m *Images) IsEmpty(set kernel.RuleSet) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, err := m.read(set)
	return err == nil && now.Image == 0, err
}

// Verify reports whether the image that was published last is still in force.
func (m *Images) Verify(set kernel.RuleSet) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, err := m.read(set)
	if err != nil || now.Image == 0 || int(now.Image) > len(imageSizes) {
		return false, err
	}
	var id ebpf.MapID
	if err := m.maps[imageSizes[now.Image-1].name].Lookup(uint32(set), &id); errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return id == m.ids[set], nil
}

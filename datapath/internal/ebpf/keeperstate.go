// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
)

// detached reports whether another program detached a link.
func (k *keeper) detached() bool {
	p := k.d.ports
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, t := range p.byName {
		if t.ifindex != 0 && t.lost() != nil {
			return true
		}
	}
	return false
}

// lost returns a hook whose link another program detached, or nil.
func (t *port) lost() hook.Attachment {
	for _, h := range t.hooks {
		if hook.IsSevered(h) {
			return h
		}
	}
	return nil
}

// pinned reports whether all hooks of a port have their pins.
func (t *port) pinned() bool {
	for _, h := range t.hooks {
		if !hook.IsPinned(h) {
			return false
		}
	}
	return true
}

// problems returns the missing pins and links, whether or not they can be restored.
func (k *keeper) problems() (found []string) {
	if k == nil {
		return nil
	}
	p := k.d.ports
	p.mu.RLock()
	k.mu.Lock()
	missing, err := k.missingMaps(), k.err
	var unpinned, detached []string
	for name, t := range p.byName {
		if len(t.hooks) == 0 || t.ifindex == 0 {
			continue
		}
		if h := t.lost(); h != nil {
			detached = append(detached, fmt.Sprintf("%s of %s", h.Name(), describe(name)))
		} else if !t.pinned() || len(k.lacking(p.folder(t.namespace, name))) > 0 {
			unpinned = append(unpinned, describe(name))
		}
	}
	k.mu.Unlock()
	p.mu.RUnlock()
	switch {
	case err != nil:
		found = append(found, fmt.Sprintf("pins in %s were deleted by another program and cannot be restored, so that a restart loses their contents: %v", k.d.dir, err))
	case len(missing) > 0:
		found = append(found, fmt.Sprintf("pins of %d maps in %s were deleted by another program, %s among them; they are being restored", len(missing), k.d.dir, missing[0]))
	}
	if err == nil && len(unpinned) > 0 {
		slices.Sort(unpinned)
		found = append(found, "pins of programs were deleted by another program and are being restored: "+someOf(unpinned))
	}
	if len(detached) > 0 {
		slices.Sort(detached)
		found = append(found, "programs were detached by another program and are being attached again: "+someOf(detached))
	}
	return found
}

// someOf joins the first few strings of a possibly long list.
func someOf(all []string) string {
	const most = 5
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}

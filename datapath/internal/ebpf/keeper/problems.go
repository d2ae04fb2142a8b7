// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"fmt"
	"slices"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/internal/listing"
)

const mostNamed = 5 // of the pins or devices that a message names

// Detached reports whether another program detached a link.
func (k *Keeper) Detached() (found bool) {
	k.options.Ports.Each(func(p Port) { found = found || lostOf(p.Hooks) != nil })
	return found
}

// lostOf returns a hook whose link another program detached, or nil.
func lostOf(hooks []hook.Attachment) hook.Attachment {
	for _, h := range hooks {
		if hook.IsSevered(h) {
			return h
		}
	}
	return nil
}

// pinned reports whether all hooks have their pins.
func pinned(hooks []hook.Attachment) bool {
	for _, h := range hooks {
		if !hook.IsPinned(h) {
			return false
		}
	}
	return true
}

// Repairs returns the number of repairs since the start.
func (k *Keeper) Repairs() uint64 { return k.repairs.Load() }

// Problems returns the missing pins and links, whether or not they can be restored.
func (k *Keeper) Problems() (found []string) {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	missing, err := k.missingMaps(), k.err
	k.mu.Unlock()
	var unpinned, detached []string
	k.options.Ports.Each(func(p Port) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if h := lostOf(p.Hooks); h != nil {
			detached = append(detached, fmt.Sprintf("%s of %s", h.Name(), k.options.Ports.Describe(p.Name)))
		} else if !pinned(p.Hooks) || len(k.lacking(p.Folder)) > 0 {
			unpinned = append(unpinned, k.options.Ports.Describe(p.Name))
		}
	})
	switch {
	case err != nil:
		found = append(found, fmt.Sprintf("pins in %s were deleted by another program and cannot be restored, so that a restart loses their contents: %v", k.options.Dir, err))
	case len(missing) > 0:
		found = append(found, fmt.Sprintf("pins of %d maps in %s were deleted by another program, %s among them; they are being restored", len(missing), k.options.Dir, missing[0]))
	}
	if err == nil && len(unpinned) > 0 {
		slices.Sort(unpinned)
		found = append(found, "pins of programs were deleted by another program and are being restored: "+listing.First(unpinned, mostNamed))
	}
	if len(detached) > 0 {
		slices.Sort(detached)
		found = append(found, "programs were detached by another program and are being attached again: "+listing.First(detached, mostNamed))
	}
	return found
}

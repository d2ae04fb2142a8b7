// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
)

// State returns the state of a mirror, possibly of an earlier run; false if it does not exist.
func (t *Table) State(name datapath.MirrorName) (s datapath.MirrorState, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.byName[name]
	if m == nil {
		return s, false
	}
	for device := range m.sources {
		if t.isCopying(m, device) {
			s.Ports = append(s.Ports, t.host.Name(device))
		}
	}
	slices.Sort(s.Ports)
	sum := t.counted(m.slot)
	s.Packets, s.Bytes, s.Drops = sum.packets, sum.bytes, sum.drops
	return s, true
}

// isCopying reports whether the programs of a mirror are attached to a port, and to the targets in
// the netns of the port.
func (t *Table) isCopying(m *mirror, device Key) bool {
	for at := range m.places() {
		if at.device != device && (at.side != hook.MirrorSend || at.device.Netns != device.Netns) {
			continue
		}
		if h := t.hooks[at]; h == nil || !h.Attached() {
			return false
		}
	}
	return true
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// hostPorts contains pods' host ports that are not in force because the node does not have their
// address: packets to that address belong to another host. It is safe for concurrent use.
type hostPorts struct {
	mu      sync.Mutex
	absent  map[string]netip.Addr // by the names of the NAT objects
	changed chan struct{}         // closed and replaced when absent changes
}

// set replaces the absent host ports.
func (h *hostPorts) set(absent map[string]netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if maps.Equal(absent, h.absent) {
		return
	}
	h.absent = absent
	if h.changed != nil {
		close(h.changed)
	}
	h.changed = make(chan struct{})
}

// of returns the status of an object whose address is absent; it returns false if the address is
// present.
func (h *hostPorts) of(o *state.Object) (Status, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a, ok := h.absent[o.Name]
	if !ok || o.Kind != state.KindNAT {
		return Status{}, false
	}
	return Status{
		State: reconcile.Pending, Revision: o.Revision, Failures: 1,
		Message: fmt.Sprintf("not in force: %s is not an address of this node; it is in force again as soon as the node has the address", a),
	}, true
}

// none reports whether no host port is absent.
func (h *hostPorts) none() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.absent) == 0
}

// wait waits until none of keys is absent, or ctx ends.
func (h *hostPorts) wait(ctx context.Context, keys []state.Key) {
	for {
		h.mu.Lock()
		changed := h.changed
		waits := slices.ContainsFunc(keys, func(k state.Key) bool { _, ok := h.absent[k.Name]; return ok && k.Kind == state.KindNAT })
		h.mu.Unlock()
		if !waits {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// absentHostPorts returns pods' host ports on addresses that the node does not have. The node
// always has loopback addresses.
func (n *Node) absentHostPorts(s *state.Snapshot) map[string]netip.Addr {
	absent := map[string]netip.Addr{}
	for o := range s.After(state.KindNAT, "") {
		if o.Owner != state.OwnerCNI {
			continue
		}
		for _, p := range o.Value.(*state.NAT).Match.Destination {
			if !p.Addr().IsLoopback() && n.opts.Plane.Telemetry().DeviceOf(p.Addr(), false) == "" {
				absent[o.Name] = p.Addr()
			}
		}
	}
	return absent
}

// hostPortsChanged reports whether the absent host ports have changed.
func (n *Node) hostPortsChanged(s *state.Snapshot) bool {
	n.hostPorts.mu.Lock()
	defer n.hostPorts.mu.Unlock()
	return !maps.Equal(n.absentHostPorts(s), n.hostPorts.absent)
}

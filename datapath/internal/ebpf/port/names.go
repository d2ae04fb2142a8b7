// SPDX-License-Identifier: Apache-2.0

package port

import (
	"fmt"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
)

// learner returns the program on the device of a port that learns names, or nil.
func (t *port) learner() hook.Attachment {
	if i := slices.IndexFunc(t.hooks, hook.IsNames); i >= 0 {
		return t.hooks[i]
	}
	return nil
}

// fitNames attaches the program that learns names to the device of an endpoint that needs it, and
// detaches it from any other.
func (p *Table) fitNames(z *namespace.Namespace, name datapath.PortName, t *port, endpoint *datapath.Endpoint) (err error) {
	t.learns = endpoint != nil && endpoint.Learns
	h := t.learner()
	if h != nil && (!t.learns || !h.Attached()) {
		if err := h.Detach(); err != nil {
			return fmt.Errorf("device %q: detach %s: %w", t.device, h.Name(), err)
		}
		t.hooks = slices.DeleteFunc(slices.Clone(t.hooks), hook.IsNames)
		h = nil
	}
	if h != nil || !t.learns {
		return nil
	}
	if h, err = z.AttachNames(p.attachedHow(endpoint), p.Folder(z.ID, name), t.ifindex); err != nil {
		return fmt.Errorf("device %q: %w", t.device, err)
	}
	t.hooks = append(t.hooks, h)
	return nil
}

// fitsNames reports whether fitNames has nothing to do.
func (t *port) fitsNames() bool {
	h := t.learner()
	return t.learns == (h != nil) && (h == nil || h.Attached())
}

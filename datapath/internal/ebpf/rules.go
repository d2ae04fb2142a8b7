// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/netfilter"
)

// rules keeps ll_netfilter as the rules of a zone's namespace are: what these may have a
// say about is not short-cut.
type rules struct {
	d    *DataPlane
	zone *zone
	stop func()

	mu    sync.Mutex
	state netfilter.State
	bits  uint32
}

// watchRules begins, with what there is now.
func watchRules(d *DataPlane, z *zone) (*rules, error) {
	r := &rules{d: d, zone: z}
	stop, err := netfilter.Watch(int(z.ns), r.changed, func(err error) {
		d.log.Warn("the rules of netfilter cannot be read: taken as if there were some", "error", err, slog.String("netns", z.label()))
	})
	r.stop = stop
	return r, err
}

// racing is as long as a program may take that has seen no rules yet.
const racing = 10 * time.Millisecond

// changed writes what there is, and ends the short cuts that it speaks against.
func (r *rules) changed(s netfilter.State) {
	var bits uint32
	if s.Routed {
		bits |= netfilterRouted
	}
	if s.Bridged {
		bits |= netfilterBridged
	}
	r.mu.Lock()
	more := bits &^ r.bits
	r.state, r.bits = s, bits
	r.mu.Unlock()
	if err := r.enforce(bits, more != 0); err != nil {
		r.d.log.Error("the rules of netfilter cannot be followed: what they say may be passed by", "error", err, slog.String("netns", r.zone.label()))
	}
	if more != 0 {
		r.d.log.Info("netfilter has rules: connections that are not translated take the kernel's path", slog.String("why", s.Why), slog.String("netns", r.zone.label()))
	}
}

func (r *rules) enforce(bits uint32, more bool) error {
	if err := r.d.maps[kernelMapLlNetfilter].Update(uint32(r.zone.id), bits, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("write ll_netfilter: %w", err)
	}
	if !more {
		return nil
	}
	every := func(k kernelNexthopKey) bool { return k.Zone == r.zone.id }
	if err := r.d.nexthops.invalidate(every); err != nil {
		return err
	}
	time.Sleep(racing)
	return r.d.nexthops.invalidate(every)
}

// why says what keeps connections from the short cut; empty: nothing.
func (r *rules) why() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bits == 0 {
		return ""
	}
	what := "routed and bridged connections"
	switch r.bits {
	case netfilterRouted:
		what = "routed connections"
	case netfilterBridged:
		what = "bridged connections"
	}
	return fmt.Sprintf("%s that are not translated take the kernel's path%s: %s", what, r.zone.where(), r.state.Why)
}

func (r *rules) Close() {
	if r.stop != nil {
		r.stop()
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package fastpath keeps the connections to which netfilter rules may apply off the fast path, whose
// packets netfilter does not see.
package fastpath

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/netfilter"
)

// Gate keeps ll_netfilter in sync with the netfilter rules of a namespace: connections to which
// rules may apply do not take the fast path.
type Gate struct {
	options   Options
	namespace *hook.Netns
	watcher   *netfilter.Watcher // nil: the watch has not begun

	mu    sync.Mutex
	state netfilter.State
	bits  uint32
}

// Options are what a [Gate] uses.
type Options struct {
	Netns  *hook.Netns
	Tables *kernel.Tables
	Log    *slog.Logger

	// IsIdle reports whether no programs are attached, so that no connection takes the fast path.
	IsIdle func() bool
	// Invalidate retires each next hop for which match returns true.
	Invalidate func(match func(kernel.NexthopKey) bool) error
}

// Watch begins to follow the netfilter rules of a namespace. If it fails, the caller must close the
// gate nevertheless.
func Watch(o Options) (*Gate, error) {
	z := o.Netns
	r := &Gate{options: o, namespace: z}
	// Written by an earlier run; 0 in a new map.
	if err := o.Tables.Netfilter.Lookup(uint32(z.ID), &r.bits); err != nil {
		return r, fmt.Errorf("read ll_netfilter: %w", err)
	}
	w, err := netfilter.Watch(int(z.Handle), netfilter.Options{
		Changed: r.changed,
		Failed: func(err error) {
			o.Log.Warn("cannot read the netfilter rules; assuming that rules exist", "error", err, slog.String("netns", z.Label()))
		},
		IsIdle: o.IsIdle,
	})
	r.watcher = w
	return r, err
}

// Look makes the gate read the netfilter rules soon.
func (r *Gate) Look() { r.watcher.Look() }

// racing is the maximum time for which a running program may not have seen the change.
const racing = 10 * time.Millisecond

// changed writes the new state, and takes connections off the fast path that the state forbids.
func (r *Gate) changed(s netfilter.State) {
	var bits uint32
	if s.Routed {
		bits |= kernel.NetfilterRouted
	}
	if s.Bridged {
		bits |= kernel.NetfilterBridged
	}
	more := bits &^ r.bits // r.bits has no other writer
	if err := r.enforce(bits, more != 0); err != nil {
		r.options.Log.Error("the rules of netfilter cannot be monitored: the fast path may bypass them", "error", err, slog.String("netns", r.namespace.Label()))
	}
	r.mu.Lock()
	r.state, r.bits = s, bits
	r.mu.Unlock()
	if more != 0 {
		r.options.Log.Info("netfilter has rules: connections without a Service take the slow path", slog.String("why", s.Why), slog.String("netns", r.namespace.Label()))
	}
}

// relaxTime limits each call of Relax. During the first call packets may still take the fast path.
const relaxTime = 500 * time.Millisecond

// enforce is called on a thread that is in the network namespace.
func (r *Gate) enforce(bits uint32, more bool) error {
	if err := r.options.Tables.Netfilter.Put(uint32(r.namespace.ID), bits); err != nil {
		return fmt.Errorf("write ll_netfilter: %w", err)
	}
	if !more {
		return nil
	}
	// Netfilter has not seen the packets on the fast path.
	passed, errs := r.passed()
	rest, err := netfilter.Relax(passed, time.Now().Add(relaxTime))
	errs = errors.Join(errs, err)
	every := func(k kernel.NexthopKey) bool { return k.Netns == r.namespace.ID }
	errs = errors.Join(errs, r.options.Invalidate(every))
	time.Sleep(racing)
	errs = errors.Join(errs, r.options.Invalidate(every))
	for len(rest) > 0 && err == nil {
		rest, err = netfilter.Relax(rest, time.Now().Add(relaxTime))
		errs = errors.Join(errs, err)
	}
	return errs
}

// passed returns the TCP connections whose packets may have bypassed netfilter on the fast path.
func (r *Gate) passed() (all []netfilter.Connection, err error) {
	err = r.options.Tables.Ct4.Batches(func(keys []kernel.Ct4Key, values []kernel.Ct4Val) error {
		for i := range keys {
			all = r.note(all, keys[i].Netns, keys[i].Proto, &values[i].Meta, keys[i].Tuple)
		}
		return nil
	})
	return all, errors.Join(err, r.options.Tables.Ct6.Batches(func(keys []kernel.Ct6Key, values []kernel.Ct6Val) error {
		for i := range keys {
			all = r.note(all, keys[i].Netns, keys[i].Proto, &values[i].Meta, keys[i].Tuple)
		}
		return nil
	}))
}

// note appends the connection of an entry if the kernel tracks it with the same tuple: the
// connection is not translated, or its source is translated at egress, after netfilter.
func (r *Gate) note(all []netfilter.Connection, namespace, proto uint8, m *kernel.CtMeta, tuple func() datapath.Tuple) []netfilter.Connection {
	translated := m.Flags&(kernel.CtDNAT|kernel.CtSNAT) != 0 && m.Flags&kernel.CtSNATAtEgress == 0
	if namespace != r.namespace.ID || proto != unix.IPPROTO_TCP || m.Flags&kernel.CtReply != 0 || translated {
		return all
	}
	t := tuple()
	return append(all, netfilter.Connection{Source: t.Source, Destination: t.Destination})
}

// Why returns the reason why connections do not take the fast path, or "".
func (r *Gate) Why() string {
	if r.options.IsIdle() {
		r.Look() // the state is read rarely
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bits == 0 {
		return ""
	}
	what := "routed and bridged connections"
	switch r.bits {
	case kernel.NetfilterRouted:
		what = "routed connections"
	case kernel.NetfilterBridged:
		what = "bridged connections"
	}
	return fmt.Sprintf("%s without a Service take the slow path%s: %s", what, r.where(), r.state.Why)
}

func (r *Gate) where() string {
	if r.namespace.Name == "" {
		return ""
	}
	return " in network namespace " + r.namespace.Name
}

// Close ends the watch.
func (r *Gate) Close() {
	if r.watcher != nil {
		r.watcher.Stop()
	}
}

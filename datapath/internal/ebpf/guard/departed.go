// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"net/netip"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Grace is how long an address may be unassigned before its connections end. If one change moves an
// address from one endpoint to another, its connections continue.
const Grace = time.Second

// departed holds released addresses, which no endpoint has now. The next sweep ends their
// connections, except those that are closing, so that no other endpoint continues them.
type departed struct {
	mu   sync.Mutex
	left map[netnsAddr]departure
}

type netnsAddr struct {
	namespace uint8
	addr      netip.Addr
}

// departedAt returns the key of a released address. Its connections are searched in all namespaces,
// since a connection may be translated in one namespace and continue in the other. Connections of a
// link-local address are searched only in its own namespace.
func departedAt(namespace uint8, a netip.Addr) netnsAddr {
	if !a.IsLinkLocalUnicast() {
		namespace = 0
	}
	return netnsAddr{namespace, a}
}

type departure struct {
	tick uint32 // later connections belong to another endpoint
	at   time.Time
}

func (d *departed) leave(namespace uint8, a netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == nil {
		d.left = make(map[netnsAddr]departure)
	}
	d.left[departedAt(namespace, a)] = departure{kernel.NowTick(), time.Now()}
}

// back records that an endpoint has the address again.
func (d *departed) back(namespace uint8, a netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if was, ok := d.left[departedAt(namespace, a)]; ok && time.Since(was.at) < Grace {
		delete(d.left, departedAt(namespace, a))
	}
}

// departedPass is the part of the released addresses in a pass: those whose connections end.
type departedPass struct {
	*departed
	due map[netnsAddr]departure
}

// PassBegins implements [conn.Judge].
func (d *departed) PassBegins(uint64) conn.Part {
	d.mu.Lock()
	defer d.mu.Unlock()
	due := make(map[netnsAddr]departure)
	for a, left := range d.left {
		if time.Since(left.at) >= Grace {
			due[a] = left
		}
	}
	return departedPass{d, due}
}

// Resumed implements [conn.Part].
func (p departedPass) Resumed() {}

// Seen implements [conn.Part].
func (p departedPass) Seen(conn.Entry) {}

// Ends implements [conn.Part].
func (p departedPass) Ends(e conn.Entry) bool {
	if len(p.due) == 0 {
		return false
	}
	m := e.Meta()
	switch kernel.CtState(m.State) {
	case kernel.CtStateCT_FIN, kernel.CtStateCT_TIME_WAIT, kernel.CtStateCT_CLOSED:
		return false
	}
	comes, leaves := e.Tuples()
	for _, a := range []netip.AddrPort{comes.Source, comes.Destination, leaves.Source, leaves.Destination} {
		if left, ok := p.due[departedAt(e.Namespace(), a.Addr())]; ok && int32(m.CreatedTick-left.tick) <= 0 {
			return true
		}
	}
	return false
}

// Deleted implements [conn.Part].
func (p departedPass) Deleted(conn.Entry) {}

// PassEnded implements [conn.Part].
func (p departedPass) PassEnded() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, left := range p.due {
		if p.left[a] == left {
			delete(p.left, a)
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"net/netip"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Grace is how long an address may be unassigned before its connections end. If its endpoint gets it
// again in time, they continue; if another endpoint gets it, they end before it does.
const Grace = time.Second

// departed holds released addresses. The next sweep ends their connections, so that no other
// endpoint continues them. Closing ones end only if another endpoint gets the address.
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
	tick  uint32 // later connections belong to another endpoint
	at    time.Time
	of    string // the endpoint that had the address; empty: unknown
	taken bool   // another endpoint gets the address, or has it
}

func (d *departed) leave(namespace uint8, a netip.Addr, of string) {
	d.put(departedAt(namespace, a), departure{tick: kernel.NowTick(), at: time.Now(), of: of})
}

func (d *departed) put(key netnsAddr, left departure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == nil {
		d.left = make(map[netnsAddr]departure)
	}
	d.left[key] = left
}

// take records that an endpoint is about to get an address. It reports whether the connections of
// another endpoint with that address must end first.
func (d *departed) take(namespace uint8, a netip.Addr, endpoint string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := departedAt(namespace, a)
	was, ok := d.left[key]
	switch {
	case !ok:
		return false
	case was.of == endpoint && time.Since(was.at) < Grace:
		delete(d.left, key)
		return false
	}
	d.left[key] = departure{tick: kernel.NowTick(), taken: true}
	return true
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
	comes, leaves := e.Tuples()
	for _, a := range []netip.AddrPort{comes.Source, comes.Destination, leaves.Source, leaves.Destination} {
		left, ok := p.due[departedAt(e.Namespace(), a.Addr())]
		if ok && int32(m.CreatedTick-left.tick) <= 0 && (!isClosing(m) || left.taken && !holdsPort(m)) {
			return true
		}
	}
	return false
}

func isClosing(m *kernel.CtMeta) bool {
	switch kernel.CtState(m.State) {
	case kernel.CtStateCT_FIN, kernel.CtStateCT_TIME_WAIT, kernel.CtStateCT_CLOSED:
		return true
	}
	return false
}

// holdsPort reports whether a connection has ended, and keeps a translated source port from being used
// again while the remote may still know it.
func holdsPort(m *kernel.CtMeta) bool {
	return kernel.CtState(m.State) != kernel.CtStateCT_FIN && m.Flags&kernel.CtSNAT != 0
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

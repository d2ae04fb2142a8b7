// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// departedGrace is how long an address may be nobody's before its connections end: what
// one endpoint leaves to another with the same change goes on.
const departedGrace = time.Second

// departed are addresses that no endpoint has any more. The next sweep ends their
// connections, which nobody else is to go on with, but for those that are closing.
type departed struct {
	mu   sync.Mutex
	left map[zoneAddr]departure
}

type zoneAddr struct {
	zone uint8
	addr netip.Addr
}

// departedAt is where connections of an address are looked for that is nobody's in a zone:
// in all of them, since what one translates to it goes on to the other; but one of a link is
// of its own zone alone.
func departedAt(zone uint8, a netip.Addr) zoneAddr {
	if !a.IsLinkLocalUnicast() {
		zone = 0
	}
	return zoneAddr{zone, a}
}

type departure struct {
	tick uint32 // connections that began later are another's
	at   time.Time
}

func (d *departed) leave(zone uint8, a netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == nil {
		d.left = make(map[zoneAddr]departure)
	}
	d.left[departedAt(zone, a)] = departure{nowTick(), time.Now()}
}

// back says that somebody has the address again.
func (d *departed) back(zone uint8, a netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if was, ok := d.left[departedAt(zone, a)]; ok && time.Since(was.at) < departedGrace {
		delete(d.left, departedAt(zone, a))
	}
}

// passBegins returns those whose connections a pass is to end.
func (d *departed) passBegins() map[zoneAddr]departure {
	d.mu.Lock()
	defer d.mu.Unlock()
	due := make(map[zoneAddr]departure)
	for a, left := range d.left {
		if time.Since(left.at) >= departedGrace {
			due[a] = left
		}
	}
	return due
}

func (d *departed) passEnded(due map[zoneAddr]departure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for a, left := range due {
		if d.left[a] == left {
			delete(d.left, a)
		}
	}
}

// departs says whether a direction is of a connection of an address that nobody has: comes
// is the tuple that it comes in with, back that of the other one.
func (p *pass) departs(m *kernelCtMeta, zone uint8, comes, back datapath.Tuple) bool {
	switch kernelCtState(m.State) {
	case kernelCtStateCT_FIN, kernelCtStateCT_TIME_WAIT, kernelCtStateCT_CLOSED:
		return false
	}
	for _, a := range []netip.AddrPort{comes.Source, comes.Destination, back.Source, back.Destination} {
		if left, ok := p.departed[departedAt(zone, a.Addr())]; ok && int32(m.CreatedTick-left.tick) <= 0 {
			return true
		}
	}
	return false
}

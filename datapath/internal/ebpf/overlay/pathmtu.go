// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"fmt"
	"time"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// PathMTUAge is how long a router's report of the path MTU to a peer stays valid, as in the
// programs: PATH_MTU_TICKS.
const PathMTUAge = 10 * time.Minute

// Maintain reads the path MTUs to peers that routers reported, and deletes expired ones. It also
// retries what failed in an update.
func (o *Overlay) Maintain() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	failed := o.finish() // retries what failed in an update
	now, turned := kernel.NowTick(), false
	for name, p := range o.peers {
		var is kernel.PeerPmtu
		if p.index != 0 {
			if err := o.tables.PeerPmtu.Lookup(p.index, &is); err != nil {
				return fmt.Errorf("path to peer %q: %w", name, err)
			}
		}
		if is.MtuBytes != 0 && kernel.TicksBetween(is.HeardTick, now) >= kernel.TicksOf(PathMTUAge) {
			is = kernel.PeerPmtu{}
			if err := o.tables.PeerPmtu.Put(p.index, is); err != nil {
				return fmt.Errorf("path to peer %q: %w", name, err)
			}
		}
		turned = turned || p.path != int(is.MtuBytes)
		p.path = int(is.MtuBytes)
	}
	if turned {
		o.options.Signal()
	}
	return failed
}

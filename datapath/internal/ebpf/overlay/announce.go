// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// announce enables hosts on the pods' bridge to find addresses of their network that are behind
// peers: the single addresses of pods that moved there. o.mu is held.
func (o *Overlay) announce() error {
	var list []netip.Addr
	for _, p := range o.peers {
		prefixes := slices.Collect(maps.Keys(p.prefixes)) // of an earlier run
		if p.configured {
			prefixes = p.spec.Prefixes
		}
		if p.owner&kernel.PrefixHere != 0 {
			continue
		}
		for _, prefix := range prefixes {
			if prefix.IsSingleIP() {
				list = append(list, prefix.Addr())
			}
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	if o.announced != nil && slices.Equal(o.announced, list) {
		return nil
	}
	if err := o.options.Announce(list); err != nil {
		return err
	}
	o.announced = append([]netip.Addr{}, list...)
	return nil
}

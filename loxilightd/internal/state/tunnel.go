// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"

	"github.com/loxilight/loxilight/datapath"
)

// Tunnel is the spec of a Tunnel.
type Tunnel struct{ datapath.Tunnel }

func (*Tunnel) cost() datapath.Cost { return datapath.Cost{} }

func (t *Tunnel) claims(each func(claim, func() string)) {
	each(claim{what: claimTunnel, device: t.Device, inSwitch: true}, func() string { return "spec.device" })
	wire := claim{what: claimWire, device: t.Type.String(), metric: t.VNI, port: t.Port}
	each(wire, func() string { return "spec.vni" })
}

// Peer is the spec of a Peer.
type Peer struct{ datapath.Peer }

func (*Peer) cost() datapath.Cost { return datapath.Cost{} }

func (p *Peer) claims(each func(claim, func() string)) {
	for i, prefix := range p.Prefixes {
		each(claim{what: claimBehind, prefix: prefix}, func() string { return fmt.Sprintf("spec.prefixes[%d]", i) })
	}
	for i, a := range p.Underlay {
		each(claim{what: claimUnderlay, device: a.String()}, func() string { return fmt.Sprintf("spec.underlay[%d]", i) })
	}
}

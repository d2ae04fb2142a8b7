// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"slices"

	"github.com/loxilight/loxilight/datapath"
)

// Tunnel is the spec of a Tunnel.
type Tunnel struct{ datapath.Tunnel }

func (*Tunnel) cost() datapath.Cost { return datapath.Cost{} }

func (t *Tunnel) claims(each func(claim, func() string)) {
	for _, device := range []string{t.Device, t.Device + datapath.TunnelEndSuffix} {
		each(claim{what: claimTunnel, device: device, inSwitch: true}, func() string { return "spec.device" })
		each(claim{what: claimBridged, device: device, inSwitch: true}, func() string { return "spec.device" })
	}
	wire := claim{what: claimWire, device: t.Type.String(), metric: t.VNI, port: t.Port}
	each(wire, func() string { return "spec.vni" })
}

// Peer is the spec of a Peer. [Snapshot.Peers] returns it with all prefixes behind it.
type Peer struct{ datapath.Peer }

func (*Peer) cost() datapath.Cost { return datapath.Cost{} }

func (p *Peer) claims(each func(claim, func() string)) {
	for i, prefix := range p.Prefixes {
		field := func() string { return fmt.Sprintf("spec.prefixes[%d]", i) }
		each(claim{what: claimPeerPrefix, prefix: prefix}, field)
		each(claimOfRoute(prefix, 0, p.Tunnel != ""), field) // the route to prefix
	}
	for i, a := range p.Underlay {
		each(claim{what: claimUnderlay, device: a.String()}, func() string { return fmt.Sprintf("spec.underlay[%d]", i) })
	}
}

// checkTunnels rejects the deletion of a Tunnel that Peers name. A Peer may name a Tunnel that does
// not exist yet, so a rollback needs no check.
func (p *plan) checkTunnels() error {
	if p.isRollback {
		return nil
	}
	for _, was := range p.dropped {
		if was.Kind != KindTunnel || p.edit.get(was.Key) != nil {
			continue
		}
		count, first := 0, Key{}
		for o := range p.each(KindPeer) {
			if o.Value.(*Peer).Tunnel != datapath.TunnelName(was.Name) {
				continue
			}
			if count++; count == 1 {
				first = o.Key
			}
		}
		switch count {
		case 0:
		case 1:
			return refuse(Conflict, was.Key, "", "1 Peer names it, %s: delete it first, or in the same change, or set its tunnel to another Tunnel", first)
		default:
			return refuse(Conflict, was.Key, "", "%d Peers name it, the first is %s: delete them first, or in the same change, or set their tunnel to another Tunnel", count, first)
		}
	}
	return nil
}

// checkTunnelled rejects a plan in which the bridge of a pod network has the name of a Tunnel's
// device.
func (p *plan) checkTunnelled() error {
	for _, o := range p.puts {
		switch v := o.Value.(type) {
		case *Tunnel:
			for n := range p.each(KindPodNetwork) {
				if device := n.Value.(*PodNetwork).Bridge; v.makes(device) {
					return refuse(Conflict, o.Key, "spec.device", "%s is the bridge of %s: give this one another name", device, n.Key)
				}
			}
		case *PodNetwork:
			for t := range p.each(KindTunnel) {
				if t.Value.(*Tunnel).makes(v.Bridge) {
					return refuse(Conflict, o.Key, "spec.bridge", "%s belongs to %s already: name another device", v.Bridge, t.Key)
				}
			}
		}
	}
	return nil
}

// makes reports whether a device is one end of a Tunnel's link.
func (t *Tunnel) makes(device string) bool {
	return device == t.Device || device == t.Device+datapath.TunnelEndSuffix
}

// Peers returns every Peer with all prefixes behind it, including prefixes from Routes. refused
// contains, by the name of the Route, the reason why a Route to a Peer is ignored. The caller must
// not modify the maps.
func (s *Snapshot) Peers() (peers map[string]datapath.Peer, refused map[string]error) {
	return s.peersOnce()
}

func (s *Snapshot) peers() (peers map[string]datapath.Peer, refused map[string]error) {
	peers, refused = map[string]datapath.Peer{}, map[string]error{}
	for o := range s.After(KindPeer, "") {
		peers[o.Name] = o.Value.(*Peer).Peer
	}
	for o := range s.After(KindRoute, "") {
		r := o.Value.(*Route)
		if r.Peer == "" {
			continue
		}
		peer, ok := peers[r.Peer]
		if !ok {
			refused[o.Name] = fmt.Errorf("the Peer %s: %w", r.Peer, datapath.ErrAbsent)
		} else if err := peer.MayHave(r.Prefix); err != nil {
			refused[o.Name] = fmt.Errorf("%s %w", r.Prefix, err)
		} else {
			peer.Prefixes = append(slices.Clip(peer.Prefixes), r.Prefix)
			peers[r.Peer] = peer
		}
	}
	return peers, refused
}

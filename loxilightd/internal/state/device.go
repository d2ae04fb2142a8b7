// SPDX-License-Identifier: Apache-2.0

package state

import "github.com/loxilight/loxilight/datapath"

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

// NamesDevice reports whether an object refers to a device with the given name, as an existing
// device or as one to create. It considers the current state and the state after a rollback of the
// pending change. It ignores objects that belong to the owner but.
func (s *Store) NamesDevice(device, but string) bool {
	w := s.waiting.Load()
	return s.Snapshot().table.namesDevice(device, but) || w != nil && w.back.namesDevice(device, but)
}

func (t *table) namesDevice(device, but string) bool {
	found := false
	for _, kind := range []string{KindInterface, KindBridge, KindTunnel, KindEndpoint, KindPodNetwork} {
		for o := range t.each(kind) {
			if o.Owner == but {
				continue
			}
			if v, ok := o.Value.(*PodNetwork); ok && v.Bridge == device {
				return true
			}
			o.Value.claims(func(c claim, _ func() string) {
				switch c.what {
				case claimInterface, claimBridged, claimTunnel, claimEndpoint:
					found = found || c.device == device
				}
			})
			if found {
				return true
			}
		}
	}
	return false
}

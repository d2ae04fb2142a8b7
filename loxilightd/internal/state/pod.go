// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/loxilight/loxilight/datapath"
)

// PodNetwork is the spec of a PodNetwork.
type PodNetwork struct {
	Subnets    []netip.Prefix // at most one of each family
	Bridge     string         // device
	MTU        int            // bytes; 0: the largest MTU that the uplinks support
	Masquerade bool
	Except     []netip.Prefix // exceptions from Masquerade, in addition to pods' and peers' prefixes
	// PolicyRequired is set if Endpoints that are no Entity may neither send nor receive.
	PolicyRequired bool
	Resolvers      []netip.Addr // from whose responses names in Policies are learnt
}

// cost returns the cost of the masquerade rules, one for each family.
func (p *PodNetwork) cost() datapath.Cost {
	if !p.Masquerade {
		return datapath.Cost{}
	}
	return datapath.Cost{Rules: len(p.Subnets), NATs: len(p.Subnets)}
}

// claims yields nothing: resources of a PodNetwork also conflict with objects of other kinds; see
// checkPods.
func (*PodNetwork) claims(func(claim, func() string)) {}

// PodNetworks returns the PodNetworks in a snapshot, ordered by name.
func (s *Snapshot) PodNetworks() (list []*Object) {
	for o := range s.After(KindPodNetwork, "") {
		list = append(list, o)
	}
	return list
}

// RequiresEntity reports whether an Endpoint may neither send nor receive while it is no Entity.
func (s *Snapshot) RequiresEntity(e *Endpoint) bool {
	if e.Network != "" {
		o, ok := s.Get(Key{KindPodNetwork, e.Network})
		return ok && o.Value.(*PodNetwork).PolicyRequired
	}
	return slices.ContainsFunc(s.PodNetworks(), func(o *Object) bool { return o.Value.(*PodNetwork).PolicyRequired })
}

// Names of the ports that a node with pod networks has in addition to Interfaces. Object names
// never contain #.
const (
	PodPortHost   datapath.PortName = "pods#host"
	PodPortSwitch datapath.PortName = "pods#switch"
)

// PodPorts returns the ports that a node with pod networks has in addition to Interfaces: the
// ends of the link between host and switch. An Interface on the same device replaces such a port.
func PodPorts(hostDevice, switchDevice string) map[datapath.PortName]datapath.Port {
	return map[datapath.PortName]datapath.Port{
		PodPortSwitch: {Device: switchDevice, Switch: true, Role: datapath.RoleHost},
		PodPortHost:   {Device: hostDevice, Role: datapath.RolePort},
	}
}

// BridgePorts returns the bridge ports of b to which the programs are attached, so that rules
// apply to bridged packets. switchDevice is the switch's end of the link to the host. An
// Interface on the same device replaces such a port.
func BridgePorts(name string, b *Bridge, switchDevice string) map[datapath.PortName]datapath.Port {
	ports := make(map[datapath.PortName]datapath.Port, len(b.Ports))
	for _, p := range b.Ports {
		if p.Device == b.Device {
			continue // the bridge itself, listed to set the VLAN for its addresses
		}
		role := datapath.RolePort
		if p.Device == switchDevice {
			role = datapath.RoleHost
		}
		ports[datapath.PortName(KindBridge+"/"+name+"#"+p.Device)] = datapath.Port{Device: p.Device, Switch: true, Role: role}
	}
	return ports
}

// checkPods rejects a plan in which pod networks conflict with each other or with a Bridge.
func (p *plan) checkPods() error {
	var all, fresh []*Object // pod networks as they will be, and the new or changed ones among them
	for o := range p.edit.from(Key{KindPodNetwork, ""}) {
		if o.Kind != KindPodNetwork {
			break
		}
		all = append(all, o)
	}
	if len(all) == 0 {
		return nil
	}
	for _, o := range p.puts {
		switch o.Value.(type) {
		case *PodNetwork:
			fresh = append(fresh, o)
		case *Bridge:
			if err := checkBridged(o, o, all); err != nil {
				return err
			}
		}
	}
	for _, o := range fresh {
		if err := checkPodNetwork(o, all); err != nil {
			return err
		}
		for b := range p.edit.from(Key{KindBridge, ""}) {
			if b.Kind != KindBridge {
				break
			}
			if err := checkBridged(o, b, []*Object{o}); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkBridged rejects an object, at, because of which a Bridge would use a device that is the
// bridge of one of the pod networks.
func checkBridged(at, bridge *Object, networks []*Object) error {
	b := bridge.Value.(*Bridge)
	for _, n := range networks {
		device := n.Value.(*PodNetwork).Bridge
		field := ""
		if b.Device == device {
			field = "spec.device"
		} else if i := slices.IndexFunc(b.Ports, func(p datapath.BridgePort) bool { return p.Device == device }); i >= 0 {
			field = fmt.Sprintf("spec.ports[%d].device", i)
		}
		switch {
		case field == "":
		case at == bridge:
			return refuse(Conflict, at.Key, field, "%s is the bridge of %s: give this one another name", device, n.Key)
		default:
			return refuse(Conflict, at.Key, "spec.bridge", "%s belongs to %s already: name another device", device, bridge.Key)
		}
	}
	return nil
}

// checkPodNetwork rejects a pod network that conflicts with another pod network.
func checkPodNetwork(o *Object, all []*Object) error {
	v := o.Value.(*PodNetwork)
	for _, other := range all {
		if other.Name == o.Name {
			continue
		}
		w := other.Value.(*PodNetwork)
		for i, subnet := range v.Subnets {
			for _, theirs := range w.Subnets {
				if subnet.Overlaps(theirs) {
					return refuse(Conflict, o.Key, fmt.Sprintf("spec.subnets[%d]", i), "%s overlaps %s of %s: addresses belong to one pod network", subnet, theirs, other.Key)
				}
			}
		}
		if v.Bridge != w.Bridge {
			return refuse(Conflict, o.Key, "spec.bridge", "%s has %s: the pod networks of a node share one bridge, to which the host is attached as well", other.Key, w.Bridge)
		}
		if v.MTU != w.MTU {
			has := "no mtu, so it follows the uplinks"
			if w.MTU != 0 {
				has = strconv.Itoa(w.MTU)
			}
			return refuse(Conflict, o.Key, "spec.mtu", "%s has %s: the pod networks of a node share one bridge, with one MTU", other.Key, has)
		}
	}
	return nil
}

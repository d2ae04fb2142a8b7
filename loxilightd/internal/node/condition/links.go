// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// linkIsDown returns a message that states that a device is down and contains the command that sets
// it up.
func (o *Options) linkIsDown(device string, inSwitch bool) string {
	return fmt.Sprintf("device %q is down: run %s set %s up", device, o.ipLink(inSwitch), device)
}

// ipLink returns the "ip link" command for the host or the switch.
func (o *Options) ipLink(inSwitch bool) string {
	if namespace := o.SwitchNamespace; inSwitch && namespace != "" {
		return "ip -n " + namespace + " link"
	}
	return "ip link"
}

// noCarrier returns a message that states that a device has no carrier, which no command on this
// end can change.
func noCarrier(device string) string {
	return fmt.Sprintf("device %q has no carrier: check its cable, or the other end of the link", device)
}

// hopIsLost returns why packets cannot be sent to a next hop; empty: packets can be sent, or
// nothing is known.
func (o *Options) hopIsLost(is datapath.HopState, inSwitch bool) string {
	switch {
	case is.Link == datapath.LinkDown:
		return o.linkIsDown(is.Device, inSwitch)
	case is.Err != nil:
		return is.Err.Error()
	case is.Link == datapath.LinkNoCarrier:
		return noCarrier(is.Device)
	}
	return ""
}

// linkOf returns the link state of a device, and the device that causes it: a VLAN device has no
// carrier while its parent device is down.
func (w *world) linkOf(device string, inSwitch bool) datapath.HopState {
	found := w.found[netnsOf(inSwitch && w.isSplit())]
	d := found[device]
	for range len(found) {
		parent, ok := found[d.Parent]
		if !ok || d.Parent == "" || d.Link != datapath.LinkNoCarrier || parent.Link == datapath.LinkUp {
			break
		}
		device, d = d.Parent, parent
	}
	return datapath.HopState{Device: device, Link: d.Link}
}

// notBridged returns a condition if a bridge drops the frames of a port that has a link, because
// another program set the port's spanning tree state.
func (w *world) notBridged(device string, inSwitch bool) condition {
	netns := netnsOf(inSwitch && w.isSplit())
	d := w.found[netns][device]
	if d.Link != datapath.LinkUp || !d.Bridging.IsOff() {
		return condition{}
	}
	command := "bridge link"
	if namespace := w.opts.SwitchNamespace; netns == 1 && namespace != "" {
		command = "bridge -n " + namespace + " link"
	}
	return condition{message: fmt.Sprintf(
		"the bridge drops the frames of port %q, because the spanning tree state of the port is %s: run %s set dev %s state 3",
		device, d.Bridging, command, device)}
}

// linkInSwitch returns the link state of a device in the switch, if the programs are attached to
// it.
func (w *world) linkInSwitch(device string) (datapath.LinkState, bool) {
	for _, a := range w.devices[device] {
		if !a.inSwitch && w.opts.HostDevice != "" || a.port == "" {
			continue
		}
		if is, ok := w.opts.Telemetry.PortState(a.port); ok && is.Index != 0 {
			return is.Link, true
		}
	}
	return 0, false
}

// ofBridgeLinks returns a condition for the first port that is down or blocked, or else a condition
// for the ports without carrier. A condition for ports without carrier is unmet only if no port has
// a carrier, so that nothing is bridged.
func (w *world) ofBridgeLinks(ports map[datapath.PortName]datapath.Port) condition {
	var silent []string
	count := 0
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		device := ports[name].Device
		is, known := w.linkInSwitch(device)
		switch {
		case !known:
			continue
		case is == datapath.LinkDown:
			return condition{message: w.opts.linkIsDown(device, true)}
		case is == datapath.LinkNoCarrier:
			silent = append(silent, device)
		default:
			if blocked := w.notBridged(device, true); blocked.message != "" {
				return blocked
			}
		}
		count++
	}
	if len(silent) == 0 {
		return condition{}
	}
	return condition{ready: len(silent) < count, quiet: true, message: fmt.Sprintf(
		"no packet passes %s without a carrier: check the cable, or the other end of the link", strings.Join(silent, ", "))}
}

// ofEndpoint returns a condition unless the pod's link is up. If the link is only opened once the
// Endpoint is Ready, a missing carrier is merely informational until then.
func (w *world) ofEndpoint(name string, v *state.Endpoint) condition {
	if w.opts.Denied != nil {
		if is := w.ofUnknown(name, v); !is.isMet() {
			return is
		}
	}
	is, ok := w.opts.Telemetry.PortState(datapath.EndpointName(name).Port())
	if !ok || is.Index == 0 {
		return condition{}
	}
	switch is.Link {
	case datapath.LinkDown:
		return condition{message: w.opts.linkIsDown(is.Device, true), quiet: true}
	case datapath.LinkNoCarrier:
		opening := w.opts.Opening != nil && w.opts.Opening(name)
		return condition{ready: opening, quiet: true, message: fmt.Sprintf(
			"device %q has no carrier: set the pod's end of the link up (ip link set DEVICE up in its network namespace)", is.Device)}
	}
	blocked := w.notBridged(cmp.Or(is.RuleName, is.Device), true)
	blocked.quiet = true
	return blocked
}

// ofUnknown returns a condition for an Endpoint without the Entity that its network requires.
func (w *world) ofUnknown(name string, v *state.Endpoint) condition {
	desired, inForce := w.opts.Denied(name)
	traffic := "is dropped"
	switch {
	case !desired && !inForce:
		return condition{}
	case !desired:
		return condition{untried: true, quiet: true, message: "its Entity is not in force yet"}
	case !inForce:
		traffic = "is about to be dropped"
	}
	who, client := "it", "create one"
	if v.Pod != "" {
		who, client = "pod "+v.PodName(), "loxilight-agent has not configured it; see llcli doctor"
	}
	return condition{quiet: true, message: fmt.Sprintf("all its traffic %s: no Entity names %s, and its PodNetwork requires one: %s", traffic, who, client)}
}

// ofPeer returns a condition unless the Peer is reachable and packets to it are forwarded.
func (w *world) ofPeer(name string, v *state.Peer) condition {
	reach := w.reach.problems["Peer/"+name]
	if !reach.isMet() {
		return reach
	}
	var families [2]bool
	inSwitch := v.Tunnel != "" && w.opts.HostDevice != ""
	for _, p := range v.Prefixes {
		family := familyOf(p.Addr())
		families[family] = inSwitch || w.gateway()[family]
	}
	is := w.forwardingOff(netnsOf(inSwitch), families, nil)
	if is.message == "" {
		is = w.notReceived(name, v)
	}
	if is.message != "" {
		return is
	}
	return reach
}

// notReceived returns a condition if tunnel packets from a Peer arrive on a device without the
// programs, so that they are not decapsulated.
func (w *world) notReceived(name string, v *state.Peer) condition {
	p, ok := w.opts.Telemetry.PeerState(datapath.PeerName(name))
	if v.Tunnel == "" || !ok || !p.Underlay.IsValid() {
		return condition{}
	}
	device := w.ways.to(p.Underlay, false).Device
	if device == "" || w.found[0] == nil || w.isCovered(device, 0) {
		return condition{}
	}
	return condition{message: fmt.Sprintf(
		"tunnel packets of the Peer arrive on device %q, to which no Interface attaches: %s", device, w.addCommand(device, 0))}
}

// ofTunnel returns a condition if the Tunnel has Peers and none of them is reachable.
func (w *world) ofTunnel(name string) condition {
	var first condition
	for o := range w.opts.Store.Snapshot().After(state.KindPeer, "") {
		v := o.Value.(*state.Peer)
		if string(v.Tunnel) != name {
			continue
		}
		is := w.ofPeer(o.Name, v)
		if s, ok := w.opts.PeerStatus(datapath.PeerName(o.Name)); !ok || s.State != reconcile.Done {
			is = condition{message: s.Message, untried: !ok || s.IsUntried()}
		}
		if is.isMet() && !is.untried {
			return condition{}
		}
		if first.message == "" {
			first = condition{message: fmt.Sprintf("no Peer behind it is Ready; %s: %s", o.Key, is.message), untried: is.untried}
		}
	}
	return first
}

// ofGroups returns a condition if a match refers only to groups without members, so that the match
// applies to no packet.
func (w *world) ofGroups(m *datapath.Match) condition {
	s := w.opts.Store.Snapshot()
	for _, side := range []struct {
		groups []datapath.GroupName
		others int
	}{{m.SourceGroups, len(m.Source)}, {m.DestinationGroups, len(m.Destination)}} {
		empty := func(g datapath.GroupName) bool {
			if g == datapath.LocalGroup {
				return len(w.opts.Telemetry.LocalAddrs()) == 0
			}
			return !hasMembers(s, g, map[datapath.GroupName]bool{})
		}
		if len(side.groups) == 0 || side.others > 0 || !allOf(side.groups, empty) {
			continue
		}
		what := "AddressGroup/" + string(side.groups[0]) + " has no members"
		if side.groups[0] == datapath.LocalGroup {
			what = "the node has no address (local)"
		}
		return condition{ready: true, quiet: true, message: "matches no packet, because " + what}
	}
	return condition{}
}

func allOf[T any](list []T, is func(T) bool) bool {
	return !slices.ContainsFunc(list, func(v T) bool { return !is(v) })
}

// ofGroup returns a condition if a group currently has no members. Rules that name it are in force
// nevertheless.
func (w *world) ofGroup(name datapath.GroupName) condition {
	s := w.opts.Store.Snapshot()
	if hasMembers(s, name, map[datapath.GroupName]bool{}) {
		return condition{}
	}
	message := "has no members, so rules that name it alone match no packet: add addresses to spec.members"
	if o, ok := s.Get(state.Key{Kind: state.KindAddressGroup, Name: string(name)}); ok && len(o.Value.(*state.AddressGroup).Labels) > 0 {
		message = "no Endpoint has its labels, so rules that name it alone match no packet: see llcli get endpoints -o wide"
	}
	return condition{ready: true, quiet: true, message: message}
}

// hasMembers reports whether a group, or one of the groups in it, has an address.
func hasMembers(s *state.Snapshot, name datapath.GroupName, seen map[datapath.GroupName]bool) bool {
	o, ok := s.Get(state.Key{Kind: state.KindAddressGroup, Name: string(name)})
	if !ok || seen[name] {
		return false
	}
	seen[name] = true
	v := o.Value.(*state.AddressGroup)
	if len(v.Prefixes) > 0 {
		return true
	}
	if len(v.Labels) > 0 {
		for e := range s.After(state.KindEndpoint, "") {
			if slices.ContainsFunc(v.Labels, e.Value.(*state.Endpoint).Has) {
				return true
			}
		}
	}
	return slices.ContainsFunc(v.Groups, func(within datapath.GroupName) bool { return hasMembers(s, within, seen) })
}

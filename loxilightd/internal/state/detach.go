// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/listing"
)

// maxWarnings limits the number of warnings about one change.
const maxWarnings = 20

// maxNamed limits how many objects are named in a message.
const maxNamed = 5

// maxUnderlays limits the number of Peers with a Tunnel for which the device towards the Peer is
// looked up.
const maxUnderlays = 256

// Observed is what a transaction needs to know about the node. A field is nil if the information is
// not available.
type Observed struct {
	// DeviceOf returns the device of an Interface that selects it by address.
	DeviceOf func(name string) string
	// IsAttached reports whether the programs are attached to the device of an Interface.
	IsAttached func(name string) bool
	// DeviceTo returns the device of the host through which packets to an address egress.
	DeviceTo func(a netip.Addr) string
	// Devices returns the devices of the host.
	Devices func() map[string]datapath.Device
}

// place is a device in one network namespace.
type place struct {
	device   string
	inSwitch bool
}

// detached is a device from which a change removes the programs.
type detached struct {
	place
	was *Object // the Interface that attached them
}

func isInterface(o *Object) bool { return o.Kind == KindInterface && !o.isOpaque() }

// checkDetached rejects the removal of an Interface from a device that other objects need: packets
// on the device would bypass rules, Services would accept no connections, and tunnels would receive
// nothing. With Force, in a rollback and for object files, the change is made, with warnings.
func (p *plan) checkDetached(t *Transaction) error {
	i := slices.IndexFunc(p.replaced, isInterface)
	if i < 0 {
		return nil
	}
	u := &detachCheck{plan: p, t: t, after: p.attached(t, p.each)}
	for _, was := range p.replaced {
		if !isInterface(was) {
			continue
		}
		if err := u.checkAnnounced(was); err != nil {
			return err
		}
		d := detached{p.placeOf(was, t), was}
		if d.device == "" || u.after[d.place] || u.isCorrected(d) {
			continue
		}
		for _, check := range []func(detached) error{u.checkRules, u.checkServices, u.checkUnderlays} {
			if err := check(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// detachCheck checks the consequences of a plan that removes programs from devices.
type detachCheck struct {
	*plan
	t *Transaction

	after     map[place]bool // devices to which objects attach the programs after the change
	before    map[place]bool // the same before the change; read by checkUnderlays
	underlays map[Key]string // the device towards each Peer; read by checkUnderlays
	noneLeft  bool           // it has been reported that no Interface is left
}

// refuse rejects the change; would is the error text, which states the consequence of the change.
// If the change is made nevertheless, refuse adds a warning instead, whose text is happens.
func (u *detachCheck) refuse(was *Object, would, happens string) error {
	if u.t.Force || u.t.isRollback || u.t.Owner == OwnerFile {
		u.warn("%s: %s", was.Key, happens)
		return nil
	}
	return refuse(Conflict, was.Key, "", "%s, or use force (llcli: --force)", would)
}

// isCorrected reports whether the Interface had not found its device, and now names the network
// namespace that contains the device.
func (u *detachCheck) isCorrected(d detached) bool {
	other := place{d.device, !d.inSwitch}
	return u.after[other] && u.t.Observed.IsAttached != nil && !u.t.Observed.IsAttached(d.was.Name)
}

// checkRules rejects detaching a device that rules name, and otherwise warns that FirewallRules no
// longer apply to it.
func (u *detachCheck) checkRules(d detached) error {
	count, first := 0, Key{}
	for _, kind := range []string{KindFirewallRule, KindNAT} {
		for o := range u.each(kind) {
			if !namesDevice(o, d.device) {
				continue
			}
			if count++; count == 1 {
				first = o.Key
			}
		}
	}
	what := fmt.Sprintf("%s names its device %q", first, d.device)
	if count > 1 {
		what = fmt.Sprintf("%d rules name its device %q, the first is %s", count, d.device, first)
	}
	switch {
	case count > 0:
		return u.refuse(d.was,
			what+", but its packets would no longer match: delete or change the rules first",
			fmt.Sprintf("%s, but packets of %s no longer match: they are not filtered or translated", what, d.device))
	case u.counts[KindFirewallRule] > 0:
		u.warn("%s: FirewallRules no longer apply to device %q", d.was.Key, d.device)
	}
	return nil
}

// checkServices rejects a change that would leave Services without any Interface, and otherwise
// warns: the device may have been one of several on which connections arrive.
func (u *detachCheck) checkServices(d detached) error {
	services := u.named(KindService, func(*Object) bool { return true })
	switch {
	case services == "" || u.noneLeft:
	case u.counts[KindInterface] == 0:
		u.noneLeft = true
		return u.refuse(d.was,
			services+" would accept no connection from other hosts, because no Interface is left: delete the Services first",
			services+": connections from other hosts are no longer accepted, because no Interface is left")
	default:
		u.warn("%s: %s: connections that arrive on device %q are no longer accepted", d.was.Key, services, d.device)
	}
	return nil
}

// checkAnnounced rejects removing the last Interface that announces Services' addresses.
func (u *detachCheck) checkAnnounced(was *Object) error {
	isUplink := func(o *Object) bool { return o.Value.(*Interface).Role == datapath.RoleUplink }
	if !isUplink(was) || u.counts[KindInterface] == 0 { // see checkServices
		return nil
	}
	for o := range u.each(KindInterface) {
		if isUplink(o) {
			return nil
		}
	}
	announced := u.named(KindService, func(o *Object) bool { return o.Value.(*Service).Announce })
	if announced == "" {
		return nil
	}
	return u.refuse(was,
		announced+" would not be announced, because no Interface of role uplink is left: add one first",
		announced+": no address is announced from now on, because no Interface of role uplink is left")
}

// checkUnderlays rejects removing the programs from a device on which tunnel packets arrive.
func (u *detachCheck) checkUnderlays(d detached) error {
	known := &u.t.Observed
	if d.inSwitch && !u.merged || known.DeviceTo == nil || known.Devices == nil {
		return nil
	}
	if u.underlays == nil {
		u.readUnderlays()
	}
	if len(u.underlays) == 0 {
		return nil
	}
	devices := known.Devices()
	covered := func(device string, by map[place]bool) bool {
		return datapath.Covered(devices, device, func(device string) bool { return by[place{device, false}] })
	}
	peers := u.named(KindPeer, func(o *Object) bool {
		device := u.underlays[o.Key]
		return device != "" && covered(device, u.before) && !covered(device, u.after)
	})
	if peers == "" {
		return nil
	}
	return u.refuse(d.was,
		fmt.Sprintf("tunnel packets of %s arrive on its device %q, and would not be received: delete the Peers first", peers, d.device),
		fmt.Sprintf("tunnel packets of %s arrive on its device %q, and are no longer received", peers, d.device))
}

// readUnderlays looks up the devices towards Peers that have a Tunnel.
func (u *detachCheck) readUnderlays() {
	u.before = u.attached(u.t, func(kind string) iter.Seq[*Object] { return u.base.After(kind, "") })
	u.underlays = map[Key]string{}
	for o := range u.each(KindPeer) {
		v := o.Value.(*Peer)
		if v.Tunnel == "" || len(v.Underlay) == 0 {
			continue
		}
		if len(u.underlays) >= maxUnderlays {
			return
		}
		u.underlays[o.Key] = u.t.Observed.DeviceTo(v.Underlay[0])
	}
}

// named returns the names of some of the objects of a kind, and how many more there are. It returns
// an empty string if there are no such objects.
func (p *plan) named(kind string, is func(*Object) bool) string {
	var names []string
	for o := range p.each(kind) {
		if is(o) {
			names = append(names, o.String())
		}
	}
	return listing.First(names, maxNamed)
}

func (p *plan) warn(format string, args ...any) {
	if len(p.warnings) < maxWarnings {
		p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
	}
}

// placeOf returns the device to which an Interface attaches the programs; if the place has no name,
// the device is unknown.
func (p *plan) placeOf(o *Object, t *Transaction) place {
	v := o.Value.(*Interface)
	device := v.Device
	if v.Address.IsValid() && t.Observed.DeviceOf != nil {
		device = t.Observed.DeviceOf(o.Name)
	}
	return p.place(device, v.Switch)
}

// place returns the place of a device. If host and switch are the same network namespace, every
// device counts as a device of the host.
func (p *plan) place(device string, inSwitch bool) place {
	return place{device, inSwitch && !p.merged}
}

// attached returns the devices to which objects attach the programs.
func (p *plan) attached(t *Transaction, each func(kind string) iter.Seq[*Object]) map[place]bool {
	all := map[place]bool{}
	for o := range each(KindInterface) {
		all[p.placeOf(o, t)] = true
	}
	for o := range each(KindEndpoint) {
		all[p.place(o.Value.(*Endpoint).Device, true)] = true
	}
	for o := range each(KindBridge) {
		for _, port := range o.Value.(*Bridge).Ports {
			all[p.place(port.Device, true)] = true
		}
	}
	return all
}

// namesDevice reports whether a rule names a device.
func namesDevice(o *Object, device string) bool {
	var m *datapath.Match
	switch v := o.Value.(type) {
	case *FirewallRule:
		m = &v.Match
	case *NAT:
		m = &v.Match
	default:
		return false
	}
	return slices.Contains(m.In, device) || slices.Contains(m.Out, device)
}

// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"iter"
	"strings"

	"github.com/loxilight/loxilight/datapath"
)

// Mirror is the spec of a Mirror. [Mirror.Resolve] sets Port, Service, Rule and To.Switch, because
// they depend on other objects.
type Mirror struct {
	datapath.Mirror
	Source      Key    // the object whose packets are copied
	SourceField string // the field of spec.source that names it
	HasNetns    bool   // To.Switch is configured
}

func (*Mirror) cost() datapath.Cost               { return datapath.Cost{} }
func (*Mirror) claims(func(claim, func() string)) {}

// MirrorFault is the reason why nothing can be copied as a Mirror desires.
type MirrorFault struct {
	With     Key    // the other object
	Field    string // of the Mirror
	Text     string
	Conflict bool // not resolved by creating or changing With alone
}

// Error implements the error interface.
func (f *MirrorFault) Error() string { return f.Text }

// Is reports whether target is [datapath.ErrAbsent]: the Mirror is pending until With is created or
// changed.
func (f *MirrorFault) Is(target error) bool { return target == datapath.ErrAbsent && !f.Conflict }

// Needs returns the objects to which a Mirror refers directly: the source, and the Peer if there is
// one.
func (m *Mirror) Needs() []Key {
	if m.To.Peer == "" {
		return []Key{m.Source}
	}
	return []Key{m.Source, {KindPeer, string(m.To.Peer)}}
}

// objects are the objects of one state.
type objects interface {
	get(k Key) *Object
	each(kind string) iter.Seq[*Object]
}

// Resolve returns the row of a Mirror, with everything that depends on other objects. merged is
// whether host and switch are the same network namespace.
func (s *Snapshot) Resolve(m *Mirror, merged bool) (datapath.Mirror, *MirrorFault) {
	return m.resolve(s.table, merged)
}

func (m *Mirror) resolve(all objects, merged bool) (datapath.Mirror, *MirrorFault) {
	r := m.Mirror
	source := all.get(m.Source)
	if source == nil {
		return r, missing(m.Source, "spec.source."+m.SourceField)
	}
	var from *place // of the source; nil: packets are copied on several devices
	switch v := source.Value.(type) {
	case *Interface:
		r.Port, from = datapath.PortName(m.Source.Name), &place{v.Device, v.Switch}
	case *Endpoint:
		r.Port, from = datapath.EndpointName(m.Source.Name).Port(), &place{v.Device, true}
	case *Service:
		r.Service = datapath.ServiceName(m.Source.Name)
	case *FirewallRule:
		r.Rule = datapath.RuleName(m.Source.Name)
		if v.Action != datapath.ActionAllow || v.Stateless {
			return r, &MirrorFault{With: m.Source, Field: "spec.source.rule", Text: fmt.Sprintf(
				"%s allows no connections whose packets could be copied: name a stateful rule with action allow, or an Interface with a match", m.Source)}
		}
	}
	if m.To.Peer != "" {
		return r, m.checkPeer(all)
	}
	return r, m.resolveDevice(&r, from, all, merged)
}

// missing returns the fault that an object does not exist.
func missing(k Key, field string) *MirrorFault {
	return &MirrorFault{With: k, Field: field, Text: fmt.Sprintf(
		"%s does not exist: create it (llcli %s add %s), or change %s", k, strings.ToLower(k.Kind), k.Name, field)}
}

// checkPeer checks the Peer that receives the copies, its Tunnel, and that no Tunnel has the VNI of
// the copies: its packets could not be told apart from them.
func (m *Mirror) checkPeer(all objects) *MirrorFault {
	k := Key{KindPeer, string(m.To.Peer)}
	peer := all.get(k)
	if peer == nil {
		return missing(k, "spec.to.peer")
	}
	tunnel := Key{KindTunnel, string(peer.Value.(*Peer).Tunnel)}
	switch {
	case tunnel.Name == "":
		return &MirrorFault{With: k, Field: "spec.to.peer", Text: fmt.Sprintf(
			"%s has no Tunnel, through which copies could be sent: set one (llcli peer set %s --tunnel NAME)", k, k.Name)}
	case all.get(tunnel) == nil:
		return missing(tunnel, "the tunnel of "+k.String())
	}
	for o := range all.each(KindTunnel) {
		if o.Value.(*Tunnel).VNI == m.To.VNI {
			return &MirrorFault{With: o.Key, Field: "spec.to.vni", Conflict: true, Text: fmt.Sprintf(
				"%d is the VNI of %s, so the Peer could not distinguish copies from its packets: choose another VNI", m.To.VNI, o.Key)}
		}
	}
	return nil
}

// resolveDevice sets the network namespace of the target device, and checks that the device is not
// the one on which packets are copied, nor the device of a Tunnel.
func (m *Mirror) resolveDevice(r *datapath.Mirror, from *place, all objects, merged bool) *MirrorFault {
	const field = "spec.to.device"
	if from != nil && !m.HasNetns {
		r.To.Switch = from.inSwitch
	}
	if merged {
		r.To.Switch = false
	}
	if from != nil && !merged && from.inSwitch != r.To.Switch {
		netns := claim{inSwitch: from.inSwitch}.netns()
		return &MirrorFault{With: m.Source, Field: "spec.to.netns", Conflict: true, Text: fmt.Sprintf(
			"the device of %s is in the network namespace of the %s, which copies cannot leave: set spec.to.netns to %[2]s, or omit it", m.Source, netns)}
	}
	if from != nil && from.device == m.To.Device {
		return &MirrorFault{With: m.Source, Field: field, Conflict: true, Text: fmt.Sprintf(
			"%s is the device of %s, whose packets are copied: name another device", m.To.Device, m.Source)}
	}
	if !merged && !r.To.Switch {
		return nil
	}
	for o := range all.each(KindTunnel) {
		if o.Value.(*Tunnel).makes(m.To.Device) {
			return &MirrorFault{With: o.Key, Field: field, Conflict: true, Text: fmt.Sprintf(
				"%s is the device of %s, which does not carry copies: name a Peer of the Tunnel in spec.to.peer instead", m.To.Device, o.Key)}
		}
	}
	return nil
}

// checkMirrors rejects Mirrors in conflict with other objects, and other objects in conflict with
// Mirrors, unless they have an unattended owner. A rollback is not rejected either: the status of
// the Mirror states the conflict. A Mirror may name objects that do not exist yet.
func (p *plan) checkMirrors() error {
	if p.isRollback || p.counts[KindMirror] == 0 {
		return nil
	}
	put := map[Key]bool{}
	for _, o := range p.puts {
		put[o.Key] = true
	}
	for o := range p.each(KindMirror) {
		m := o.Value.(*Mirror)
		_, fault := m.resolve(p.edit, p.merged)
		switch {
		case fault == nil:
		case fault.Conflict && put[o.Key]:
			return refuse(Conflict, o.Key, fault.Field, "%s", fault.Text)
		case fault.Conflict && put[fault.With] && isUnattended(p.edit.get(fault.With)):
			p.warn("%s: no longer copies anything: %s", o.Key, fault.Text)
		case fault.Conflict && put[fault.With]:
			return refuse(Conflict, fault.With, "", "%s would stop copying (%s): %s; change or delete it first, or in the same change", o.Key, fault.Field, fault.Text)
		case p.isDropped(fault.With):
			p.warn("%s: no longer copies anything, because %s is deleted", o.Key, fault.With)
		}
	}
	return nil
}

// isUnattended reports whether no user is there to resolve a conflict of an object with a Mirror.
func isUnattended(o *Object) bool {
	return o != nil && (o.Owner == OwnerFile || o.Owner == OwnerK8s || o.Owner == OwnerCNI)
}

// lastPut returns the last object of a kind that the plan puts.
func (p *plan) lastPut(kind string) (last Key) {
	for _, o := range p.puts {
		if o.Kind == kind {
			last = o.Key
		}
	}
	return last
}

// isDropped reports whether the plan deletes an object.
func (p *plan) isDropped(k Key) bool {
	for _, o := range p.dropped {
		if o.Key == k {
			return p.edit.find(k) == nil
		}
	}
	return false
}

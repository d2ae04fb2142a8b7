// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// mirrorTable is the table of mirrors. It derives each row from all of the objects that the Mirror
// needs, as they are at the moment. While one of them does not exist or conflicts with the Mirror,
// nothing is copied.
type mirrorTable struct {
	datapath.Table[datapath.MirrorName, datapath.Mirror]
	n       *Node
	applied map[datapath.MirrorName]datapath.Mirror // the rows that were last written
}

func (n *Node) mirrorTable() mirrorTable {
	return mirrorTable{n.opts.Plane.Mirrors(), n, map[datapath.MirrorName]datapath.Mirror{}}
}

// Update implements [datapath.Table].
func (t mirrorTable) Update(ctx context.Context, name datapath.MirrorName, _ datapath.Mirror) error {
	m, err := t.n.mirror(name)
	if errors.Is(err, errDeleted) {
		return t.Delete(ctx, name)
	}
	if err != nil {
		return errors.Join(err, t.Delete(ctx, name)) // the packets of an earlier row are no longer desired
	}
	delete(t.applied, name)
	if err := t.Table.Update(ctx, name, m); err != nil {
		return err
	}
	t.applied[name] = m
	return nil
}

// Delete implements [datapath.Table].
func (t mirrorTable) Delete(ctx context.Context, name datapath.MirrorName) error {
	delete(t.applied, name)
	return t.Table.Delete(ctx, name)
}

// Verify implements [datapath.Table].
func (t mirrorTable) Verify(ctx context.Context, name datapath.MirrorName) (bool, error) {
	m, err := t.n.mirror(name)
	if errors.Is(err, errDeleted) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", datapath.ErrOutdated, err)
	}
	if !reflect.DeepEqual(m, t.applied[name]) {
		return false, datapath.ErrOutdated
	}
	return t.Table.Verify(ctx, name)
}

// errDeleted means that a Mirror is no longer desired. The deletion of its row follows.
var errDeleted = errors.New("deleted")

// mirror returns the desired row of a Mirror, or why nothing can be copied.
func (n *Node) mirror(name datapath.MirrorName) (datapath.Mirror, error) {
	s := n.opts.Store.Snapshot()
	o, ok := s.Get(state.Key{Kind: state.KindMirror, Name: string(name)})
	if !ok {
		return datapath.Mirror{}, errDeleted
	}
	m, fault := s.Resolve(o.Value.(*state.Mirror), !n.isSplit())
	if fault != nil {
		return m, fault
	}
	if m.To.Device == "" {
		return m, nil
	}
	if d := n.opts.Devices; m.To.Device == map[bool]string{false: d.Host, true: d.Switch}[m.To.Switch] {
		return m, fmt.Errorf("%s is the link between host and switch, which would forward the copies: name another device in spec.to.device", m.To.Device)
	}
	// The device of an Interface that is selected by its address is not known to the store.
	if is, ok := n.opts.Plane.Telemetry().PortState(m.Port); ok && m.Port != "" && is.Device == m.To.Device {
		return m, fmt.Errorf("%s is the device whose packets are copied: name another device in spec.to.device", m.To.Device)
	}
	return m, nil
}

// isSplit reports whether host and switch are different network namespaces.
func (n *Node) isSplit() bool { return n.opts.Devices.Host != "" }

// withMirrors adds to the changed objects the Mirrors that depend on them, unless they are in force
// and their rows stay the same.
func (n *Node) withMirrors(s *state.Snapshot, changed []state.Key) []state.Key {
	isTunnel := func(k state.Key) bool { return k.Kind == state.KindTunnel }
	tunnels, all := slices.ContainsFunc(changed, isTunnel), slices.Clip(changed)
	for _, k := range changed {
		if k.Kind == state.KindMirror {
			delete(n.mirrored, datapath.MirrorName(k.Name)) // it may no longer exist
		}
	}
	for o := range s.After(state.KindMirror, "") {
		m := o.Value.(*state.Mirror)
		isOwn := slices.Contains(changed, o.Key)
		if !isOwn && !tunnels && !slices.ContainsFunc(m.Needs(), func(k state.Key) bool { return slices.Contains(changed, k) }) {
			continue
		}
		name := datapath.MirrorName(o.Name)
		row, err := n.mirror(name)
		before, known := n.mirrored[name]
		n.mirrored[name] = row
		is, _ := n.mirrors.Status(name)
		if !isOwn && (err != nil || !known || is.State != reconcile.Done || !reflect.DeepEqual(before, row)) {
			all = append(all, o.Key)
		}
	}
	return all
}

// waitSources waits until an attempt has been made to apply the Services and rules that the Mirrors
// among the changed objects need. The objects of other kinds have been waited for before.
func (n *Node) waitSources(ctx context.Context, s *state.Snapshot, changed []state.Key) {
	var services []datapath.ServiceName
	rules := false
	for _, k := range changed {
		o, ok := s.Get(k)
		if !ok || k.Kind != state.KindMirror {
			continue
		}
		switch source := o.Value.(*state.Mirror).Source; source.Kind {
		case state.KindService:
			services = append(services, datapath.ServiceName(source.Name))
		case state.KindFirewallRule:
			rules = true
		}
	}
	if len(services) > 0 {
		_ = n.services.WaitTried(ctx, services...) // after a timeout, the Mirrors are retried
	}
	if rules {
		_ = n.firewall.WaitTried(ctx, datapath.NodeSet) // as above
	}
}

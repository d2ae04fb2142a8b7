// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// build returns the mirror that a specification describes, without a slot.
func (t *Table) build(name datapath.MirrorName, spec *datapath.Mirror) (*mirror, error) {
	m := &mirror{spec: *spec, configured: true, sources: map[Key]Directions{}, targets: map[Key]bool{}}
	if err := encodeMatch(&m.entry, &spec.Match); err != nil {
		return nil, err
	}
	m.entry.LenBytes = uint32(spec.Length)
	if err := t.findTarget(m); err != nil {
		return nil, err
	}
	if err := t.findSources(m); err != nil {
		return nil, err
	}
	return m, t.checkLoops(name, m)
}

// findTarget fills in where copies are sent.
func (t *Table) findTarget(m *mirror) error {
	to := &m.spec.To
	if to.Peer != "" {
		return t.findPeer(m)
	}
	d, err := t.host.Target(to.Device, to.Switch)
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	m.entry.Target[d.Netns&1] = d.Ifindex
	m.targets[d.Key] = true
	return nil
}

// findPeer fills in how copies are sent to a peer.
func (t *Table) findPeer(m *mirror) error {
	to := &m.spec.To
	index, peer, by, err := t.host.Peer(to.Peer)
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	gre := peer.Type == kernel.TunnelTypeTUNNEL_GRE
	if !gre && to.VNI >= 1<<24 {
		return fmt.Errorf("target: VNI %d has more than 24 bits: choose one below 16777216: %w", to.VNI, datapath.ErrUnsupported)
	}
	m.entry.Peer = index
	m.entry.HeaderLen = uint32(copy(m.entry.Header[:], overlay.MirrorHeader(&peer, to.VNI)))
	if !gre {
		m.entry.Flags |= kernel.MirrorUDP
	}
	if !peer.Remote.Addr().Is4() {
		m.entry.Flags |= kernel.MirrorIPv6
	}
	if peer.LinkSwitchIfindex != 0 {
		m.crossing = Key{Ifindex: peer.LinkHostIfindex, Netns: hook.Host}
	}
	for netns, device := range by {
		if device != (Key{}) {
			m.entry.Target[netns] = device.Ifindex
			m.targets[device] = true
		}
	}
	return nil
}

// findSources fills in where copies are taken.
func (t *Table) findSources(m *mirror) error {
	in, out := m.spec.Direction&datapath.MirrorIn != 0, m.spec.Direction&datapath.MirrorOut != 0
	if m.spec.Port != "" {
		d, err := t.host.Port(m.spec.Port)
		if err != nil {
			return err
		}
		if m.entry.Target[d.Netns&1] == 0 {
			return fmt.Errorf("device %q of port %q is in a different network namespace than the target %s: choose a target in the same namespace: %w",
				d.Name, m.spec.Port, targetText(&m.spec.To), datapath.ErrUnsupported)
		}
		m.sources[d.Key] = Directions{In: in, Out: out}
		return nil
	}
	var ok bool
	if m.spec.Service != "" {
		m.entry.Flags |= kernel.MirrorService
		if m.entry.Id, ok = t.host.Service(m.spec.Service); !ok {
			return datapath.Absentf("service %q does not exist", m.spec.Service)
		}
	} else {
		m.entry.Flags |= kernel.MirrorRule
		if m.entry.Id, ok = t.host.Rule(m.spec.Rule); !ok {
			return datapath.Absentf("firewall rule %q does not exist", m.spec.Rule)
		}
	}
	if in {
		m.entry.Flags |= kernel.MirrorIn
	}
	if out {
		m.entry.Flags |= kernel.MirrorOut
	}
	// On ports in another netns than the target, no copies can be taken. What arrives on the link of a
	// Tunnel has arrived on another port before.
	inBoth := m.entry.Target[hook.Host] != 0 && m.entry.Target[hook.Switch] != 0
	for _, d := range t.host.Ports() {
		if m.entry.Target[d.Netns&1] != 0 {
			m.sources[d.Key] = Directions{Conn: !d.IsTunnel, Sent: true, Rule: m.spec.Rule != "", Crossed: inBoth && d.IsLink}
		}
	}
	return nil
}

// targetText describes a target in messages.
func targetText(to *datapath.MirrorTarget) string {
	if to.Peer != "" {
		return fmt.Sprintf("peer %q", to.Peer)
	}
	return fmt.Sprintf("device %q", to.Device)
}

// checkLoops returns an error if a copy could be copied again: if the ports and targets of mirrors,
// and the other ends of targets that are veths, form a circle.
func (t *Table) checkLoops(name datapath.MirrorName, m *mirror) error {
	if m.entry.Peer != 0 {
		return nil // copies leave the node
	}
	all := map[datapath.MirrorName]*mirror{name: m}
	for other, o := range t.byName {
		if other != name && o.entry.Peer == 0 {
			all[other] = o
		}
	}
	from := map[Key]bool{}
	for device := range m.targets {
		from[device] = true
	}
	for grown := true; grown; { // all devices that a copy of m may reach
		grown = false
		reach := func(device Key) {
			if !from[device] {
				from[device], grown = true, true
			}
		}
		for device := range from {
			if wire := t.host.Wire(device); wire != (Key{}) {
				reach(wire)
			}
		}
		for _, o := range all {
			for source := range o.sources {
				if from[source] {
					for target := range o.targets {
						reach(target)
					}
				}
			}
		}
	}
	for source := range m.sources {
		if from[source] {
			return fmt.Errorf("its copies would return to device %q, whose packets are copied: choose a target other than %s: %w",
				t.host.Name(source), targetText(&m.spec.To), datapath.ErrUnsupported)
		}
	}
	return nil
}

// encodeMatch fills in which packets are copied.
func encodeMatch(e *kernel.Mirror, match *datapath.Match) error {
	type list struct {
		name string
		len  int
	}
	for _, l := range []list{
		{"source", len(match.Source)}, {"destination", len(match.Destination)},
		{"sourcePorts", len(match.SourcePorts)}, {"ports", len(match.Ports)},
	} {
		if l.len > datapath.MirrorMembersMax {
			return fmt.Errorf("match.%s has %d members, at most %d are possible: use several mirrors: %w", l.name, l.len, datapath.MirrorMembersMax, datapath.ErrUnsupported)
		}
	}
	for i, p := range match.Source {
		e.Source[i].Addr, e.Source[i].Mask = kernel.AddrOf(p.Masked().Addr()), maskOf(p)
	}
	for i, p := range match.Destination {
		e.Destination[i].Addr, e.Destination[i].Mask = kernel.AddrOf(p.Masked().Addr()), maskOf(p)
	}
	for i, r := range match.SourcePorts {
		e.SourcePort[i].First, e.SourcePort[i].Last = r.First, r.Last
	}
	for i, r := range match.Ports {
		e.Port[i].First, e.Port[i].Last = r.First, r.Last
	}
	e.SourceCount, e.DestinationCount = uint32(len(match.Source)), uint32(len(match.Destination))
	e.SourcePortCount, e.PortCount = uint32(len(match.SourcePorts)), uint32(len(match.Ports))
	for _, p := range match.Protocols {
		e.Protocol[p>>6] |= 1 << (p & 63)
		e.Flags |= kernel.MirrorProtocol
	}
	if e.Flags&kernel.MirrorProtocol != 0 || e.SourceCount+e.DestinationCount+e.SourcePortCount+e.PortCount > 0 {
		e.Flags |= kernel.MirrorIP
	}
	return nil
}

// maskOf returns the mask of a prefix.
func maskOf(p netip.Prefix) (k kernel.Addr) {
	var b [16]byte
	for i := range kernel.Bits128(p) {
		b[i/8] |= 0x80 >> (i % 8)
	}
	k.Word = kernel.WordsOf(b)
	return k
}

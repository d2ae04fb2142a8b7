// SPDX-License-Identifier: Apache-2.0

package object

import (
	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Limits on the length of copies: the smallest Ethernet frame without its frame check sequence, as in
// package datapath, and the largest value of a length field.
const (
	leastSnaplen = 64
	mostSnaplen  = 65535
)

// mirrorParser parses the spec of a Mirror.
type mirrorParser struct {
	spec   *api.MirrorSpec
	mirror state.Mirror
	budget *decode.Budget
}

func parseMirror(s *api.MirrorSpec, b *decode.Budget) (state.Value, *api.Error) {
	p := mirrorParser{spec: s, budget: b}
	for _, step := range []func() *api.Error{p.source, p.direction, p.matched, p.target} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	if s.Snaplen != 0 && (s.Snaplen < leastSnaplen || s.Snaplen > mostSnaplen) {
		return nil, invalid("spec.snaplen", "%d is not between %d and %d: omit it to copy whole packets", s.Snaplen, leastSnaplen, mostSnaplen)
	}
	p.mirror.Length = s.Snaplen
	return &p.mirror, nil
}

func (p *mirrorParser) source() *api.Error {
	for _, f := range []struct{ kind, field, name string }{
		{state.KindInterface, "interface", p.spec.Source.Interface}, {state.KindEndpoint, "endpoint", p.spec.Source.Endpoint},
		{state.KindService, "service", p.spec.Source.Service}, {state.KindFirewallRule, "rule", p.spec.Source.Rule},
	} {
		if f.name == "" {
			continue
		}
		field := "spec.source." + f.field
		if p.mirror.Source.Name != "" {
			return invalid(field, "cannot be combined with spec.source.%s: a Mirror has one source; create another Mirror for the other source", p.mirror.SourceField)
		}
		if len(f.name) > maxName || !namePattern.MatchString(f.name) {
			return invalid(field, "%q is not a name of %s", decode.Shorten(f.name), article(f.kind))
		}
		p.mirror.Source, p.mirror.SourceField = state.Key{Kind: f.kind, Name: f.name}, f.field
	}
	if p.mirror.Source.Name == "" {
		return invalid("spec.source", "is missing: name the object whose packets are copied, in interface, endpoint, service or rule")
	}
	return nil
}

// article returns a kind with its indefinite article.
func article(kind string) string {
	switch kind[0] {
	case 'A', 'E', 'I', 'O', 'U':
		return "an " + kind
	}
	return "a " + kind
}

func (p *mirrorParser) direction() *api.Error {
	n, err := choose("spec.direction", p.spec.Direction, api.MirrorDirections...)
	if err != nil {
		return err
	}
	p.mirror.Direction = [...]datapath.MirrorDirection{datapath.MirrorIn | datapath.MirrorOut, datapath.MirrorIn, datapath.MirrorOut}[n]
	return nil
}

// matched parses the match. It rejects fields that are not evaluated where packets are copied.
func (p *mirrorParser) matched() (err *api.Error) {
	m := p.spec.Match
	if m == nil {
		return nil
	}
	for _, f := range []struct {
		name string
		said bool
	}{
		{"icmp", len(m.ICMP) > 0}, {"tcpFlags", m.TCPFlags != ""}, {"in", len(m.In) > 0}, {"out", len(m.Out) > 0},
		{"vlans", len(m.VLANs) > 0}, {"dscp", len(m.DSCP) > 0},
	} {
		if f.said {
			return invalid("spec.match."+f.name, "is not evaluated for copies: omit it; a Mirror matches source, destination, protocol, ports and sourcePorts")
		}
	}
	d := &p.mirror.Match
	if *d, _, err = parseMatch(m, p.budget); err != nil {
		return err
	}
	for _, list := range []struct {
		name          string
		groups, count int
	}{
		{"source", len(d.SourceGroups), len(d.Source)}, {"destination", len(d.DestinationGroups), len(d.Destination)},
		{"protocol", 0, len(d.Protocols)}, {"ports", 0, len(d.Ports)}, {"sourcePorts", 0, len(d.SourcePorts)},
	} {
		field := "spec.match." + list.name
		if list.groups > 0 {
			return invalid(field, "a Mirror matches no AddressGroups, and not local: write addresses or prefixes")
		}
		if list.count > datapath.MirrorMembersMax {
			return invalid(field, "%d members, with ranges of addresses converted to prefixes: a Mirror has at most %d; merge some, or create several Mirrors",
				list.count, datapath.MirrorMembersMax)
		}
	}
	return nil
}

func (p *mirrorParser) target() *api.Error {
	to := &p.spec.To
	switch {
	case to.Device != "" && to.Peer != "":
		return invalid("spec.to.peer", "cannot be combined with spec.to.device: a Mirror has one target; create another Mirror for the other target")
	case to.Device != "":
		return p.device()
	case to.Peer == "":
		return invalid("spec.to", "is missing: set device, or peer and vni")
	case to.Netns != "":
		return invalid("spec.to.netns", "applies to device only: copies to a Peer leave through its Tunnel; omit it")
	case len(to.Peer) > maxName || !namePattern.MatchString(to.Peer):
		return invalid("spec.to.peer", "%q is not a name of a Peer", decode.Shorten(to.Peer))
	case to.VNI == 0:
		return invalid("spec.to.vni", "is missing: choose the VNI by which the Peer recognises the copies, from 1 to %d, that no Tunnel has", maxVNI)
	case to.VNI > maxVNI:
		return invalid("spec.to.vni", "%d is more than %d, the maximum for 24 bits", to.VNI, maxVNI)
	}
	p.mirror.To = datapath.MirrorTarget{Peer: datapath.PeerName(to.Peer), VNI: to.VNI}
	return nil
}

func (p *mirrorParser) device() *api.Error {
	to := &p.spec.To
	if to.VNI != 0 {
		return invalid("spec.to.vni", "applies to peer only: omit it")
	}
	if err := checkDevice("spec.to.device", to.Device); err != nil {
		return err
	}
	if to.Device == "lo" {
		return invalid("spec.to.device", "lo returns copies to the node itself: name another device, such as one end of a veth pair")
	}
	netns, err := choose("spec.to.netns", to.Netns, api.Netns...)
	if err != nil {
		return err
	}
	p.mirror.To = datapath.MirrorTarget{Device: to.Device, Switch: netns == 1}
	p.mirror.HasNetns = to.Netns != ""
	return nil
}

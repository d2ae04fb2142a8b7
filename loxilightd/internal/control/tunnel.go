// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

const (
	// maxTunnelDevice leaves room for what the other end is called.
	maxTunnelDevice = maxDevice - 2
	maxVNI          = 1<<24 - 1
	maxPort         = 65535
)

func parseTunnel(s *api.TunnelSpec) (state.Value, *api.Error) {
	if err := checkDevice("spec.device", s.Device); err != nil {
		return nil, err
	}
	if len(s.Device) > maxTunnelDevice {
		return nil, invalid("spec.device", "%q is longer than %d characters: its other end has two more", s.Device, maxTunnelDevice)
	}
	t := datapath.Tunnel{Device: s.Device, VNI: s.VNI, MTU: s.MTU}
	if s.Type == "stt" {
		return nil, api.Errorf(api.ReasonUnsupported, "stt is not there yet: want one of vxlan, geneve, gre").At("", "spec.type")
	}
	kind, err := choose("spec.type", s.Type, datapath.TunnelTypes[:]...)
	if err != nil {
		return nil, err
	}
	t.Type = datapath.TunnelType(kind)
	if s.VNI > maxVNI && t.Type != datapath.TunnelGRE {
		return nil, invalid("spec.vni", "%d is more than %d, which 24 bits hold", s.VNI, maxVNI)
	}
	switch {
	case t.Type == datapath.TunnelGRE && s.Port != 0:
		return nil, invalid("spec.port", "gre has no ports: leave it out")
	case s.Port < 0 || s.Port > maxPort:
		return nil, invalid("spec.port", "%d is not between 1 and %d", s.Port, maxPort)
	case s.Port != 0:
		t.Port = uint16(s.Port)
	default:
		t.Port = t.Type.DefaultPort()
	}
	if err := checkMTU(s.MTU, leastMTU); err != nil {
		return nil, err
	}
	if s.Local != "" {
		local, perr := parseHost(s.Local)
		if perr != nil {
			return nil, invalid("spec.local", "%q: %v", shorten(s.Local), perr)
		}
		t.Local = local
	}
	return &state.Tunnel{Tunnel: t}, nil
}

func parsePeer(s *api.PeerSpec) (state.Value, *api.Error) {
	p := datapath.Peer{Tunnel: datapath.TunnelName(s.Tunnel)}
	if s.Tunnel != "" && (len(s.Tunnel) > maxName || !namePattern.MatchString(s.Tunnel)) {
		return nil, invalid("spec.tunnel", "%q is no name: want that of a Tunnel, or nothing where the underlay routes", shorten(s.Tunnel))
	}
	if len(s.Underlay) == 0 {
		return nil, invalid("spec.underlay", "is missing: say by which address of its the node is reached")
	}
	before := firstTwice[netip.Addr](len(s.Underlay))
	for i, told := range s.Underlay {
		field := fmt.Sprintf("spec.underlay[%d]", i)
		a, err := parseHost(string(told))
		if err != nil {
			return nil, invalid(field, "%q: %v", shorten(string(told)), err)
		}
		if a.Is6() && a.IsLinkLocalUnicast() {
			return nil, invalid(field, "%s is an address of every link", a)
		}
		if first := before(i, a); first >= 0 {
			return nil, invalid(field, "%s stands at underlay[%d] already", a, first)
		}
		p.Underlay = append(p.Underlay, a)
	}
	prefixes := firstTwice[netip.Prefix](len(s.Prefixes))
	for i, told := range s.Prefixes {
		field := fmt.Sprintf("spec.prefixes[%d]", i)
		prefix, err := parsePrefix(string(told))
		if err != nil {
			return nil, invalid(field, "%q %v", shorten(string(told)), err)
		}
		if err := behind(prefix, &p); err != nil {
			return nil, invalid(field, "%s %v", prefix, err)
		}
		if first := prefixes(i, prefix); first >= 0 {
			return nil, invalid(field, "%s stands at prefixes[%d] already", prefix, first)
		}
		p.Prefixes = append(p.Prefixes, prefix)
	}
	return &state.Peer{Peer: p}, nil
}

// behind refuses prefixes that cannot be behind a peer.
func behind(prefix netip.Prefix, p *datapath.Peer) error {
	a := prefix.Addr()
	switch {
	case a.IsMulticast() || a.IsLoopback() || a.Is6() && a.IsLinkLocalUnicast():
		return fmt.Errorf("is nothing that is reached through a node")
	case slices.ContainsFunc(p.Underlay, prefix.Contains):
		return fmt.Errorf("has the peer's own underlay address in it, which is not reached through the peer")
	case p.Tunnel == "" && !slices.ContainsFunc(p.Underlay, func(u netip.Addr) bool { return u.Is4() == a.Is4() }):
		return fmt.Errorf("is of another family than the underlay addresses: name a tunnel, or an address of its family")
	}
	return nil
}

func (s *Server) tunnelStatus(k state.Key) *api.TunnelStatus {
	st := &api.TunnelStatus{Status: s.statusOf(k)}
	if t, ok := s.Plane.Telemetry().TunnelState(datapath.TunnelName(k.Name)); ok {
		st.MTU, st.Peers, st.Counters = t.MTU, t.Peers, peerCounters(t.Traffic)
	}
	return st
}

func (s *Server) peerStatus(k state.Key) *api.PeerStatus {
	st := &api.PeerStatus{Status: s.statusOf(k)}
	p, ok := s.Plane.Telemetry().PeerState(datapath.PeerName(k.Name))
	if !ok || !p.Underlay.IsValid() {
		return st
	}
	st.Local, st.Underlay, st.Device, st.Counters = p.Local.String(), p.Underlay.String(), p.Device, peerCounters(p.Traffic)
	return st
}

func peerCounters(c datapath.PeerCounters) *api.PeerCounters {
	x := api.PeerCounters(c)
	return &x
}

// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

const (
	// maxTunnelDevice leaves room for the suffix -e in the name of the other end of the pair.
	maxTunnelDevice = maxDevice - 2
	maxVNI          = 1<<24 - 1
	maxPort         = 65535
)

func parseTunnel(s *api.TunnelSpec) (state.Value, *api.Error) {
	if err := checkDeviceName("spec.device", s.Device, maxTunnelDevice); err != nil {
		return nil, err
	}
	t := datapath.Tunnel{Device: s.Device, VNI: s.VNI, MTU: s.MTU}
	if s.Type == "stt" {
		return nil, api.Errorf(api.ReasonUnsupported, "stt is not supported yet: want one of %s", strings.Join(api.TunnelTypes, ", ")).At("", "spec.type")
	}
	kind, err := choose("spec.type", s.Type, api.TunnelTypes...)
	if err != nil {
		return nil, err
	}
	t.Type = datapath.TunnelType(kind)
	if s.VNI > maxVNI && t.Type != datapath.TunnelGRE {
		return nil, invalid("spec.vni", "%d is more than %d, the maximum for 24 bits", s.VNI, maxVNI)
	}
	switch {
	case t.Type.DefaultPort() == 0 && s.Port != 0:
		return nil, invalid("spec.port", "%s has no ports: omit it", t.Type)
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
			return nil, invalid("spec.local", "%q %v", decode.Shorten(s.Local), perr)
		}
		t.Local = local
	}
	return &state.Tunnel{Tunnel: t}, nil
}

func parsePeer(s *api.PeerSpec) (state.Value, *api.Error) {
	p := datapath.Peer{Tunnel: datapath.TunnelName(s.Tunnel)}
	if s.Tunnel != "" && (len(s.Tunnel) > maxName || !namePattern.MatchString(s.Tunnel)) {
		return nil, invalid("spec.tunnel", "%q is not a name of a Tunnel; omit tunnel if the underlay routes the prefixes", decode.Shorten(s.Tunnel))
	}
	if len(s.Underlay) == 0 {
		return nil, invalid("spec.underlay", "is missing: set it to the address at which the node is reached")
	}
	before := firstTwice[netip.Addr](len(s.Underlay))
	for i, text := range s.Underlay {
		field := fmt.Sprintf("spec.underlay[%d]", i)
		a, err := parseHost(string(text))
		if err != nil {
			return nil, invalid(field, "%q %v", decode.Shorten(string(text)), err)
		}
		if a.Is6() && a.IsLinkLocalUnicast() {
			return nil, invalid(field, "%s is link-local: want an address that is routed", a)
		}
		if a.IsLoopback() {
			return nil, invalid(field, "%s is a loopback address: want an address at which other nodes reach it", a)
		}
		if first := before(i, a); first >= 0 {
			return nil, invalid(field, "%s duplicates underlay[%d]", a, first)
		}
		p.Underlay = append(p.Underlay, a)
	}
	prefixes := firstTwice[netip.Prefix](len(s.Prefixes))
	for i, text := range s.Prefixes {
		field := fmt.Sprintf("spec.prefixes[%d]", i)
		prefix, err := parsePrefix(string(text))
		if err != nil {
			return nil, invalid(field, "%q %v", decode.Shorten(string(text)), err)
		}
		if err := p.MayHave(prefix); err != nil {
			return nil, invalid(field, "%s %v", prefix, err)
		}
		if first := prefixes(i, prefix); first >= 0 {
			return nil, invalid(field, "%s duplicates prefixes[%d]", prefix, first)
		}
		p.Prefixes = append(p.Prefixes, prefix)
	}
	return &state.Peer{Peer: p}, nil
}

// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Limits on an MTU: the minimum that IPv4 requires, and the largest value of a length field.
const (
	leastMTU  = 68
	leastMTU6 = 1280
	mostMTU   = 65535
)

func checkMTU(mtu, least int) *api.Error {
	if mtu != 0 && (mtu < least || mtu > mostMTU) {
		return invalid("spec.mtu", "%d is not between %d and %d", mtu, least, mostMTU)
	}
	return nil
}

func parseBridge(s *api.BridgeSpec) (state.Value, *api.Error) {
	if err := checkDevice("spec.device", s.Device); err != nil {
		return nil, err
	}
	v := &state.Bridge{}
	v.Device, v.VLANFiltering, v.MTU = s.Device, s.VLANFiltering, s.MTU
	if err := checkMTU(s.MTU, leastMTU); err != nil {
		return nil, err
	}
	var err *api.Error
	if v.Ageing, err = between("spec.ageing", s.Ageing, 0, time.Second, 7*24*time.Hour); err != nil {
		return nil, err
	}
	if v.Addresses, err = parseAddresses(s.Addresses); err != nil {
		return nil, err
	}
	if v.Resolvers, err = parseResolvers(s.Resolvers); err != nil {
		return nil, err
	}
	before := firstTwice[string](len(s.Ports))
	for i := range s.Ports {
		port, err := parseBridgePort(s, i)
		if err != nil {
			return nil, err
		}
		if first := before(i, port.Device); first >= 0 {
			return nil, invalid(fmt.Sprintf("spec.ports[%d].device", i), "%s duplicates ports[%d]", port.Device, first)
		}
		v.Ports = append(v.Ports, port)
	}
	return v, nil
}

// parseAddresses parses the addresses of a device, each with its prefix length.
func parseAddresses(texts []string) (list []netip.Prefix, err *api.Error) {
	before := firstTwice[netip.Addr](len(texts))
	for i, text := range texts {
		field := fmt.Sprintf("spec.addresses[%d]", i)
		p, perr := netip.ParsePrefix(text)
		if perr != nil {
			return nil, invalid(field, "%q is not an address with a prefix length; expected e.g. 10.1.0.1/24 or 2001:db8::1/64", decode.Shorten(text))
		}
		if perr = checkHost(p.Addr()); perr == nil && p.Addr().IsLoopback() {
			perr = fmt.Errorf("is a loopback address")
		}
		if perr == nil && p.Bits() == 0 {
			perr = fmt.Errorf("must not have the prefix length 0")
		}
		if perr == nil && p.Masked().Addr() == p.Addr() && p.Bits() < p.Addr().BitLen()-1 && p.Addr().Is4() {
			perr = fmt.Errorf("%s is the address of the network, not of a host in it", p.Addr())
		}
		if perr != nil {
			return nil, invalid(field, "%q %v", decode.Shorten(text), perr)
		}
		if first := before(i, p.Addr()); first >= 0 {
			return nil, invalid(field, "%s duplicates addresses[%d]", p.Addr(), first)
		}
		list = append(list, p)
	}
	return list, nil
}

func parseBridgePort(s *api.BridgeSpec, i int) (p datapath.BridgePort, err *api.Error) {
	spec := &s.Ports[i]
	field := func(name string) string { return fmt.Sprintf("spec.ports[%d].%s", i, name) }
	if err := checkDevice(field("device"), spec.Device); err != nil {
		return p, err
	}
	if spec.Device == s.Device && (!s.VLANFiltering || spec.Isolated) {
		return p, invalid(field("device"), "%s is the bridge itself: list it only to set its VLANs, with vlanFiltering and without isolated", spec.Device)
	}
	p.Device, p.Isolated = spec.Device, spec.Isolated
	if !s.VLANFiltering {
		for _, f := range []struct {
			name string
			said bool
		}{{"pvid", spec.PVID != nil}, {"vlans", len(spec.VLANs) > 0}, {"untagged", len(spec.Untagged) > 0}} {
			if f.said {
				return p, invalid(field(f.name), "has no effect without VLAN filtering: set spec.vlanFiltering to true, or omit it")
			}
		}
		return p, nil
	}
	if p.VLANs, err = parseVLANs(field("vlans"), spec.VLANs); err != nil {
		return p, err
	}
	if p.Untagged, err = parseVLANs(field("untagged"), spec.Untagged); err != nil {
		return p, err
	}
	pvid := 0
	switch {
	case spec.PVID != nil:
		pvid = *spec.PVID
	case len(spec.VLANs)+len(spec.Untagged) == 0:
		pvid = 1 // the kernel's default
	}
	if pvid < 0 || pvid > 4094 {
		return p, invalid(field("pvid"), "%d is not a valid VLAN: want 1 to 4094, or 0 to drop untagged frames", pvid)
	}
	p.PVID = uint16(pvid)
	if pvid == 0 && len(p.VLANs)+len(p.Untagged) == 0 {
		return p, invalid(field("vlans"), "a port with pvid 0 and no VLANs forwards nothing: set vlans or pvid")
	}
	if pvid != 0 && len(p.Untagged) == 0 {
		p.Untagged = []datapath.VLANRange{{First: p.PVID, Last: p.PVID}}
	}
	return p, nil
}

// routeParser parses the spec of a Route.
type routeParser struct {
	spec  *api.RouteSpec
	route state.Route
}

func parseRoute(s *api.RouteSpec) (state.Value, *api.Error) {
	p := routeParser{spec: s}
	for _, step := range []func() *api.Error{p.prefix, p.choice, p.nextHops, p.rest} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return &p.route, nil
}

func (p *routeParser) prefix() *api.Error {
	prefix, err := netip.ParsePrefix(p.spec.Prefix)
	switch {
	case err != nil:
		return invalid("spec.prefix", "%q is not a valid prefix: want address/length, such as 10.0.0.0/8, or 0.0.0.0/0 or ::/0 for the default route", decode.Shorten(p.spec.Prefix))
	case prefix.Addr().Is4In6():
		return invalid("spec.prefix", "%q is an IPv4-mapped IPv6 address: write it as IPv4", decode.Shorten(p.spec.Prefix))
	case prefix.Masked() != prefix:
		return invalid("spec.prefix", "%q has host bits set: write %s", decode.Shorten(p.spec.Prefix), prefix.Masked())
	}
	p.route.Prefix = prefix
	return nil
}

func (p *routeParser) choice() *api.Error {
	netns, err := choose("spec.netns", p.spec.Netns, api.Netns...)
	if err != nil {
		return err
	}
	t, err := choose("spec.type", p.spec.Type, api.RouteTypes...)
	if err != nil {
		return err
	}
	p.route.Switch = netns == 1
	p.route.Type = datapath.RouteType(t)
	p.route.Metric = p.spec.Metric
	return p.peer()
}

// peer parses the Peer to which a Route leads. The Peer determines the device and the namespace.
func (p *routeParser) peer() *api.Error {
	spec := p.spec
	if spec.Peer == "" {
		return nil
	}
	if len(spec.Peer) > maxName || !namePattern.MatchString(spec.Peer) {
		return invalid("spec.peer", "%q is not a name of a Peer", decode.Shorten(spec.Peer))
	}
	for _, f := range []struct {
		name string
		said bool
	}{
		{"netns", spec.Netns != ""}, {"type", p.route.Type != datapath.RouteUnicast}, {"via", spec.Via != ""}, {"device", spec.Device != ""},
		{"nexthops", len(spec.NextHops) > 0}, {"metric", spec.Metric != 0}, {"source", spec.Source != ""}, {"mtu", spec.MTU != 0},
	} {
		if f.said {
			return invalid("spec."+f.name, "is determined by the Peer to which the route leads: omit it, or omit peer")
		}
	}
	p.route.Peer = spec.Peer
	return nil
}

func (p *routeParser) nextHops() *api.Error {
	if p.route.Peer != "" {
		return nil
	}
	one := p.spec.Via != "" || p.spec.Device != ""
	switch {
	case p.route.Type != datapath.RouteUnicast && (one || len(p.spec.NextHops) > 0):
		return invalid("spec.type", "a route of type %s has no next hop: omit via, device and nexthops", p.spec.Type)
	case p.route.Type != datapath.RouteUnicast:
		return nil
	case one && len(p.spec.NextHops) > 0:
		return invalid("spec.nexthops", "via and device define the only next hop: move them into nexthops, or omit nexthops")
	case one:
		hop, err := p.nextHop(api.NextHop{Via: p.spec.Via, Device: p.spec.Device}, "spec.")
		p.route.NextHops = []datapath.NextHop{hop}
		return err
	case len(p.spec.NextHops) == 0:
		return invalid("spec.via", "is missing: set via, device or nexthops; or set spec.type to blackhole, unreachable or prohibit")
	}
	type target struct {
		via    netip.Addr
		device string
	}
	before := firstTwice[target](len(p.spec.NextHops))
	for i, spec := range p.spec.NextHops {
		place := fmt.Sprintf("spec.nexthops[%d]", i)
		hop, err := p.nextHop(spec, place+".")
		if err != nil {
			return err
		}
		if first := before(i, target{hop.Via, hop.Device}); first >= 0 {
			return invalid(place, "is the same as nexthops[%d]: give one of them more weight", first)
		}
		p.route.NextHops = append(p.route.NextHops, hop)
	}
	return nil
}

// nextHop parses one next hop. place is the prefix of its fields' names.
func (p *routeParser) nextHop(spec api.NextHop, place string) (hop datapath.NextHop, err *api.Error) {
	if spec.Via == "" && spec.Device == "" {
		return hop, invalid(place+"via", "is missing: set via to the address of the router, or device to the link of the route")
	}
	if spec.Device != "" {
		if err := checkDevice(place+"device", spec.Device); err != nil {
			return hop, err
		}
	}
	hop.Device, hop.Weight = spec.Device, 1
	if spec.Weight != 0 {
		if spec.Weight < 1 || spec.Weight > 256 {
			return hop, invalid(place+"weight", "%d is not between 1 and 256", spec.Weight)
		}
		hop.Weight = uint16(spec.Weight)
	}
	if spec.Via == "" {
		return hop, nil
	}
	via, perr := parseHost(spec.Via)
	switch {
	case perr != nil:
		return hop, invalid(place+"via", "%q %v", decode.Shorten(spec.Via), perr)
	case via.Is4() != p.route.Prefix.Addr().Is4():
		return hop, invalid(place+"via", "%s is %s, but the prefix %s is %s", via, familyOf(via), p.route.Prefix, familyOf(p.route.Prefix.Addr()))
	case via.IsLinkLocalUnicast() && via.Is6() && spec.Device == "":
		return hop, invalid(place+"device", "is missing: the link-local address %s does not determine a link", via)
	}
	hop.Via = via
	return hop, nil
}

func (p *routeParser) rest() *api.Error {
	unicast := p.route.Type == datapath.RouteUnicast
	least := leastMTU
	if p.route.Prefix.Addr().Is6() {
		least = leastMTU6
	}
	if err := checkMTU(p.spec.MTU, least); err != nil {
		return err
	}
	switch {
	case !unicast && p.spec.MTU != 0:
		return invalid("spec.mtu", "does not apply to a route of type %s: omit it", p.spec.Type)
	case !unicast && p.spec.Source != "":
		return invalid("spec.source", "does not apply to a route of type %s: omit it", p.spec.Type)
	}
	p.route.MTU = uint32(p.spec.MTU)
	if p.spec.Source == "" {
		return nil
	}
	source, err := parseHost(p.spec.Source)
	if err != nil {
		return invalid("spec.source", "%q %v", decode.Shorten(p.spec.Source), err)
	}
	if source.Is4() != p.route.Prefix.Addr().Is4() {
		return invalid("spec.source", "%s is %s, but the prefix %s is %s", source, familyOf(source), p.route.Prefix, familyOf(p.route.Prefix.Addr()))
	}
	p.route.Source = source
	return nil
}

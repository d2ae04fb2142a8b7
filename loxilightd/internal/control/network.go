// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Limits of an MTU: the least that IPv4 requires, and the largest value of a length field.
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
	before := firstTwice[string](len(s.Ports))
	for i := range s.Ports {
		port, err := parseBridgePort(s, i)
		if err != nil {
			return nil, err
		}
		if first := before(i, port.Device); first >= 0 {
			return nil, invalid(fmt.Sprintf("spec.ports[%d].device", i), "%s stands at ports[%d] already", port.Device, first)
		}
		v.Ports = append(v.Ports, port)
	}
	return v, nil
}

// parseAddresses parses the addresses of a device, each with its prefix length.
func parseAddresses(told []string) (list []netip.Prefix, err *api.Error) {
	before := firstTwice[netip.Addr](len(told))
	for i, text := range told {
		field := fmt.Sprintf("spec.addresses[%d]", i)
		p, perr := netip.ParsePrefix(text)
		if perr != nil {
			return nil, invalid(field, "%q is not an address with a length; expected e.g. 10.1.0.1/24 or 2001:db8::1/64", shorten(text))
		}
		if perr = checkHost(p.Addr()); perr == nil && p.Addr().IsLoopback() {
			perr = fmt.Errorf("%s is the loopback", p.Addr())
		}
		if perr == nil && p.Bits() == 0 {
			perr = fmt.Errorf("a network of all addresses leaves none outside")
		}
		if perr == nil && p.Masked().Addr() == p.Addr() && p.Bits() < p.Addr().BitLen()-1 && p.Addr().Is4() {
			perr = fmt.Errorf("%s is the address of the network, not of a station in it", p.Addr())
		}
		if perr != nil {
			return nil, invalid(field, "%q %v", shorten(text), perr)
		}
		if first := before(i, p.Addr()); first >= 0 {
			return nil, invalid(field, "%s stands at addresses[%d] already", p.Addr(), first)
		}
		list = append(list, p)
	}
	return list, nil
}

func parseBridgePort(s *api.BridgeSpec, i int) (p datapath.BridgePort, err *api.Error) {
	told := &s.Ports[i]
	field := func(name string) string { return fmt.Sprintf("spec.ports[%d].%s", i, name) }
	if err := checkDevice(field("device"), told.Device); err != nil {
		return p, err
	}
	if told.Device == s.Device && (!s.VLANFiltering || told.Isolated) {
		return p, invalid(field("device"), "%s is the bridge itself: it stands among its ports for its VLANs only, with vlanFiltering", told.Device)
	}
	p.Device, p.Isolated = told.Device, told.Isolated
	if !s.VLANFiltering {
		for _, f := range []struct {
			name string
			said bool
		}{{"pvid", told.PVID != nil}, {"vlans", len(told.VLANs) > 0}, {"untagged", len(told.Untagged) > 0}} {
			if f.said {
				return p, invalid(field(f.name), "means nothing without VLAN filtering: set spec.vlanFiltering to true, or leave this out")
			}
		}
		return p, nil
	}
	if p.VLANs, err = parseVLANs(field("vlans"), told.VLANs); err != nil {
		return p, err
	}
	if p.Untagged, err = parseVLANs(field("untagged"), told.Untagged); err != nil {
		return p, err
	}
	pvid := 0
	switch {
	case told.PVID != nil:
		pvid = *told.PVID
	case len(told.VLANs)+len(told.Untagged) == 0:
		pvid = 1 // as the kernel has it
	}
	if pvid < 0 || pvid > 4094 {
		return p, invalid(field("pvid"), "%d is no VLAN: want 1 to 4094, or 0 to refuse frames without a tag", pvid)
	}
	p.PVID = uint16(pvid)
	if pvid == 0 && len(p.VLANs)+len(p.Untagged) == 0 {
		return p, invalid(field("vlans"), "a port with pvid 0 and no VLANs lets nothing through: name some, or give it a pvid")
	}
	if pvid != 0 && len(p.Untagged) == 0 {
		p.Untagged = []datapath.VLANRange{{First: p.PVID, Last: p.PVID}}
	}
	return p, nil
}

// routeParser parses the spec of a Route.
type routeParser struct {
	told  *api.RouteSpec
	route state.Route
}

func parseRoute(s *api.RouteSpec) (state.Value, *api.Error) {
	p := routeParser{told: s}
	for _, step := range []func() *api.Error{p.prefix, p.choice, p.nextHops, p.rest} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return &p.route, nil
}

func (p *routeParser) prefix() *api.Error {
	prefix, err := netip.ParsePrefix(p.told.Prefix)
	switch {
	case err != nil:
		return invalid("spec.prefix", "%q is no prefix: want address/length, such as 10.0.0.0/8, or 0.0.0.0/0 or ::/0 for the default route", shorten(p.told.Prefix))
	case prefix.Addr().Is4In6():
		return invalid("spec.prefix", "%q is an IPv4-mapped IPv6 address: write it as IPv4", shorten(p.told.Prefix))
	case prefix.Masked() != prefix:
		return invalid("spec.prefix", "%q has host bits set: write %s", shorten(p.told.Prefix), prefix.Masked())
	}
	p.route.Prefix = prefix
	return nil
}

func (p *routeParser) choice() *api.Error {
	netns, err := choose("spec.netns", p.told.Netns, "host", "switch")
	if err != nil {
		return err
	}
	t, err := choose("spec.type", p.told.Type, "unicast", "blackhole", "unreachable", "prohibit")
	if err != nil {
		return err
	}
	p.route.Switch = netns == 1
	p.route.Type = [...]datapath.RouteType{datapath.RouteUnicast, datapath.RouteBlackhole, datapath.RouteUnreachable, datapath.RouteProhibit}[t]
	p.route.Metric = p.told.Metric
	return p.peer()
}

// peer parses the Peer of a Route to a Peer. The Peer determines the device and the namespace.
func (p *routeParser) peer() *api.Error {
	told := p.told
	if told.Peer == "" {
		return nil
	}
	if len(told.Peer) > maxName || !namePattern.MatchString(told.Peer) {
		return invalid("spec.peer", "%q is not a name of a Peer", shorten(told.Peer))
	}
	for _, f := range []struct {
		name string
		said bool
	}{
		{"netns", told.Netns != ""}, {"type", p.route.Type != datapath.RouteUnicast}, {"via", told.Via != ""}, {"device", told.Device != ""},
		{"nexthops", len(told.NextHops) > 0}, {"metric", told.Metric != 0}, {"source", told.Source != ""}, {"mtu", told.MTU != 0},
	} {
		if f.said {
			return invalid("spec."+f.name, "is for the Peer to say, which the route leads to: leave it out, or leave peer out")
		}
	}
	p.route.Peer = told.Peer
	return nil
}

func (p *routeParser) nextHops() *api.Error {
	if p.route.Peer != "" {
		return nil
	}
	one := p.told.Via != "" || p.told.Device != ""
	switch {
	case p.route.Type != datapath.RouteUnicast && (one || len(p.told.NextHops) > 0):
		return invalid("spec.type", "a route of type %s leads nowhere: leave via, device and nexthops out", p.told.Type)
	case p.route.Type != datapath.RouteUnicast:
		return nil
	case one && len(p.told.NextHops) > 0:
		return invalid("spec.nexthops", "via and device are the only next hop: write them as one of nexthops, or leave those out")
	case one:
		hop, err := p.nextHop(api.NextHop{Via: p.told.Via, Device: p.told.Device}, "spec.")
		p.route.NextHops = []datapath.NextHop{hop}
		return err
	case len(p.told.NextHops) == 0:
		return invalid("spec.via", "is missing: say where the route leads, by via, device or nexthops; or set spec.type to blackhole, unreachable or prohibit")
	}
	type way struct {
		via    netip.Addr
		device string
	}
	before := firstTwice[way](len(p.told.NextHops))
	for i, told := range p.told.NextHops {
		place := fmt.Sprintf("spec.nexthops[%d]", i)
		hop, err := p.nextHop(told, place+".")
		if err != nil {
			return err
		}
		if first := before(i, way{hop.Via, hop.Device}); first >= 0 {
			return invalid(place, "is the same as nexthops[%d]: give one of them more weight", first)
		}
		p.route.NextHops = append(p.route.NextHops, hop)
	}
	return nil
}

// nextHop parses one next hop. place is the prefix of the names of its fields.
func (p *routeParser) nextHop(told api.NextHop, place string) (hop datapath.NextHop, err *api.Error) {
	if told.Via == "" && told.Device == "" {
		return hop, invalid(place+"via", "is missing: say the address of the router, or by device on which link the route is")
	}
	if told.Device != "" {
		if err := checkDevice(place+"device", told.Device); err != nil {
			return hop, err
		}
	}
	hop.Device, hop.Weight = told.Device, 1
	if told.Weight != 0 {
		if told.Weight < 1 || told.Weight > 256 {
			return hop, invalid(place+"weight", "%d is not between 1 and 256", told.Weight)
		}
		hop.Weight = uint16(told.Weight)
	}
	if told.Via == "" {
		return hop, nil
	}
	via, perr := parseHost(told.Via)
	switch {
	case perr != nil:
		return hop, invalid(place+"via", "%q %v", shorten(told.Via), perr)
	case via.Is4() != p.route.Prefix.Addr().Is4():
		return hop, invalid(place+"via", "%s is %s, and the prefix %s is %s", via, familyOf(via), p.route.Prefix, familyOf(p.route.Prefix.Addr()))
	case via.IsLinkLocalUnicast() && via.Is6() && told.Device == "":
		return hop, invalid(place+"device", "is missing: %s is an address of every link", via)
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
	if err := checkMTU(p.told.MTU, least); err != nil {
		return err
	}
	switch {
	case !unicast && p.told.MTU != 0:
		return invalid("spec.mtu", "a route of type %s carries nothing: leave it out", p.told.Type)
	case !unicast && p.told.Source != "":
		return invalid("spec.source", "a route of type %s carries nothing: leave it out", p.told.Type)
	}
	p.route.MTU = uint32(p.told.MTU)
	if p.told.Source == "" {
		return nil
	}
	source, err := parseHost(p.told.Source)
	if err != nil {
		return invalid("spec.source", "%q %v", shorten(p.told.Source), err)
	}
	if source.Is4() != p.route.Prefix.Addr().Is4() {
		return invalid("spec.source", "%s is %s, and the prefix %s is %s", source, familyOf(source), p.route.Prefix, familyOf(p.route.Prefix.Addr()))
	}
	p.route.Source = source
	return nil
}

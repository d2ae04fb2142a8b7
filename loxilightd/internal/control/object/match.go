// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// matchParser parses the match of a rule.
type matchParser struct {
	spec     *api.Match
	match    datapath.Match
	families families // address families of the packets that can match
	budget   *decode.Budget
}

// parseMatch parses a match, which may be nil, and returns the address families that can match it.
// The match's prefixes are charged to b.
func parseMatch(spec *api.Match, b *decode.Budget) (datapath.Match, families, *api.Error) {
	p := matchParser{spec: spec, families: bothFamilies, budget: b}
	if spec == nil {
		return p.match, p.families, nil
	}
	for _, step := range []func() *api.Error{p.anything, p.protocols, p.addresses, p.ports, p.icmp, p.tcpFlags, p.devices, p.vlans, p.dscp} {
		if err := step(); err != nil {
			return p.match, 0, err
		}
	}
	return p.match, p.families, nil
}

// element returns the path of one element of a list in a match.
func element(list string, i int) string { return fmt.Sprintf("spec.match.%s[%d]", list, i) }

// protocolNumbers contains the protocols that package datapath does not name.
var protocolNumbers = map[string]datapath.Protocol{
	"igmp": 2, "ipip": 4, "dccp": 33, "ipv6": 41, "rsvp": 46, "gre": 47, "esp": 50, "ah": 51, "ospf": 89, "pim": 103,
	"vrrp": 112, "l2tp": 115, "udplite": 136,
}

func (p *matchParser) protocols() *api.Error {
	before := firstTwice[datapath.Protocol](len(p.spec.Protocol))
	only := families(0)
	for i, w := range p.spec.Protocol {
		protocol, ok := datapath.ParseProtocol(string(w))
		if !ok {
			protocol, ok = protocolNumbers[string(w)]
		}
		if n, err := strconv.ParseUint(string(w), 10, 8); !ok && err == nil {
			protocol, ok = datapath.Protocol(n), true
		}
		if !ok {
			return invalid(element("protocol", i), "%q is not a valid protocol: want tcp, udp, sctp, icmp, icmpv6, gre, esp, another name, or a number up to 255", decode.Shorten(string(w)))
		}
		if first := before(i, protocol); first >= 0 {
			return invalid(element("protocol", i), "%s duplicates protocol[%d]", protocol, first)
		}
		p.match.Protocols = append(p.match.Protocols, protocol)
		switch protocol {
		case datapath.ICMP:
			only |= ipv4
		case datapath.ICMPv6:
			only |= ipv6
		default:
			only = bothFamilies
		}
	}
	if len(p.spec.Protocol) > 0 {
		p.families = only
	}
	return nil
}

// anything rejects words for "any", because an absent field means any.
func (p *matchParser) anything() *api.Error {
	for _, list := range []struct {
		name  string
		words api.Words
	}{
		{"source", p.spec.Source}, {"destination", p.spec.Destination}, {"protocol", p.spec.Protocol},
		{"ports", p.spec.Ports}, {"sourcePorts", p.spec.SourcePorts},
	} {
		for i, w := range list.words {
			if w == "any" || w == "all" {
				return invalid(element(list.name, i), "%q: omit spec.match.%s to match everything", string(w), list.name)
			}
		}
	}
	return nil
}

// localWord means the addresses of the node itself.
const localWord = "local"

func (p *matchParser) addresses() *api.Error {
	for _, side := range []struct {
		name     string
		words    api.Words
		prefixes *[]netip.Prefix
		groups   *[]datapath.GroupName
	}{
		{"source", p.spec.Source, &p.match.Source, &p.match.SourceGroups},
		{"destination", p.spec.Destination, &p.match.Destination, &p.match.DestinationGroups},
	} {
		if len(side.words) == 0 {
			continue
		}
		before := firstTwice[api.Word](len(side.words))
		seen := families(0)
		for i, w := range side.words {
			if first := before(i, w); first >= 0 {
				return invalid(element(side.name, i), "%s duplicates %s[%d]", decode.Shorten(string(w)), side.name, first)
			}
			group, isGroup, err := parseGroup(string(w))
			if w == localWord {
				group, isGroup = datapath.LocalGroup, true
			}
			if isGroup && err == nil {
				*side.groups = append(*side.groups, group)
				seen = bothFamilies
				continue
			}
			var list []netip.Prefix
			if err == nil {
				list, err = parsePrefixes(string(w))
			}
			if err != nil {
				return invalid(element(side.name, i), "%q %v; or group:NAME for an AddressGroup, or local for the addresses of the node", decode.Shorten(string(w)), err)
			}
			if err := p.budget.TakePrefixes(list, element(side.name, i)); err != nil {
				return err
			}
			*side.prefixes = append(*side.prefixes, list...)
			seen |= familyOf(list[0].Addr())
		}
		if p.families&seen == 0 {
			return invalid("spec.match."+side.name, "is %s only, but the rest of the match is %s only: no packet matches both", seen, p.families)
		}
		p.families &= seen
	}
	return nil
}

// hasPorts reports whether every protocol of the match has ports.
func (p *matchParser) hasPorts() bool { return protocolsHavePorts(p.match.Protocols) }

func protocolsHavePorts(list []datapath.Protocol) bool {
	for _, protocol := range list {
		if protocol != datapath.TCP && protocol != datapath.UDP && protocol != datapath.SCTP {
			return false
		}
	}
	return len(list) > 0
}

func (p *matchParser) ports() *api.Error {
	for _, side := range []struct {
		name  string
		words api.Words
		into  *[]datapath.PortRange
	}{{"ports", p.spec.Ports, &p.match.Ports}, {"sourcePorts", p.spec.SourcePorts, &p.match.SourcePorts}} {
		if len(side.words) > 0 && !p.hasPorts() {
			return invalid("spec.match."+side.name, "only tcp, udp and sctp have ports: set spec.match.protocol to one or more of these, and to nothing else")
		}
		for i, w := range side.words {
			r, err := parseRange(string(w), 0, 65535)
			if err != nil {
				return invalid(element(side.name, i), "%v, such as 80 or 8000-8100", err)
			}
			*side.into = append(*side.into, datapath.PortRange{First: r[0], Last: r[1]})
		}
	}
	return nil
}

// parseRange parses N or N-M, both between low and high.
func parseRange(text string, low, high uint16) (r [2]uint16, err error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	for i, word := range []string{first, last} {
		n, err := strconv.ParseUint(word, 10, 16)
		if err != nil || word[0] == '+' || uint16(n) < low || uint16(n) > high {
			return r, fmt.Errorf("%q: want a number from %d to %d, or a range of them", decode.Shorten(text), low, high)
		}
		r[i] = uint16(n)
	}
	if r[0] > r[1] {
		return r, fmt.Errorf("%q is reversed: write %d-%d", text, r[1], r[0])
	}
	return r, nil
}

// The names of ICMP types, with a code if the name implies one.
var (
	icmpNames = map[string]datapath.ICMPMatch{
		"echo-reply": anyCode(0), "destination-unreachable": anyCode(3), "redirect": anyCode(5), "echo-request": anyCode(8),
		"router-advertisement": anyCode(9), "router-solicitation": anyCode(10), "time-exceeded": anyCode(11),
		"parameter-problem": anyCode(12), "timestamp-request": anyCode(13), "timestamp-reply": anyCode(14),
		"fragmentation-needed": {Type: 3, Code: 4}, "port-unreachable": {Type: 3, Code: 3}, "host-unreachable": {Type: 3, Code: 1},
	}
	icmpv6Names = map[string]datapath.ICMPMatch{
		"destination-unreachable": anyCode(1), "packet-too-big": anyCode(2), "time-exceeded": anyCode(3), "parameter-problem": anyCode(4),
		"echo-request": anyCode(128), "echo-reply": anyCode(129), "router-solicitation": anyCode(133), "router-advertisement": anyCode(134),
		"neighbor-solicitation": anyCode(135), "neighbor-advertisement": anyCode(136), "redirect": anyCode(137),
		"port-unreachable": {Type: 1, Code: 4}, "host-unreachable": {Type: 1, Code: 3},
	}
)

func anyCode(icmpType uint8) datapath.ICMPMatch {
	return datapath.ICMPMatch{Type: icmpType, AnyCode: true}
}

func (p *matchParser) icmp() *api.Error {
	if len(p.spec.ICMP) == 0 {
		return nil
	}
	list := p.match.Protocols
	if len(list) != 1 || list[0] != datapath.ICMP && list[0] != datapath.ICMPv6 {
		return invalid("spec.match.icmp", "ICMP and ICMPv6 have different types: set spec.match.protocol to icmp alone or to icmpv6 alone")
	}
	names := icmpNames
	if list[0] == datapath.ICMPv6 {
		names = icmpv6Names
	}
	for i, w := range p.spec.ICMP {
		m, ok := names[string(w)]
		if !ok {
			m, ok = parseICMP(string(w))
		}
		if !ok {
			return invalid(element("icmp", i), "%q is not a valid type of %s: want a name such as echo-request, a type such as 3, or type/code such as 3/4", decode.Shorten(string(w)), list[0])
		}
		p.match.ICMP = append(p.match.ICMP, m)
	}
	return nil
}

func parseICMP(text string) (m datapath.ICMPMatch, ok bool) {
	icmpType, code, hasCode := strings.Cut(text, "/")
	n, err := strconv.ParseUint(icmpType, 10, 8)
	if err != nil || icmpType[0] == '+' {
		return m, false
	}
	m = anyCode(uint8(n))
	if !hasCode {
		return m, true
	}
	c, err := strconv.ParseUint(code, 10, 8)
	m.Code, m.AnyCode = uint8(c), false
	return m, err == nil && code[0] != '+'
}

var tcpFlagBits = map[string]uint8{"fin": 1, "syn": 2, "rst": 4, "psh": 8, "ack": 16, "urg": 32, "ece": 64, "cwr": 128}

func (p *matchParser) tcpFlags() *api.Error {
	if p.spec.TCPFlags == "" {
		return nil
	}
	const field = "spec.match.tcpFlags"
	if len(p.match.Protocols) != 1 || p.match.Protocols[0] != datapath.TCP {
		return invalid(field, "only tcp has flags: set spec.match.protocol to tcp alone")
	}
	m := &p.match.TCPFlags
	for word := range strings.SplitSeq(p.spec.TCPFlags, ",") {
		name, unset := strings.CutPrefix(strings.TrimSpace(word), "!")
		bit, ok := tcpFlagBits[name]
		if !ok {
			return invalid(field, "%q is not one of fin, syn, rst, psh, ack, urg, ece, cwr; want for example syn,!ack", decode.Shorten(name))
		}
		if m.Mask&bit != 0 {
			return invalid(field, "%s occurs twice", name)
		}
		m.Mask |= bit
		if !unset {
			m.Flags |= bit
		}
	}
	return nil
}

func (p *matchParser) devices() *api.Error {
	for _, side := range []struct {
		name  string
		words api.Words
		into  *[]string
	}{{"in", p.spec.In, &p.match.In}, {"out", p.spec.Out, &p.match.Out}} {
		before := firstTwice[api.Word](len(side.words))
		for i, w := range side.words {
			if err := checkDevice(element(side.name, i), string(w)); err != nil {
				return err
			}
			if first := before(i, w); first >= 0 {
				return invalid(element(side.name, i), "%s duplicates %s[%d]", w, side.name, first)
			}
			*side.into = append(*side.into, string(w))
		}
	}
	return nil
}

// everyDevice are the words that other tools use for all devices. The kernel does not allow a
// device named "all".
var everyDevice = []string{"all", "any", "*"}

// admitDevices rejects the words in everyDevice as device names: such a rule would match no packet.
func admitDevices(m *datapath.Match) *api.Error {
	for _, side := range []struct {
		name    string
		devices []string
	}{{"in", m.In}, {"out", m.Out}} {
		for i, device := range side.devices {
			if slices.Contains(everyDevice, device) {
				return invalid(element(side.name, i), "%q is not a device: to match all devices, omit spec.match.%s", device, side.name)
			}
		}
	}
	return nil
}

func admitFirewallRule(value state.Value) *api.Error {
	return admitDevices(&value.(*state.FirewallRule).Match)
}

func admitNAT(value state.Value) *api.Error { return admitDevices(&value.(*state.NAT).Match) }

func (p *matchParser) vlans() (err *api.Error) {
	p.match.VLANs, err = parseVLANs("spec.match.vlans", p.spec.VLANs)
	return err
}

// parseVLANs parses VLANs and VLAN ranges.
func parseVLANs(field string, words api.Words) (list []datapath.VLANRange, err *api.Error) {
	for i, w := range words {
		r, err := parseRange(string(w), 1, 4094)
		if err != nil {
			return nil, invalid(fmt.Sprintf("%s[%d]", field, i), "%v, such as 100 or 200-299", err)
		}
		list = append(list, datapath.VLANRange{First: r[0], Last: r[1]})
	}
	return list, nil
}

func (p *matchParser) dscp() *api.Error {
	before := firstTwice[uint8](len(p.spec.DSCP))
	for i, w := range p.spec.DSCP {
		v, ok := parseDSCP(string(w))
		if !ok {
			return invalid(element("dscp", i), "%q is not a valid DSCP: want 0 to 63, cs0 to cs7, af11 to af43 or ef", decode.Shorten(string(w)))
		}
		if first := before(i, v); first >= 0 {
			return invalid(element("dscp", i), "%d duplicates dscp[%d]", v, first)
		}
		p.match.DSCP = append(p.match.DSCP, v)
	}
	return nil
}

// parseDSCP parses a number or a name from RFC 2474, 2597 or 3246.
func parseDSCP(text string) (uint8, bool) {
	digit := func(i int, low, high byte) bool { return text[i] >= low && text[i] <= high }
	switch {
	case text == "ef":
		return 46, true
	case len(text) == 3 && text[:2] == "cs" && digit(2, '0', '7'):
		return (text[2] - '0') << 3, true
	case len(text) == 4 && text[:2] == "af" && digit(2, '1', '4') && digit(3, '1', '3'):
		return (text[2]-'0')<<3 | (text[3]-'0')<<1, true
	}
	n, err := strconv.ParseUint(text, 10, 8)
	return uint8(n), err == nil && n <= 63 && text[0] != '+'
}

// SPDX-License-Identifier: Apache-2.0

package object

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// kindSpec describes how the spec of one kind is parsed.
type kindSpec struct {
	// parse checks a spec. canonical is the spec as it is stored, with its fields in order, so that
	// equal specs have the same text.
	parse func(spec []byte, b *decode.Budget) (value state.Value, canonical []byte, err *api.Error)
	// admit performs further checks on a value in a change. A stored object may have a value that
	// fails them, if it was stored by a version that did not reject such values. Nil: every value
	// is admitted.
	admit func(value state.Value) *api.Error
}

var kindSpecs = map[string]kindSpec{
	api.KindBridge:       {parse: parseWith(parseBridge)},
	api.KindInterface:    {parse: parseWith(parseInterface)},
	api.KindEndpoint:     {parse: parseWith(parseEndpoint)},
	api.KindRoute:        {parse: parseWith(parseRoute)},
	api.KindPodNetwork:   {parse: parseWith(parsePodNetwork)},
	api.KindAddressGroup: {parse: parseWithin(parseAddressGroup)},
	api.KindNAT:          {parse: parseWithin(parseNAT), admit: admitNAT},
	api.KindFirewallRule: {parse: parseWithin(parseFirewallRule), admit: admitFirewallRule},
	api.KindService:      {parse: parseWithin(parseService), admit: admitService},
	api.KindTunnel:       {parse: parseWith(parseTunnel)},
	api.KindPeer:         {parse: parseWith(parsePeer)},
	api.KindMirror:       {parse: parseWithin(parseMirror)},
	api.KindNamespace:    {parse: parseWith(parseNamespace)},
	api.KindEntity:       {parse: parseWith(parseEntity)},
	api.KindTier:         {parse: parseWith(parseTier)},
	api.KindPolicy:       {parse: parseWithin(parsePolicy)},
}

// parseWith is parseWithin for kinds whose values are no larger than their specs.
func parseWith[S any](parse func(*S) (state.Value, *api.Error)) func([]byte, *decode.Budget) (state.Value, []byte, *api.Error) {
	return parseWithin(func(s *S, _ *decode.Budget) (state.Value, *api.Error) { return parse(s) })
}

func parseWithin[S any](parse func(*S, *decode.Budget) (state.Value, *api.Error)) func([]byte, *decode.Budget) (state.Value, []byte, *api.Error) {
	return func(spec []byte, b *decode.Budget) (state.Value, []byte, *api.Error) {
		var s S
		if err := decode.Within(spec, &s, b); err != nil {
			return nil, nil, api.Errorf(err.Reason(), "%s", err.Text).At("", strings.TrimSuffix("spec."+err.Path, "."))
		}
		v, err := parse(&s, b)
		if err != nil {
			return nil, nil, err
		}
		canonical, merr := json.Marshal(&s)
		if merr != nil {
			return nil, nil, api.FromError(merr)
		}
		return v, canonical, nil
	}
}

// ParseSpec checks the spec of an object of a kind, which must be one of [api.Kinds], within the
// budget b. canonical is the spec as it is stored, with its fields in order, so that equal specs
// have the same text.
func ParseSpec(kind string, spec []byte, b *decode.Budget) (value state.Value, canonical []byte, err *api.Error) {
	return kindSpecs[kind].parse(spec, b)
}

// invalid returns an error about one field of a spec.
func invalid(field, format string, args ...any) *api.Error {
	return api.Errorf(api.ReasonInvalid, format, args...).At("", field)
}

// choose returns the index of word in words, which are the values of a field; the first is the
// default. The lists of words in package api are in the same order as the constants in package
// datapath.
func choose(field, word string, words ...string) (int, *api.Error) {
	if word == "" {
		return 0, nil
	}
	for i, w := range words {
		if w == word {
			return i, nil
		}
	}
	return 0, invalid(field, "%q is not one of %s", decode.Shorten(word), strings.Join(words, ", "))
}

// maxDevice is the maximum length of an interface name: the kernel's IFNAMSIZ without the
// terminating zero.
const maxDevice = 15

func parseInterface(s *api.InterfaceSpec) (state.Value, *api.Error) {
	address, err := parseInterfaceDevice(s)
	if err != nil {
		return nil, err
	}
	netns, err := choose("spec.netns", s.Netns, api.Netns...)
	if err != nil {
		return nil, err
	}
	role, err := choose("spec.role", s.Role, api.Roles...)
	if err != nil {
		return nil, err
	}
	xdp, err := choose("spec.xdp", s.XDP, api.XDPModes...)
	if err != nil {
		return nil, err
	}
	return &state.Interface{Port: datapath.Port{
		Device:  s.Device,
		Address: address,
		Switch:  netns == 1,
		Role:    datapath.Role(role),
		XDP:     datapath.XDPMode(xdp),
	}}, nil
}

// parseInterfaceDevice checks how a device is selected: by its name, or by the address that it
// returns.
func parseInterfaceDevice(s *api.InterfaceSpec) (address netip.Addr, err *api.Error) {
	switch {
	case s.Address == "":
		return address, checkDevice("spec.device", s.Device)
	case s.Device != "":
		return address, invalid("spec.address", "cannot be combined with device: omit one of them")
	}
	address, perr := parseHost(s.Address)
	switch {
	case perr != nil:
		return address, invalid("spec.address", "%q %v", decode.Shorten(s.Address), perr)
	case address.IsLoopback() || address.IsLinkLocalUnicast() && address.Is6():
		return address, invalid("spec.address", "%s is an address of several devices: name the device", address)
	}
	return address, nil
}

func parseFrontend(field, text string) (datapath.Frontend, *api.Error) {
	const want = "want address:port/protocol, such as 192.0.2.1:80/tcp or [2001:db8::1]:80/tcp"
	at := strings.LastIndexByte(text, '/')
	if at < 0 {
		return datapath.Frontend{}, invalid(field, "%q has no protocol: %s", decode.Shorten(text), want)
	}
	protocol, ok := datapath.ParseProtocol(text[at+1:])
	if !ok || protocol == datapath.ICMP || protocol == datapath.ICMPv6 {
		return datapath.Frontend{}, invalid(field, "%q: the protocol must be tcp, udp or sctp", decode.Shorten(text))
	}
	addr, err := parseAddrPort(text[:at])
	if err != nil {
		return datapath.Frontend{}, invalid(field, "%q: %v; %s", decode.Shorten(text), err, want)
	}
	if addr.Addr().IsLoopback() {
		return datapath.Frontend{}, invalid(field, "%q: %s is a loopback address, which other hosts cannot reach: use an address that clients can reach", decode.Shorten(text), addr.Addr())
	}
	return datapath.Frontend{Addr: addr, Protocol: protocol}, nil
}

// parseAddrPort parses the address and port of one host.
func parseAddrPort(text string) (netip.AddrPort, error) {
	host, portText, ok := cutPort(text)
	if alone, err := netip.ParseAddr(text); err == nil && alone.Is6() && (!ok || !isAddr(host)) {
		return netip.AddrPort{}, fmt.Errorf("no port; an IPv6 address with a port must be in brackets: [%s]:80", alone)
	}
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("no port")
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 || portText[0] == '+' {
		return netip.AddrPort{}, fmt.Errorf("port %q: want a number from 1 to 65535", decode.Shorten(portText))
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", decode.Shorten(host))
	case addr.Is6() && text[0] != '[':
		return netip.AddrPort{}, fmt.Errorf("an IPv6 address with a port must be in brackets: [%s]:%d", addr, port)
	case addr.Zone() != "":
		return netip.AddrPort{}, fmt.Errorf("a scoped address is not valid on the whole node")
	case addr.Is4In6():
		return netip.AddrPort{}, fmt.Errorf("is an IPv4-mapped IPv6 address: write %s", addr.Unmap())
	case addr.IsUnspecified(), addr.IsMulticast(), addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return netip.AddrPort{}, fmt.Errorf("%s is not the address of one host", addr)
	}
	return netip.AddrPortFrom(addr, uint16(port)), nil
}

func isAddr(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

// cutPort splits host:port or [host]:port.
func cutPort(text string) (host, port string, ok bool) {
	at := strings.LastIndexByte(text, ':')
	if at <= 0 || at == len(text)-1 {
		return "", "", false
	}
	host, port = text[:at], text[at+1:]
	if host[0] == '[' {
		if host[len(host)-1] != ']' {
			return "", "", false
		}
		host = host[1 : len(host)-1]
		if !strings.Contains(host, ":") {
			return "", "", false // brackets are for IPv6
		}
	}
	return host, port, true
}

// between returns d, or otherwise if d is zero. It rejects d if it is not between low and high.
func between(field string, d api.Duration, otherwise, low, high time.Duration) (time.Duration, *api.Error) {
	v := time.Duration(d)
	if v == 0 {
		return otherwise, nil
	}
	if v < low || v > high {
		return 0, invalid(field, "%s is not between %s and %s", d, low, high)
	}
	return v, nil
}

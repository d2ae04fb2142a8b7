// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Limits on an Endpoint.
const (
	mostEndpointAddresses = 64
	longestWord           = 253 // for informational fields
	longestPath           = 4096
)

func parseEndpoint(s *api.EndpointSpec) (state.Value, *api.Error) {
	if err := checkDevice("spec.device", s.Device); err != nil {
		return nil, err
	}
	v := &state.Endpoint{Labels: s.Labels, Namespace: s.Namespace, Pod: s.Pod, UID: s.UID}
	v.Device, v.Network = s.Device, s.Network
	var err *api.Error
	if v.MAC, err = parseMAC("spec.mac", s.MAC); err != nil {
		return nil, err
	}
	if v.Addresses, err = parseEndpointAddresses(s.Addresses); err != nil {
		return nil, err
	}
	if err := checkMTU(s.MTU, leastMTU); err != nil {
		return nil, err
	}
	v.MTU = s.MTU
	if err := checkLabels(s.Labels); err != nil {
		return nil, invalid("spec.labels", "%s", strings.TrimPrefix(err.Message, "labels: "))
	}
	if s.Network != "" && (len(s.Network) > maxName || !namePattern.MatchString(s.Network)) {
		return nil, invalid("spec.network", "%q is not a valid name of a PodNetwork or a Bridge", decode.Shorten(s.Network))
	}
	for _, f := range []struct {
		name, text string
		most       int
	}{
		{"namespace", s.Namespace, longestWord}, {"pod", s.Pod, longestWord}, {"uid", s.UID, longestWord}, {"containerID", s.ContainerID, longestWord},
		{"netns", s.Netns, longestPath},
	} {
		if len(f.text) > f.most || strings.ContainsFunc(f.text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return nil, invalid("spec."+f.name, "%q: want at most %d printable bytes", decode.Shorten(f.text), f.most)
		}
	}
	return v, nil
}

// parseMAC parses the MAC address of one host.
func parseMAC(field, text string) (mac [6]byte, err *api.Error) {
	const want = "want six bytes, such as 0a:58:0a:f4:01:05"
	if text == "" {
		return mac, invalid(field, "is missing: %s", want)
	}
	parsed, perr := net.ParseMAC(text)
	switch {
	case perr != nil || len(parsed) != len(mac):
		return mac, invalid(field, "%q is not a valid MAC: %s", decode.Shorten(text), want)
	case parsed[0]&1 != 0:
		return mac, invalid(field, "%s is a group address, not the MAC address of one host", parsed)
	case datapath.IsTunnelMAC([6]byte(parsed)):
		return mac, invalid(field, "%s is the MAC of tunnels; use another one", parsed)
	case [6]byte(parsed) == mac:
		return mac, invalid(field, "%s is not the address of one host", parsed)
	}
	return [6]byte(parsed), nil
}

func parseEndpointAddresses(texts []string) (list []netip.Addr, err *api.Error) {
	if len(texts) == 0 {
		return nil, invalid("spec.addresses", "is missing: without an address all its packets are dropped")
	}
	if len(texts) > mostEndpointAddresses {
		return nil, invalid("spec.addresses", "%d of them: at most %d", len(texts), mostEndpointAddresses)
	}
	before := firstTwice[netip.Addr](len(texts))
	for i, text := range texts {
		field := fmt.Sprintf("spec.addresses[%d]", i)
		if p, perr := netip.ParsePrefix(text); perr == nil {
			return nil, invalid(field, "%q has a prefix length: write %s", decode.Shorten(text), p.Addr())
		}
		a, perr := parseHost(text)
		if perr == nil && a.IsLoopback() {
			perr = fmt.Errorf("is a loopback address")
		}
		if perr != nil {
			return nil, invalid(field, "%q %v", decode.Shorten(text), perr)
		}
		if first := before(i, a); first >= 0 {
			return nil, invalid(field, "%s duplicates addresses[%d]", a, first)
		}
		list = append(list, a)
	}
	return list, nil
}

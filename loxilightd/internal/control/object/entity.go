// SPDX-License-Identifier: Apache-2.0

package object

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Limits on an Entity.
const (
	mostEntityPorts = 256
	longestSet      = 63
)

// setPattern is the syntax of the names of sets.
var setPattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// portProtocols are the values of api.ServiceProtocols, in the same order.
var portProtocols = [...]policy.Protocol{policy.TCP, policy.UDP, policy.SCTP}

func parseEntity(s *api.EntitySpec) (state.Value, *api.Error) {
	v := &state.Entity{Entity: policy.Entity{Namespace: s.Namespace, Labels: s.Labels, Here: s.Here}}
	var err *api.Error
	if v.Set, err = parseSet("spec.set", s.Set); err != nil {
		return nil, err
	}
	if err := checkText("spec.namespace", s.Namespace); err != nil {
		return nil, err
	}
	if err := checkLabelMap("spec.labels", s.Labels); err != nil {
		return nil, err
	}
	if v.Ports, err = parseEntityPorts(s.Ports); err != nil {
		return nil, err
	}
	switch {
	case s.Here && s.Endpoint != nil:
		return nil, invalid("spec.here", "cannot be combined with spec.endpoint: this node is not an Endpoint; create another Entity for it")
	case s.Here && s.Addresses != nil:
		return nil, invalid("spec.here", "cannot be combined with spec.addresses: the traffic of this node is identified by its origin, not by its address; omit the addresses")
	case s.Endpoint != nil && s.Addresses != nil:
		return nil, invalid("spec.endpoint", "cannot be combined with spec.addresses: the Entity has the addresses of its Endpoint; omit the addresses")
	case s.Endpoint != nil:
		v.Of, err = parseEntityEndpoint(s.Endpoint)
	case !s.Here && len(s.Addresses) == 0:
		err = invalid("spec.addresses", "is missing: set addresses, or endpoint for an Endpoint of this node, or here for this node itself")
	case !s.Here:
		v.Addrs, err = parseEntityAddresses(s.Addresses)
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// parseSet returns the name of a set, or the default.
func parseSet(field, set string) (string, *api.Error) {
	set = cmp.Or(set, api.SetPods)
	if len(set) > longestSet || !setPattern.MatchString(set) {
		return "", invalid(field, "%q is not the name of a set: want at most %d characters from a-z and 0-9, with - only between them, such as pods or nodes", decode.Shorten(set), longestSet)
	}
	return set, nil
}

// checkText checks an informational word, or the name of something outside the daemon.
func checkText(field, text string) *api.Error {
	if len(text) > longestWord || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return invalid(field, "%q: want at most %d printable bytes", decode.Shorten(text), longestWord)
	}
	return nil
}

// checkLabelMap checks labels in a spec.
func checkLabelMap(field string, labels map[string]string) *api.Error {
	if err := checkLabels(labels); err != nil {
		return invalid(field, "%s", strings.TrimPrefix(err.Message, "labels: "))
	}
	return nil
}

func parseEntityPorts(specs []api.EntityPort) (list []policy.NamedPort, err *api.Error) {
	if len(specs) > mostEntityPorts {
		return nil, invalid("spec.ports", "%d of them: at most %d", len(specs), mostEntityPorts)
	}
	for i, s := range specs {
		field := fmt.Sprintf("spec.ports[%d]", i)
		if s.Name == "" {
			return nil, invalid(field+".name", "is missing: set the name by which rules refer to the port")
		}
		if err := checkText(field+".name", s.Name); err != nil {
			return nil, err
		}
		protocol, err := choose(field+".protocol", s.Protocol, api.ServiceProtocols...)
		if err != nil {
			return nil, err
		}
		if err := checkPort(field+".port", s.Port); err != nil {
			return nil, err
		}
		p := policy.NamedPort{Name: s.Name, Protocol: portProtocols[protocol], Number: uint16(s.Port)}
		if first := slices.Index(list, p); first >= 0 {
			return nil, invalid(field, "duplicates ports[%d]", first)
		}
		list = append(list, p)
	}
	return list, nil
}

func checkPort(field string, port int) *api.Error {
	if port < 1 || port > 65535 {
		return invalid(field, "%d is not a port: want a number from 1 to 65535", port)
	}
	return nil
}

func parseEntityEndpoint(s *api.EntityEndpoint) (of state.EndpointRef, err *api.Error) {
	of = state.EndpointRef{Name: s.Name, Namespace: s.Namespace, Pod: s.Pod, UID: s.UID}
	switch {
	case s.Name != "" && s.Pod+s.Namespace+s.UID != "":
		return of, invalid("spec.endpoint.name", "cannot be combined with namespace, pod and uid: name the Endpoint, or its pod")
	case s.Name == "" && s.Pod == "":
		return of, invalid("spec.endpoint", "is empty: set the name of an Endpoint, or the namespace and pod that it has")
	case len(s.Name) > maxName || s.Name != "" && !namePattern.MatchString(s.Name):
		return of, invalid("spec.endpoint.name", "%q is not a name of an Endpoint", decode.Shorten(s.Name))
	}
	if err := checkText("spec.endpoint.namespace", s.Namespace); err != nil {
		return of, err
	}
	if err := checkText("spec.endpoint.pod", s.Pod); err != nil {
		return of, err
	}
	return of, checkText("spec.endpoint.uid", s.UID)
}

func parseEntityAddresses(texts []string) (list []netip.Addr, err *api.Error) {
	if list, err = parseEndpointAddresses(texts); err != nil {
		return nil, err
	}
	for i, a := range list {
		if a.Is6() && a.IsLinkLocalUnicast() {
			return nil, invalid(fmt.Sprintf("spec.addresses[%d]", i), "%s is a link-local address, which other hosts may have on other links: set an address that is unique", a)
		}
	}
	return list, nil
}

func parseNamespace(s *api.NamespaceSpec) (state.Value, *api.Error) {
	return &state.Namespace{Namespace: policy.Namespace{Labels: s.Labels}}, checkLabelMap("spec.labels", s.Labels)
}

func parseTier(s *api.TierSpec) (state.Value, *api.Error) {
	if s.Order == nil {
		return nil, invalid("spec.order", "is missing: set a number; tiers with lower numbers are evaluated first")
	}
	v := &state.Tier{Order: *s.Order}
	for i, word := range s.Always {
		field := fmt.Sprintf("spec.always[%d]", i)
		n, err := chooseOne(field, word, api.TierPeers)
		if err != nil {
			return nil, err
		}
		set := [...]*bool{&v.Always.Self, &v.Always.Node}[n]
		if *set {
			return nil, invalid(field, "%s occurs twice", word)
		}
		*set = true
	}
	return v, nil
}

// chooseOne is like choose, for words without a default.
func chooseOne(field, word string, words []string) (int, *api.Error) {
	if word == "" {
		return 0, invalid(field, "is missing: want one of %s", strings.Join(words, ", "))
	}
	return choose(field, word, words...)
}

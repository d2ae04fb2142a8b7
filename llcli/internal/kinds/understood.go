// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"fmt"
	"net"
	"strings"

	"github.com/loxilight/loxilight/llcli/internal/command"
)

// foreignActions are other tools' words for actions of FirewallRules.
var foreignActions = map[string]string{"drop": "deny", "discard": "deny", "block": "deny", "accept": "allow", "pass": "allow", "permit": "allow"}

// foreignICMP are other tools' words for ICMP message types.
var foreignICMP = map[string]string{"ping": "echo-request", "pong": "echo-reply"}

// foreignAlgorithms are other tools' words for algorithms of Services.
var foreignAlgorithms = map[string]string{
	"rr": "round-robin", "wrr": "round-robin", "roundrobin": "round-robin",
	"lc": "least-connections", "wlc": "least-connections", "leastconn": "least-connections", "least-conn": "least-connections",
	"sh": "source-hash", "source": "source-hash", "ip-hash": "source-hash", "mh": "maglev",
}

// foreignDirections are other tools' words for directions of packets.
var foreignDirections = map[string]string{"ingress": "in", "rx": "in", "egress": "out", "tx": "out", "inout": "both"}

// understood returns a value of the flag called name in the API's terms, even if it is given in
// other tools' terms. It returns an empty string if any value matches, so that the flag has no
// effect.
func (f *specField) understood(name, word string) (string, error) {
	lower := strings.ToLower(word)
	switch f.path {
	case "action":
		return cmp.Or(foreignActions[lower], lower), nil
	case "direction":
		return cmp.Or(foreignDirections[lower], lower), nil
	case "hooks":
		return lower, nil
	case "match.icmp":
		return cmp.Or(foreignICMP[lower], word), nil
	case "match.source", "match.destination", "match.protocol", "match.in", "match.out":
		if lower == "any" || lower == "all" {
			return "", nil
		}
		if rest, negated := strings.CutPrefix(word, "!"); negated {
			return "", command.Usagef("--%s %s: negation is not supported; add a rule for %s that is evaluated before this one (a lower --priority)", name, word, rest)
		}
	case "match.ports", "match.sourcePorts":
		if lower == "any" || lower == "all" {
			return "", nil
		}
		return namedPort(name, word)
	case "to.ports":
		return namedPort(name, word)
	}
	return word, nil
}

// namedPort returns the value of a flag for ports, or rejects an unknown name.
func namedPort(flag, word string) (string, error) {
	port, known := portOf(word)
	if !known {
		return "", command.Usagef("--%s %s: unknown service name; expected a port from 1 to 65535, a range such as 8000-8100, or a name of /etc/services such as ssh", flag, word)
	}
	return port, nil
}

// portOf returns the port of a well-known service such as ssh, and returns numbers and ranges
// unchanged. It returns false if the word is not the name of a service.
func portOf(word string) (string, bool) {
	if word == "" || word[0] >= '0' && word[0] <= '9' {
		return word, true
	}
	for _, network := range []string{"tcp", "udp"} {
		if port, err := net.LookupPort(network, strings.ToLower(word)); err == nil && port > 0 {
			return fmt.Sprint(port), true
		}
	}
	return word, false
}

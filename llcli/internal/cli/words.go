// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
)

// foreignActions are words of other tools for actions of FirewallRules.
var foreignActions = map[string]string{"drop": "deny", "discard": "deny", "block": "deny", "accept": "allow", "pass": "allow", "permit": "allow"}

// understood returns a value of a flag in the words of the API, where other tools call it
// otherwise. Empty: any value matches, so the flag says nothing.
func (f *specField) understood(word string) (string, error) {
	lower := strings.ToLower(word)
	switch f.path {
	case "action":
		return or(foreignActions[lower], word), nil
	case "match.source", "match.destination", "match.protocol", "match.in", "match.out":
		if lower == "any" || lower == "all" && f.path == "match.protocol" {
			return "", nil
		}
		if rest, negated := strings.CutPrefix(word, "!"); negated {
			return "", usagef("--%s %s: there is no negation; add a rule for %s that is asked before this one (a lower --priority)", f.flag, word, rest)
		}
	case "match.ports", "match.sourcePorts":
		if lower == "any" {
			return "", nil
		}
		return portOf(word), nil
	}
	return word, nil
}

// portOf returns the port of a well-known service such as ssh, or the word.
func portOf(word string) string {
	if word == "" || word[0] >= '0' && word[0] <= '9' {
		return word
	}
	for _, network := range []string{"tcp", "udp"} {
		if port, err := net.LookupPort(network, strings.ToLower(word)); err == nil && port > 0 {
			return fmt.Sprint(port)
		}
	}
	return word
}

// completeNAT reads --to ADDRESS:PORT as address and port, and wants a type.
func completeNAT(_ string, spec map[string]any) error {
	if spec["type"] == nil {
		return usagef("what is translated? say --masquerade, --snat or --dnat")
	}
	path, portPath := []string{"to", "addresses"}, []string{"to", "ports"}
	list, _ := find(spec, []string{"to"}).(map[string]any)
	addresses, _ := list["addresses"].([]any)
	if len(addresses) != 1 {
		return nil
	}
	to, err := netip.ParseAddrPort(textOf(addresses[0]))
	if err != nil {
		return nil // no port, or refused by the daemon
	}
	if list["ports"] != nil {
		return usagef("--to %s names a port, and so does --to-port", to)
	}
	return errors.Join(put(spec, path, []any{to.Addr().String()}), put(spec, portPath, []any{fmt.Sprint(to.Port())}))
}

// completeRoute takes the prefix of a route from its name; default is that of the router's family.
func completeRoute(name string, spec map[string]any) error {
	if _, err := netip.ParsePrefix(name); spec["prefix"] == nil && err == nil {
		spec["prefix"] = name
	}
	if prefix, _ := spec["prefix"].(string); prefix == "default" || prefix == "" && name == "default" {
		spec["prefix"] = "0.0.0.0/0"
		if strings.Contains(textOf(spec["via"]), ":") {
			spec["prefix"] = "::/0"
		}
	}
	if spec["prefix"] == nil {
		return usagef("which route? say --prefix ADDRESS/LENGTH, such as 10.0.0.0/8")
	}
	return nil
}

// flagNamed is an error of the daemon with the flag that it is about.
type flagNamed struct {
	flag string
	err  error
}

func (e *flagNamed) Error() string { return "--" + e.flag + ": " + e.err.Error() }
func (e *flagNamed) Unwrap() error { return e.err }

// flagOf names the flag that an error of the daemon is about, where one was given for the field.
func (f *fieldFlags) flagOf(err error) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Data == nil || f.flags == nil {
		return err
	}
	path, _, _ := strings.Cut(strings.TrimPrefix(e.Data.Field, "spec."), "[")
	i := slices.IndexFunc(f.fields, func(s specField) bool { return s.path == path && f.flags.Changed(s.flag) })
	if i < 0 {
		return err
	}
	return &flagNamed{f.fields[i].flag, err}
}

// roleWords are the roles of Interfaces.
var roleWords = vocabulary{"ROLE", []word{
	{"uplink", "a device towards the rest of the network, or towards clients: the default. Masquerading and the MTU of pods go by uplinks",
		"the WAN side and the LAN side of a gateway are both uplinks"},
	{"port", "a device behind which one pod, VM or server is", ""},
	{"host", "the host's own end of its link to the switch", ""},
	{"tunnel", "a device of a tunnel; those of Tunnels need no Interface", ""},
}}

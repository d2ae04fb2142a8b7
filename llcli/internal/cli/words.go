// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// foreignActions are words of other tools for actions of FirewallRules.
var foreignActions = map[string]string{"drop": "deny", "discard": "deny", "block": "deny", "accept": "allow", "pass": "allow", "permit": "allow"}

// foreignICMP are words of other tools for types of ICMP messages.
var foreignICMP = map[string]string{"ping": "echo-request", "pong": "echo-reply"}

// foreignAlgorithms are words of other tools for algorithms of Services.
var foreignAlgorithms = map[string]string{
	"rr": "round-robin", "wrr": "round-robin", "roundrobin": "round-robin",
	"lc": "least-connections", "wlc": "least-connections", "leastconn": "least-connections", "least-conn": "least-connections",
	"sh": "source-hash", "source": "source-hash", "ip-hash": "source-hash", "mh": "maglev",
}

// foreignCommands are commands of other tools, with their replacements.
var foreignCommands = map[string]string{
	"log": "llcli events --since 1h", "logs": "llcli events --since 1h", "tail": "llcli events",
	"trace": "llcli events drops", "tcpdump": "llcli events drops", "capture": "llcli events drops",
	"ping": "llcli health", "ps": "llcli status", "stats": "llcli counters", "show-drops": "llcli events drops",
	"add": "llcli KIND add NAME, such as llcli service add web", "create": "llcli KIND add NAME, such as llcli service add web",
	"set": "llcli KIND set NAME, such as llcli service set web", "update": "llcli KIND set NAME, such as llcli service set web",
	"allow":  "llcli firewall add NAME --action allow",
	"accept": "llcli firewall add NAME --action allow", "drop": "llcli firewall add NAME --action deny",
	"deny": "llcli firewall add NAME --action deny", "block": "llcli firewall add NAME --action deny",
	"masquerade": "llcli nat add NAME --masquerade", "forward": "llcli nat add NAME --dnat",
	"lb": "llcli service", "vip": "llcli service", "frontend": "llcli service", "backend": "llcli service backend",
	"import": "llcli apply -f FILE", "load": "llcli apply -f FILE", "restore": "llcli replace -f FILE",
	"save": "llcli export (a change is saved when it is made)", "commit": "llcli confirm (a change is in force when it is made)",
	"undo": "llcli rollback --last", "revert": "llcli rollback --last",
	"flush": "llcli connections flush, or llcli delete KIND NAME", "reset": "llcli delete KIND NAME",
	"start": "systemctl start loxilightd", "stop": "systemctl stop loxilightd", "restart": "systemctl restart loxilightd",
	"config": "llcli export", "info": "llcli status", "conntrack": "llcli connections", "sessions": "llcli connections",
	"fdb": "llcli kernel fdb", "neigh": "llcli kernel neighbors", "neighbors": "llcli kernel neighbors", "arp": "llcli kernel neighbors",
}

// foreignFlags are flags of other tools, and those to use instead.
var foreignFlags = map[string]string{
	"src": "--source", "saddr": "--source", "from": "--source", "dst": "--destination", "daddr": "--destination",
	"sport": "--source-port", "source-ports": "--source-port", "dport": "--port", "ports": "--port", "dports": "--port",
	"proto": "--protocol", "in-interface": "--in", "iif": "--in", "iifname": "--in", "input": "--hook input",
	"out-interface": "--out", "oif": "--out", "oifname": "--out", "output": "--hook output", "hooks": "--hook", "chain": "--hook",
	"jump": "--action", "drop": "--action deny", "deny": "--action deny", "accept": "--action allow", "allow": "--action allow",
	"reject": "--action reject", "gateway": "--via", "gw": "--via", "nexthop": "--via", "dev": "--device", "interface": "--in or --out",
	"blackhole": "--type blackhole", "unreachable": "--type unreachable", "vip": "--frontend", "listen": "--frontend", "server": "--backend",
	"real-server": "--backend", "scheduler": "--algorithm", "port-forward": "--dnat", "redirect": "--dnat", "to-destination": "--to",
	"to-source": "--to", "nat": "--masquerade", "prio": "--priority", "order": "--priority", "members": "--member", "address": "--member",
	"follow": "--watch", "namespace": "--netns", "force": "--overwrite",
}

// foreignShorthands are one-letter flags of other tools.
var foreignShorthands = map[string]string{
	"s": "--source", "d": "--destination", "p": "--protocol", "i": "--in", "j": "--action", "A": "--hook", "w": "--watch", "b": "--backend",
}

// withFlag completes the error about an unknown flag by naming the command's equivalent flag.
func withFlag(cmd *cobra.Command, unknown *pflag.NotExistError) error {
	name := unknown.GetSpecifiedName()
	instead := foreignFlags[name]
	if unknown.GetSpecifiedShortnames() != "" {
		instead = foreignShorthands[name]
	}
	own, _, _ := strings.Cut(strings.TrimPrefix(instead, "--"), " ")
	if own == "" || cmd.Flags().Lookup(own) == nil {
		return unknown
	}
	return fmt.Errorf("%w; use %s", unknown, instead)
}

// understood returns a value of the flag called name in the API's terms, if other tools use another
// term. Empty: any value matches, so the flag has no effect.
func (f *specField) understood(name, word string) (string, error) {
	lower := strings.ToLower(word)
	switch f.path {
	case "action":
		return or(foreignActions[lower], lower), nil
	case "hooks":
		return lower, nil
	case "match.icmp":
		return or(foreignICMP[lower], word), nil
	case "match.source", "match.destination", "match.protocol", "match.in", "match.out":
		if lower == "any" || lower == "all" && f.path == "match.protocol" {
			return "", nil
		}
		if rest, negated := strings.CutPrefix(word, "!"); negated {
			return "", usagef("--%s %s: there is no negation; add a rule for %s that is evaluated before this one (a lower --priority)", name, word, rest)
		}
	case "match.ports", "match.sourcePorts":
		if lower == "any" {
			return "", nil
		}
		return namedPort(name, word)
	case "to.ports":
		return namedPort(name, word)
	}
	return word, nil
}

// namedPort returns the value of a flag for ports, or refuses an unknown name.
func namedPort(flag, word string) (string, error) {
	port, known := portOf(word)
	if !known {
		return "", usagef("--%s %s: unknown service name; expected a port from 1 to 65535, a range such as 8000-8100, or a name of /etc/services such as ssh", flag, word)
	}
	return port, nil
}

// portOf returns the port of a well-known service such as ssh, and numbers and ranges as they are;
// false: the word is not the name of a service.
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

// completeNAT wants a type.
func completeNAT(_ string, spec map[string]any) error {
	if spec["type"] == nil {
		return usagef("the type is missing; set --masquerade, --snat or --dnat")
	}
	return nil
}

// splitTo reads --to ADDRESS:PORT as an address and a port, which may be a range or a name.
func splitTo(spec map[string]any, given *pflag.FlagSet) error {
	flag := "to"
	if given.Changed("add-to") {
		flag = "add-to"
	}
	to, _ := spec["to"].(map[string]any)
	addresses, _ := to["addresses"].([]any)
	for i := range addresses {
		text := textOf(addresses[i])
		address, word, ok := cutPort(text)
		switch {
		case !ok:
			continue // without a port, or refused by the daemon
		case len(addresses) > 1:
			return usagef("--%s %s: a port goes with a single address; set the port of several with --to-port", flag, text)
		case given.Changed("to-port"):
			return usagef("--%s %s names a port, and so does --to-port", flag, text)
		}
		port, _ := portOf(word) // an unknown name is not a number
		first, last, _ := strings.Cut(port, "-")
		for _, number := range []string{first, or(last, first)} {
			if n, err := strconv.ParseUint(number, 10, 16); err != nil || n == 0 {
				return usagef("--%s %s: %q is not a port; expected ADDRESS:PORT with a port from 1 to 65535, such as 10.0.0.7:8080", flag, text, port)
			}
		}
		addresses[i] = address
		to["ports"] = []any{port}
	}
	return nil
}

// cutPort splits ADDRESS:PORT or [ADDRESS]:PORT; false: text is not an address with something
// behind it.
func cutPort(text string) (address, port string, ok bool) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return "", "", false
	}
	address, port = text[:i], text[i+1:]
	inner, bracketed := strings.CutPrefix(address, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	ip, err := netip.ParseAddr(inner)
	if err != nil || bracketed != closed || bracketed != ip.Is6() {
		return "", "", false
	}
	return ip.String(), port, true
}

// completeRoute takes the prefix of a route from its name. The prefix default is 0.0.0.0/0, or ::/0
// if via is an IPv6 address.
func completeRoute(name string, spec map[string]any) error {
	if _, err := netip.ParsePrefix(name); spec["prefix"] == nil && err == nil {
		spec["prefix"] = name
	}
	if spec["prefix"] == nil && name == "0/0" {
		spec["prefix"] = "0.0.0.0/0"
	}
	if prefix, _ := spec["prefix"].(string); prefix == "default" || prefix == "" && name == "default" {
		spec["prefix"] = "0.0.0.0/0"
		if strings.Contains(textOf(spec["via"]), ":") {
			spec["prefix"] = "::/0"
		}
	}
	if spec["prefix"] == nil {
		return usagef("the prefix is missing; set --prefix ADDRESS/LENGTH, such as 10.0.0.0/8")
	}
	return nil
}

// roleWords are the roles of Interfaces.
var roleWords = vocabulary{"ROLE", []word{
	{"uplink", "a device towards the rest of the network, or towards clients: the default. Masquerading and the MTU of pods go by uplinks",
		"the WAN side and the LAN side of a gateway are both uplinks"},
	{"port", "a device behind which one pod, VM or server is", ""},
	{"host", "the host's own end of its link to the switch", ""},
	{"tunnel", "a device of a tunnel; devices of Tunnels need no Interface", ""},
}}

// ruleWords are values of fields of FirewallRules and NATs.
var ruleWords = vocabulary{"RULE", []word{
	{"allow", "of a FirewallRule: the packet passes, and its replies too unless stateful is false", ""},
	{"deny", "of a FirewallRule: the packet is dropped silently", "llcli events drops --of firewall/NAME shows such packets"},
	{"reject", "of a FirewallRule: the packet is dropped, and its sender gets a reset, an SCTP ABORT or an ICMP error", ""},
	{"forward", "a hook: packets that are routed or bridged through the node", ""},
	{"input", "a hook: packets to the node itself", ""},
	{"output", "a hook: packets from the node itself", ""},
	{"local", "in source and destination of rules: the current addresses of the node, except loopback and link-local addresses", ""},
	{"masquerade", "a NAT: the source becomes the address of the output device",
		"llcli nat add out --masquerade --out eth0"},
	{"snat", "a NAT: the source becomes an address of to.addresses", "llcli nat add out --snat --out eth0 --to 192.0.2.10"},
	{"dnat", "a NAT: the destination becomes an address of to.addresses: a port forward",
		"llcli nat add web --dnat --in eth0 --destination local --protocol tcp --port 8080 --to 10.0.0.7:80"},
}}

// backendWords are states of backends, as configured and as observed.
var backendWords = vocabulary{"BACKEND", []word{
	{"active", "gets new connections; the default", ""},
	{"draining", "keeps its connections and gets no new ones, unless the Service has no other backends",
		"llcli service drain NAME ADDRESS --undo ends it"},
	{"down", "gets no new connections, and its UDP connections end at once; others continue", ""},
	{"healthy", "its health check succeeds", ""},
	{"unhealthy", "its health check fails: it counts as down until it succeeds again", "llcli describe service NAME shows the reason"},
	{"unknown", "no result of a health check yet, or no health check", ""},
}}

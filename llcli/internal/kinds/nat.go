// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/pflag"
)

var natKind = Kind{
	Name:    api.KindNAT,
	Words:   []string{"nat", "nats"},
	Meaning: "which addresses are translated, and to what",
	Columns: []output.Column{
		{Title: "PRIORITY", Right: true, Optional: 1}, {Title: "TYPE"}, {Title: "MATCH", Flexible: true}, {Title: "TO", Flexible: true},
	},
	Wide: []output.Column{
		{Title: "MAPPING", Optional: 4}, {Title: "FILTERING", Optional: 4}, {Title: "BLOCK", Right: true, Optional: 5}, {Title: "LOG", Optional: 5},
		{Title: "LABELS", Flexible: true, Optional: 5},
	},
	Cells:    natCells,
	Order:    byPriority,
	Spec:     func() any { return &api.NATSpec{} },
	Schema:   natSchema,
	Plural:   "NAT objects",
	Hits:     true,
	details:  showHits,
	Topics:   []string{api.TopicChanges, api.TopicStatus, api.TopicDrops, api.TopicConnections},
	fields:   natFields,
	complete: completeNAT,
	adjust:   splitTo,
	AddExample: "  llcli nat add out --masquerade --source 10.0.0.0/8 --out eth0\n" +
		"  llcli nat add pool --snat --source 10.0.0.0/8 --to 192.0.2.10-192.0.2.20 --port-block 512 --log\n" +
		"  llcli nat add web --dnat --destination 192.0.2.10 --protocol tcp --port 80 --to 10.0.0.7 --to-port 8080",
	SetExample: "  llcli nat set pool --add-to 192.0.2.30\n  llcli nat set web --to-port 8081",
}

func natCells(o *api.Object, wide bool) []output.Cell {
	var spec api.NATSpec
	Decode(o, &spec, &struct{}{})
	to := "-"
	if spec.To != nil {
		to = output.Join(spec.To.Addresses.Strings())
		if ports := spec.To.Ports.Strings(); len(ports) > 0 {
			to += " ports " + output.Join(ports)
		}
	}
	kind := spec.Type
	if spec.OneToOne {
		kind += " 1:1"
	}
	cells := []output.Cell{{Text: priority(spec.Priority)}, {Text: kind}, {Text: matchText(spec.Match)}, {Text: to}}
	if wide {
		cells = append(cells, output.Cell{Text: cmp.Or(spec.Mapping, "-")}, output.Cell{Text: cmp.Or(spec.Filtering, "-")}, output.Cell{Text: output.Number(spec.PortBlock)},
			output.Cell{Text: output.YesNo(spec.Log)}, output.Cell{Text: output.Labels(o.Labels)})
	}
	return cells
}

var natFields = append([]specField{
	{flag: "type", path: "type", usage: "`TYPE`: " + AnyOf(api.NATTypes), values: api.NATTypes},
	{flag: "masquerade", path: "type", form: formMeans, means: "masquerade", usage: "translate the source to the address of the output device"},
	{flag: "snat", path: "type", form: formMeans, means: "snat", usage: "translate the source to an address in --to"},
	{flag: "dnat", path: "type", form: formMeans, means: "dnat", usage: "translate the destination to an address in --to"},
	{flag: "to", path: "to.addresses", form: formWords, usage: "`ADDRESS` to translate to, a prefix or a range; may be repeated"},
	{flag: "to-port", path: "to.ports", form: formWords, usage: "`PORT` or range to translate to; may be repeated"},
	{flag: "one-to-one", path: "oneToOne", form: formTruth, usage: "translate addresses one-to-one"},
	{flag: "mapping", path: "mapping", usage: "`HOW` a mapping depends on the remote address and port: " + AnyOf(withDefault(api.NATBehaviours)), values: api.NATBehaviours},
	{flag: "filtering", path: "filtering", usage: "`WHICH` remote hosts may use a mapping: " + AnyOf(withDefault(api.NATBehaviours)), values: api.NATBehaviours},
	{flag: "port-block", path: "portBlock", form: formNumber, usage: "`N` ports for each inner address at a time, 64 to 4096 (default: one by one)"},
	{flag: "log", path: "log", form: formTruth, usage: "log the start and end of each block or mapping"},
}, matchFields...)

// completeNAT checks that a type is given.
func completeNAT(_ string, spec map[string]any) error {
	if spec["type"] == nil {
		return command.Usagef("the type is missing; set --masquerade, --snat or --dnat")
	}
	return nil
}

// splitTo reads --to ADDRESS:PORT as an address and a port, which may be a range or a name.
func splitTo(a *command.App, spec map[string]any, given *pflag.FlagSet) error {
	flag := "to"
	if given.Changed("add-to") {
		flag = "add-to"
	}
	to, _ := spec["to"].(map[string]any)
	addresses, _ := to["addresses"].([]any)
	for i := range addresses {
		text := textOf(addresses[i])
		if err := unbracketed(a, spec, flag, text); err != nil {
			return err
		}
		address, word, ok := cutPort(text)
		switch {
		case !ok:
			continue // without a port, or rejected by the daemon
		case len(addresses) > 1:
			return command.Usagef("--%s %s: a port goes with a single address; set the port of several with --to-port", flag, text)
		case given.Changed("to-port"):
			return command.Usagef("--%s %s already names a port: omit --to-port", flag, text)
		}
		port, _ := portOf(word) // an unknown name is not a number
		first, last, _ := strings.Cut(port, "-")
		for _, number := range []string{first, cmp.Or(last, first)} {
			if n, err := strconv.ParseUint(number, 10, 16); err != nil || n == 0 {
				return command.Usagef("--%s %s: %q is not a port; expected ADDRESS:PORT with a port from 1 to 65535, such as 10.0.0.7:8080", flag, text, port)
			}
		}
		addresses[i] = address
		to["ports"] = []any{port}
	}
	return nil
}

// unbracketed rejects an IPv6 address that is followed by a port but is not in brackets. Text that
// is also an address as a whole is taken as that address, with a note for dnat.
func unbracketed(a *command.App, spec map[string]any, flag, text string) error {
	i := max(0, strings.LastIndexByte(text, ':'))
	ip, err := netip.ParseAddr(text[:i])
	if err != nil || !ip.Is6() {
		return nil
	}
	if _, err := netip.ParsePrefix(text); err == nil {
		return nil
	}
	port := text[i+1:]
	_, err = netip.ParseAddr(text)
	switch {
	case err != nil:
		return command.Usagef("--%s %s: an IPv6 address with a port needs brackets: [%s]:%s", flag, text, ip, port)
	case spec["type"] == "dnat" && find(spec, []string{"to", "ports"}) == nil && isNumber(port):
		a.Note("--%s %s is an address without a port; for port %s of %s write [%s]:%s", flag, text, port, ip, ip, port)
	}
	return nil
}

// cutPort splits ADDRESS:PORT or [ADDRESS]:PORT. It returns false if text is not an address
// followed by something.
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

const natSchema = `kind: NAT
name: out                     # a-z, 0-9 and - . / : inside; unique among NATs
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  type: snat                  # or masquerade: the address of the output device
  priority: 100               # lower first, then by name; default 1000
  match:                      # as for a FirewallRule: llcli explain firewall
    source: 10.0.0.0/8
    out: eth0
  to:
    addresses: 192.0.2.10-192.0.2.20
    ports: 1024-65535         # range of source ports
  mapping: endpoint-independent            # default address-and-port-dependent
  filtering: address-and-port-dependent    # as in RFC 4787
  portBlock: 512              # ports that an inner address gets at a time, 64 to 4096
  log: true                   # log the start and end of each block or mapping
---
kind: NAT
name: forward-web
spec:
  type: dnat
  match:
    destination: local        # the node's addresses, including those from DHCP
    in: eth0
    protocol: tcp
    ports: 8000-8009
  to: {addresses: 10.0.0.7, ports: 9000-9009}
---
kind: NAT
name: one-to-one
spec:
  type: snat
  match: {source: 10.0.5.0/28}
  to: {addresses: 192.0.2.16/28}
  oneToOne: true              # one address for each source address
`

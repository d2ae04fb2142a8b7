// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

// defaultPriority is the priority of a rule without one.
const defaultPriority = 1000

// byPriority is the order in which rules are evaluated.
func byPriority(a, b *api.Object) int {
	of := func(o *api.Object) int32 {
		var spec struct {
			Priority *int32 `json:"priority"`
		}
		Decode(o, &spec, &struct{}{})
		if spec.Priority == nil {
			return defaultPriority
		}
		return *spec.Priority
	}
	return cmp.Or(cmp.Compare(of(a), of(b)), cmp.Compare(a.Name, b.Name))
}

func priority(p *int32) string {
	if p == nil {
		return strconv.Itoa(defaultPriority)
	}
	return strconv.Itoa(int(*p))
}

// matchText writes a match in one line.
func matchText(m *api.Match) string {
	if m == nil {
		return "everything"
	}
	var parts []string
	for _, field := range []struct {
		word string
		list api.Words
	}{
		{"", m.Protocol}, {"from", m.Source}, {"port", m.SourcePorts}, {"to", m.Destination}, {"port", m.Ports}, {"type", m.ICMP},
		{"flags", flagWords(m.TCPFlags)}, {"in", m.In}, {"out", m.Out}, {"vlan", m.VLANs}, {"dscp", m.DSCP},
	} {
		if len(field.list) > 0 {
			parts = append(parts, strings.TrimSpace(fmt.Sprint(field.word, " ", strings.Join(field.list.Strings(), ","))))
		}
	}
	return cmp.Or(strings.Join(parts, " "), "everything")
}

func flagWords(text string) api.Words {
	if text == "" {
		return nil
	}
	return api.Words{api.Word(text)}
}

// matchFields are common to all rules.
var matchFields = []specField{
	{flag: "priority", path: "priority", form: formNumber, usage: "`N`: lower ones first (default 1000)"},
	{flag: "source", path: "match.source", form: formWords, groups: true, usage: "source `ADDRESS`, prefix, range, group:NAME or local (the addresses of the node); may be repeated"},
	{flag: "destination", path: "match.destination", form: formWords, groups: true, usage: "destination `ADDRESS`, prefix, range, group:NAME or local (the addresses of the node); may be repeated"},
	{flag: "protocol", path: "match.protocol", form: formWords, usage: "their `PROTOCOL`, by name or number; may be repeated", values: api.Protocols},
	{flag: "port", path: "match.ports", form: formWords, usage: "destination `PORT`, a range such as 8000-8100, or a name such as ssh; may be repeated. Rules see the port before a NAT or Service translates it"},
	{flag: "source-port", path: "match.sourcePorts", form: formWords, usage: "source `PORT` or range; may be repeated"},
	{flag: "icmp", path: "match.icmp", form: formWords, usage: "`TYPE` of ICMP messages, by name or number, or TYPE/CODE; may be repeated"},
	{flag: "tcp-flags", path: "match.tcpFlags", usage: "`FLAGS` that must be set or, with !, must not be set: syn,!ack"},
	{flag: "in", path: "match.in", form: formWords, usage: "incoming `DEVICE`; may be repeated"},
	{flag: "out", path: "match.out", form: formWords, usage: "outgoing `DEVICE`; may be repeated"},
	{flag: "vlan", path: "match.vlans", form: formWords, usage: "`VLAN`, or a range; may be repeated"},
	{flag: "dscp", path: "match.dscp", form: formWords, usage: "`DSCP`, by name or number; may be repeated"},
}

// showHits shows how often a rule decided.
func showHits(ctx context.Context, a *command.App, d command.Daemon, o *api.Object) {
	counters, err := a.Counters(ctx, d, o.Kind, o.Name)
	if err != nil {
		a.Note("the counters of %s: %v", o.Name, err)
		return
	}
	a.Field("Hits", fmt.Sprintf("%s, %s in %s", output.Plural(counters.Packets, "packet"), output.Bytes(counters.Bytes), output.Plural(counters.Connections, "connection")))
}

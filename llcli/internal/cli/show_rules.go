// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
)

// showFields shows the columns of an object's kind, and the fields that are too long for them.
func (a *app) showFields(ctx context.Context, d Daemon, k *kind, o *api.Object) {
	cells := k.cells(o, true)
	for i, c := range append(append([]column(nil), k.columns...), k.wide...) {
		switch title := c.title; title {
		case "LABELS", "FIRST": // shown elsewhere
		case "VLANS":
			a.field("By VLAN", cells[i].text)
		default:
			a.field(heading(title), cells[i].text)
		}
	}
	switch o.Kind {
	case api.KindBridge:
		a.showPorts(o)
	case api.KindEndpoint:
		a.showHostPorts(ctx, d, o)
		a.showTraffic(ctx, d, o)
	case api.KindAddressGroup:
		a.showMembers(o)
	case api.KindNAT, api.KindFirewallRule:
		a.showHits(ctx, d, o)
	}
}

// heading converts the title of a column to the heading of a line: PATH MTU to Path MTU.
func heading(title string) string {
	words := strings.Split(title, " ")
	for i, word := range words {
		switch {
		case slices.Contains([]string{"MTU", "MAC", "VNI", "NAT", "VLAN"}, word):
		case strings.HasPrefix(word, "TX-"), strings.HasPrefix(word, "RX-"):
			words[i] = word[:3] + strings.ToLower(word[3:])
		case i == 0:
			words[i] = word[:1] + strings.ToLower(word[1:])
		default:
			words[i] = strings.ToLower(word)
		}
	}
	return strings.Join(words, " ")
}

// showPorts shows the ports of a Bridge, one a line.
func (a *app) showPorts(o *api.Object) {
	var spec api.BridgeSpec
	decode(o, &spec, &struct{}{})
	if len(spec.Ports) == 0 {
		return
	}
	t := a.table(column{title: "PORT"}, column{title: "PVID", right: true}, column{title: "VLANS", flexible: true}, column{title: "UNTAGGED", flexible: true}, column{title: "ISOLATED"})
	for _, p := range spec.Ports {
		pvid := "-"
		switch {
		case p.PVID != nil:
			pvid = strconv.Itoa(*p.PVID)
		case spec.VLANFiltering && len(p.VLANs)+len(p.Untagged) == 0:
			pvid = "1"
		}
		t.add(cell{text: p.Device}, cell{text: pvid}, cell{text: join(p.VLANs.Strings())}, cell{text: join(p.Untagged.Strings())}, cell{text: yesNo(p.Isolated)})
	}
	a.section(t)
}

// showMembers shows the members of a group, one a line.
func (a *app) showMembers(o *api.Object) {
	var spec api.AddressGroupSpec
	decode(o, &spec, &struct{}{})
	if len(spec.Members) == 0 {
		return
	}
	t := a.table(column{title: "MEMBER"})
	for _, m := range spec.Members {
		t.add(cell{text: m.Text})
	}
	a.section(t)
}

// showHits shows how often a rule decided.
func (a *app) showHits(ctx context.Context, d Daemon, o *api.Object) {
	counters, err := a.counters(ctx, d, o.Kind, o.Name)
	if err != nil {
		a.note("the counters of %s: %v", o.Name, err)
		return
	}
	a.field("Hits", fmt.Sprintf("%s, %s in %s", plural(counters.Packets, "packet"), size(counters.Bytes), plural(counters.Connections, "connection")))
}

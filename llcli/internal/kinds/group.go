// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"context"
	"strconv"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

var groupKind = Kind{
	Name:       api.KindAddressGroup,
	Words:      []string{"addressgroup", "addressgroups", "group", "groups"},
	Meaning:    "addresses under a name, for rules to refer to",
	Columns:    []output.Column{{Title: "MEMBERS", Right: true}, {Title: "FIRST", Flexible: true, Optional: 1}},
	Wide:       []output.Column{{Title: "LABELS", Flexible: true, Optional: 5}},
	Cells:      groupCells,
	Spec:       func() any { return &api.AddressGroupSpec{} },
	Schema:     groupSchema,
	details:    showMembers,
	fields:     groupFields,
	AddExample: "  llcli addressgroup add partners --member 192.0.2.7,198.51.100.0/24 --member group:others",
	SetExample: "  llcli addressgroup set partners --add-member 203.0.113.9 --remove-member 192.0.2.7",
}

func groupCells(o *api.Object, wide bool) []output.Cell {
	var spec api.AddressGroupSpec
	Decode(o, &spec, &struct{}{})
	const few = 4
	var first []string
	for i, m := range spec.Members {
		if i == few {
			first = append(first, "…")
			break
		}
		first = append(first, m.Text)
	}
	cells := []output.Cell{{Text: strconv.Itoa(len(spec.Members))}, {Text: output.Join(first)}}
	if wide {
		cells = append(cells, output.Cell{Text: output.Labels(o.Labels)})
	}
	return cells
}

var groupFields = []specField{
	{flag: "member", path: "members", form: formWords, groups: true, usage: "`ADDRESS`, prefix, range of addresses or group:NAME; may be repeated"},
}

const groupSchema = `kind: AddressGroup
name: partners                # a-z, 0-9 and - . / : inside; unique among AddressGroups
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  members:                    # rules refer to them as group:partners
    - 192.0.2.7
    - 198.51.100.0/24
    - 203.0.113.10-203.0.113.20
    - 2001:db8:7::/48         # group:NAME: the members of another group
`

// showMembers shows the members of a group, one per line.
func showMembers(_ context.Context, a *command.App, _ command.Daemon, o *api.Object) {
	var spec api.AddressGroupSpec
	Decode(o, &spec, &struct{}{})
	if len(spec.Members) == 0 {
		return
	}
	t := a.Table(output.Column{Title: "MEMBER"})
	for _, m := range spec.Members {
		t.Add(output.Cell{Text: m.Text})
	}
	a.Section(t)
}

// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

// ShowObject shows everything about an object.
func ShowObject(ctx context.Context, a *command.App, d command.Daemon, o *api.Object) error {
	var status api.Status
	Decode(o, &struct{}{}, &status)
	state := cmp.Or(status.State, api.StatePending)
	paint := a.Painter()
	a.Printf("%-14s%s\n", o.Kind, paint.Paint(output.Bold, output.Clean(o.Name)))
	a.Printf("%-14s%s\n", "State", paint.Paint(output.StateColor(state), state)+output.Clean(output.Prefixed(": ", status.Message)))
	a.Field("Owner", cmp.Or(o.Owner, api.OwnerCLI))
	a.Field("Labels", output.Labels(o.Labels))
	a.Field("Revision", strconv.FormatUint(o.Revision, 10))
	switch k := Find(o.Kind); {
	case k == nil:
	case k.describe != nil:
		k.describe(ctx, a, d, o)
		return nil
	default:
		showColumns(a, k, o)
		if k.details != nil {
			k.details(ctx, a, d, o)
		}
		return nil
	}
	text, err := document.ToYAML(map[string]any{"spec": o.Spec, "status": o.Status}) // of a newer daemon
	a.Printf("%s", text)
	return err
}

// showTraffic shows the traffic of a device, and the packets that were dropped.
func showTraffic(ctx context.Context, a *command.App, d command.Daemon, o *api.Object) {
	counters, err := a.Counters(ctx, d, o.Kind, o.Name)
	if command.IsNotFound(err) {
		return
	}
	if err != nil {
		a.Note("the counters of %s: %v", o.Name, err)
		return
	}
	a.Field("Traffic", fmt.Sprintf("%s in %s", output.Bytes(counters.Bytes), output.Plural(counters.Packets, "packet")))
	showDrops(a, counters)
}

// showDrops shows how many packets were dropped for which reason.
func showDrops(a *command.App, counters *api.CountersResult) {
	for _, reason := range slices.Sorted(maps.Keys(counters.Drops)) {
		if n := counters.Drops[reason]; n > 0 {
			a.Field("Dropped", fmt.Sprintf("%s: %s", output.Plural(n, "packet"), reason))
		}
	}
}

// showColumns shows the columns of an object's kind, one per line.
func showColumns(a *command.App, k *Kind, o *api.Object) {
	cells := k.Cells(o, true)
	for i, c := range append(append([]output.Column(nil), k.Columns...), k.Wide...) {
		switch title := c.Title; title {
		case "LABELS", "FIRST": // shown elsewhere
		case "VLANS":
			a.Field("By VLAN", cells[i].Text)
		default:
			a.Field(heading(title), cells[i].Text)
		}
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

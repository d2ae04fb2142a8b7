// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"strconv"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/changes"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

// comparePolicies shows the traffic whose verdict files would change.
func comparePolicies(ctx context.Context, a *command.App, d command.Daemon, files []string, limit int) error {
	objects, locate, err := changes.ReadObjects(a, files)
	if err != nil {
		return err
	}
	var result api.PoliciesCompareResult
	if err := d.Call(ctx, api.MethodPoliciesCompare, api.PoliciesCompareParams{Objects: objects, Limit: limit}, &result); err != nil {
		return locate(err)
	}
	if !a.IsTable() {
		return a.PrintSample(result)
	}
	if result.Pending != "" {
		a.Note("not as desired: %s", result.Pending)
	}
	if len(result.Differences) == 0 {
		a.Printf("No verdict would change.\n")
		return nil
	}
	t := a.Table(output.Column{Title: "FROM", Flexible: true}, output.Column{Title: "TO", Flexible: true}, output.Column{Title: "PORTS"},
		output.Column{Title: "BEFORE"}, output.Column{Title: "AFTER"})
	for i := range result.Differences {
		x := &result.Differences[i]
		color := output.Green
		if x.After != api.PolicyActions[0] {
			color = output.Red
		}
		t.Add(output.Cell{Text: endText(&x.Source)}, output.Cell{Text: endText(&x.Destination)}, output.Cell{Text: portsText(x)},
			output.Cell{Text: x.Before}, output.Cell{Text: x.After, Color: color})
	}
	t.Flush()
	if result.More {
		a.Note("more than %s; use --limit to show up to 1000", output.Plural(uint64(len(result.Differences)), "difference"))
	}
	return nil
}

func endText(e *api.PolicyEnd) string {
	if e.Name == "" || e.Address == "" {
		return output.Clean(cmp.Or(e.Name, e.Address))
	}
	return output.Clean(e.Name) + " (" + e.Address + ")"
}

// portsText returns the ports of a difference, in the form of a rule.
func portsText(d *api.PolicyDifference) string {
	switch {
	case d.Protocol == "":
		return "other protocols"
	case d.Port == 0 && d.End == 65535:
		return d.Protocol
	case d.Port == d.End:
		return d.Protocol + "/" + strconv.Itoa(d.Port)
	}
	return d.Protocol + "/" + strconv.Itoa(d.Port) + "-" + strconv.Itoa(d.End)
}

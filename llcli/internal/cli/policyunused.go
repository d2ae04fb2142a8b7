// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// policyUnusedCommand shows the rules of Policies that have not decided about any packet.
func policyUnusedCommand(a *command.App) *cobra.Command {
	since := "30d"
	cmd := &cobra.Command{
		Use:   "unused",
		Short: "Show the rules of Policies that decided about no packet",
		Long: `Show the rules and isolations of Policies that decided about no packet on this node in the
time given. COUNTED FOR is how long decisions have been counted: at most since the start of
the machine. A rule for which it is missing applies to no Endpoint of this node, or earlier
rules decide about all of its packets.

A packet of a running connection is not decided about again, so the only decision of a rule
may be older than the time given although a connection still uses it. Rules that pass
decide nothing, and are omitted.`,
		Example: "  llcli policy unused --since 30d",
		Args:    command.NoWords("policy unused takes flags only"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, _ []string) error {
			span, err := command.Span("since", since)
			if err != nil {
				return err
			}
			rules, err := unusedRules(ctx, d, api.Duration(span))
			if err != nil {
				return err
			}
			if !a.IsTable() {
				return a.PrintValue(rules)
			}
			if len(rules) == 0 {
				a.NoneFound("unused rules")
				return nil
			}
			t := a.Table(output.Column{Title: "POLICY", Flexible: true}, output.Column{Title: "DIRECTION"}, output.Column{Title: "RULE", Flexible: true},
				output.Column{Title: "ACTION"}, output.Column{Title: "LAST", Right: true}, output.Column{Title: "COUNTED FOR", Right: true})
			for i := range rules {
				cells := kinds.DecisionCells(a, &rules[i].PolicyRuleCounters)
				t.Add(output.Cell{Text: output.Clean(rules[i].Policy)}, cells[0], cells[1], cells[2], cells[6], cells[7])
			}
			t.Flush()
			return nil
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&since, "since", since, "rules without a decision in this `TIME`, such as 30d or 12h")
	command.Must(cmd.RegisterFlagCompletionFunc("since", cobra.NoFileCompletions))
	return cmd
}

// unusedRules asks for all parts of the list.
func unusedRules(ctx context.Context, d command.Daemon, since api.Duration) ([]api.UnusedRule, error) {
	rules := []api.UnusedRule{}
	params := api.PoliciesUnusedParams{Since: since}
	for {
		var part api.PoliciesUnusedResult
		if err := d.Call(ctx, api.MethodPoliciesUnused, params, &part); err != nil {
			return nil, err
		}
		rules = append(rules, part.Rules...)
		if params.Continue = part.Continue; params.Continue == "" {
			return rules, nil
		}
	}
}

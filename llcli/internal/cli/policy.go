// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"reflect"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/changes"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// policyCheckCommand shows the verdict of Policies on traffic, and how it comes about.
func policyCheckCommand(a *command.App) *cobra.Command {
	var files []string
	var staged, all bool
	var limit int
	cmd := &cobra.Command{
		Use:   "check {FROM TO PROTOCOL/PORT | --all -f FILE}",
		Short: "Show the verdict of Policies on traffic, and which rules lead to it",
		Long: `Show the verdict of the Policies in force on a connection from FROM to TO, and for each
direction the tiers, the rule that decides, what of it matched, and the verdict without it.
Each end is an Endpoint, a pod as NAMESPACE/POD, an Entity, an address, or node (this node
itself). TO may also be a DNS name: the verdict is on the addresses that are learnt for it,
or, if there are none, on an address that the next DNS response contains. Policies see the backends of a Service, never its own addresses. FirewallRules are
not evaluated.

With -f, the verdict is as if the objects in the files had been applied. With --all too, all
traffic of Endpoints of this node is listed whose verdict the files would change.`,
		Example: "  llcli policy check shop/web-1 shop/db-0 tcp/5432\n  llcli policy check 203.0.113.7 vm9 udp/53 -f policies.yaml\n  llcli policy check shop/web-1 www.example.org tcp/443\n  llcli policy check node vm9 icmp\n  llcli policy check --all -f policies.yaml",
		Args:    func(_ *cobra.Command, args []string) error { return checkArguments(args, files, all, staged) },
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			if all {
				return comparePolicies(ctx, a, d, files, limit)
			}
			p := api.PoliciesCheckParams{From: args[0], To: args[1], Staged: staged}
			var err error
			if p.Protocol, p.Port, err = protocolPort(args[2]); err != nil {
				return err
			}
			locate := func(err error) error { return err }
			if len(files) > 0 {
				if p.Objects, locate, err = changes.ReadObjects(a, files); err != nil {
					return err
				}
			}
			var result api.PoliciesCheckResult
			if err := d.Call(ctx, api.MethodPoliciesCheck, p, &result); err != nil {
				return locate(err)
			}
			if !a.IsTable() {
				return a.PrintSample(result)
			}
			showCheck(a, &result)
			return nil
		}),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) < 2 {
				return kinds.CompleteName(a, api.KindEndpoint)(cmd, nil, prefix)
			}
			return api.ServiceProtocols, cobra.ShellCompDirectiveNoFileComp
		},
	}
	changes.BindFiles(cmd, &files)
	cmd.Flags().BoolVar(&staged, "staged", false, "as if staged Policies were in force")
	cmd.Flags().BoolVar(&all, "all", false, "list all traffic whose verdict the files would change")
	cmd.Flags().IntVar(&limit, "limit", 100, "with --all, show at most `N`, up to 1000")
	command.Must(cmd.RegisterFlagCompletionFunc("limit", cobra.NoFileCompletions))
	return cmd
}

// checkArguments checks what policy check is given.
func checkArguments(args, files []string, all, staged bool) error {
	switch {
	case all && len(args) > 0:
		return command.Usagef("--all compares all traffic: omit %q", args[0])
	case all && len(files) == 0:
		return command.Usagef("--all compares the Policies in force with files: add -f FILE")
	case all && staged:
		return command.Usagef("--all does not compare staged Policies: omit --staged")
	case !all && len(args) != 3:
		return command.Usagef("%d arguments; llcli policy check FROM TO PROTOCOL/PORT", len(args))
	}
	return nil
}

// protocolPort reads PROTOCOL/PORT, PORT/PROTOCOL, or a protocol without ports.
func protocolPort(text string) (protocol string, port int, err error) {
	protocol, after, slash := strings.Cut(text, "/")
	if !slash {
		return protocol, 0, nil
	}
	if _, err := strconv.Atoi(after); err != nil { // PORT/PROTOCOL
		protocol, after = after, protocol
	}
	if port, err = strconv.Atoi(after); err != nil {
		return "", 0, command.Usagef("%q is not PROTOCOL/PORT, such as tcp/5432", text)
	}
	return protocol, port, nil
}

// showCheck shows the verdict on each path. Paths that differ in their addresses only share a table.
func showCheck(a *command.App, r *api.PoliciesCheckResult) {
	paint := a.Painter()
	if r.Pending != "" {
		a.Note("not as desired: %s", r.Pending)
	}
	for i := range r.Paths {
		p := &r.Paths[i]
		color := output.Green
		if p.Verdict != api.PolicyActions[0] {
			color = output.Red
		}
		if i > 0 && !sameDecisions(p, &r.Paths[i-1]) {
			a.Printf("\n")
		}
		a.Printf("%s  %s → %s\n", paint.Paint(color, p.Verdict), output.Clean(p.Source), destinationText(p))
		if i+1 < len(r.Paths) && sameDecisions(p, &r.Paths[i+1]) {
			continue
		}
		showDecisions(a, p)
	}
}

// destinationText returns the destination of a path, with the DNS name that leads to it.
func destinationText(p *api.PolicyPath) string {
	switch {
	case p.Name == "":
		return output.Clean(p.Destination)
	case p.Destination == "":
		return output.Clean(p.Name) + " (no address of it is learnt now)"
	}
	return output.Clean(p.Destination) + " (" + output.Clean(p.Name) + ")"
}

func sameDecisions(p, other *api.PolicyPath) bool {
	return reflect.DeepEqual(p.Egress, other.Egress) && reflect.DeepEqual(p.Ingress, other.Ingress)
}

func showDecisions(a *command.App, p *api.PolicyPath) {
	t := a.Table(
		output.Column{Title: "DIRECTION"}, output.Column{Title: "ENDPOINT"}, output.Column{Title: "TIER"}, output.Column{Title: "RESULT"},
		output.Column{Title: "BY"}, output.Column{Title: "MATCHED", Flexible: true}, output.Column{Title: "WITHOUT IT"},
		output.Column{Title: "POLICIES", Flexible: true, Optional: 1},
	)
	some := false
	for _, of := range []struct {
		direction string
		*api.PolicyDecision
	}{{"egress", p.Egress}, {"ingress", p.Ingress}} {
		if of.PolicyDecision == nil {
			continue
		}
		some = true
		row := func(texts ...string) {
			cells := []output.Cell{{Text: of.direction}, {Text: output.Clean(of.Endpoint)}}
			for _, text := range texts {
				cells = append(cells, output.Cell{Text: output.Clean(text)})
			}
			t.Add(cells...)
		}
		for i := range of.Tiers {
			tier := &of.Tiers[i]
			row(tier.Tier, tierResult(tier), decidedBy(tier), matchedText(tier), withoutText(of.PolicyDecision, i), output.Join(tier.Policies))
		}
		if n := len(of.Tiers); n == 0 || of.Tiers[n-1].Result == api.PolicyNext || of.Tiers[n-1].Result == "pass" {
			row("", of.Verdict, "", "no tier decides", "", "")
		}
	}
	if !some {
		a.Printf("No Policy applies: neither end is an Endpoint of this node.\n")
		return
	}
	t.Flush()
	if e := p.Egress; e != nil && e.Verdict != api.PolicyActions[0] && len(e.FormerNames) > 0 {
		a.Printf("The address no longer belongs to %s: new connections may use it until its TTL and the grace period end.\n", output.Clean(strings.Join(e.FormerNames, ", ")))
	}
}

func tierResult(t *api.PolicyTier) string {
	if t.Exempt {
		return "exempt"
	}
	return t.Result
}

func decidedBy(t *api.PolicyTier) string {
	if t.Rule == "" {
		return t.Policy
	}
	return t.Policy + " rule " + t.Rule
}

// matchedText returns the peer and the port of the rule that matched.
func matchedText(t *api.PolicyTier) string {
	switch {
	case t.Result == api.PolicyUnknown:
		return "the Endpoint has no Entity"
	case t.Rule == "":
		return ""
	}
	text := "every peer"
	if t.Peer != nil {
		text = kinds.PeerText(t.Peer)
	}
	if t.Port != nil {
		text += " port " + kinds.PolicyPortText(t.Port)
	}
	return text
}

// withoutText returns the verdict without what decided, in the row of the tier that decides.
func withoutText(d *api.PolicyDecision, i int) string {
	if i+1 < len(d.Tiers) {
		return ""
	}
	return d.Without
}

// policyForCommand shows the Policies that apply to an Endpoint.
func policyForCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "for ENDPOINT",
		Short: "Show the Policies that apply to an Endpoint, in the order of evaluation",
		Long: `Show the Policies in force that apply to an Endpoint, or to a pod as NAMESPACE/POD, in the
order of evaluation.`,
		Example: "  llcli policy for shop/db-0",
		Args:    command.OneName("policy for", "ENDPOINT"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			var result api.PoliciesForResult
			if err := d.Call(ctx, api.MethodPoliciesFor, api.PoliciesForParams{Endpoint: args[0]}, &result); err != nil {
				return err
			}
			if !a.IsTable() {
				return a.PrintSample(result)
			}
			showApplied(a, &result)
			return nil
		}),
		ValidArgsFunction: kinds.CompleteName(a, api.KindEndpoint),
	}
}

func showApplied(a *command.App, r *api.PoliciesForResult) {
	if r.Pending != "" {
		a.Note("not as desired: %s", r.Pending)
	}
	a.Field("Endpoint", r.Endpoint)
	if !r.IsEntity {
		a.Printf("No Policy applies: no Policies exist, or the Endpoint has no labels and no Entity.\n")
		return
	}
	a.Field("Namespace", r.Namespace)
	a.Field("Set", r.Set)
	a.Field("Labels", output.Labels(r.Labels))
	t := a.Table(
		output.Column{Title: "DIRECTION"}, output.Column{Title: "TIER"}, output.Column{Title: "POLICY", Flexible: true},
		output.Column{Title: "RULES", Right: true}, output.Column{Title: "ISOLATES"}, output.Column{Title: "STAGE"},
	)
	for n, list := range [][]api.AppliedPolicy{r.Ingress, r.Egress} {
		for i := range list {
			p, direction := &list[i], [...]string{"ingress", "egress"}[n]
			isolates, stage := "no", api.PolicyStages[0]
			if p.Isolates {
				isolates = "yes"
			}
			if p.Staged {
				stage = api.PolicyStages[1]
			}
			t.Add(
				output.Cell{Text: direction}, output.Cell{Text: output.Clean(p.Tier)}, output.Cell{Text: output.Clean(p.Policy)},
				output.Cell{Text: strconv.Itoa(p.Rules)}, output.Cell{Text: isolates}, output.Cell{Text: stage},
			)
		}
	}
	if len(r.Ingress)+len(r.Egress) == 0 {
		a.Printf("No Policy applies to these labels.\n")
		return
	}
	a.Section(t)
}

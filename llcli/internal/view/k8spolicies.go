// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// k8sPolicy is a NetworkPolicy or a ClusterNetworkPolicy that the agent has configured.
type k8sPolicy struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace,omitempty"` // of a NetworkPolicy
	Name      string   `json:"name"`
	Tier      string   `json:"tier"`
	Priority  *int32   `json:"priority,omitempty"` // of a ClusterNetworkPolicy
	Stage     string   `json:"stage"`              // enforced, staged
	Isolates  []string `json:"isolates"`
	Ingress   int      `json:"ingress"`  // number of rules
	Egress    int      `json:"egress"`   // likewise
	Subjects  int      `json:"subjects"` // pods of this node that it selects
	Object    string   `json:"object"`   // name of the object
	State     string   `json:"state"`
	Message   string   `json:"message,omitempty"`
}

func k8sPolicies(a *command.App) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "policies [NAME]",
		Short: "Show network policies, and how many pods of this node they select",
		Long: `Show the policies that the agent has configured: ClusterNetworkPolicies, in the tiers admin
and baseline, and the NetworkPolicies of the namespaces that have pods on this node. SUBJECTS
counts the pods of this node that the policy selects.

llcli policy check shows the verdict on traffic, llcli policy for the policies of a pod.`,
		Example: "  llcli k8s policies -n shop\n  llcli k8s policies shop/db",
		Args:    atMostOne("llcli k8s policies [NAME]"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			namespace, name, err := qualified(args, namespace)
			if err != nil {
				return err
			}
			return a.Repeat(ctx, func() error { return showPolicies(ctx, a, d, namespace, name) })
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	namespaceFlag(a, cmd, &namespace)
	a.BindWatch(cmd)
	return cmd
}

func showPolicies(ctx context.Context, a *command.App, d command.Daemon, namespace, name string) error {
	objects, err := a.Collect(ctx, d, kinds.K8sPolicyList(namespace, name))
	if err != nil {
		return err
	}
	policies := []k8sPolicy{}
	for i := range objects {
		var spec api.PolicySpec
		var status api.PolicyStatus
		kinds.Decode(&objects[i], &spec, &status)
		kind := "NetworkPolicy"
		if objects[i].Labels[kinds.LabelNamespace] == "" {
			kind = "ClusterNetworkPolicy"
		}
		policies = append(policies, k8sPolicy{
			Kind: kind, Namespace: objects[i].Labels[kinds.LabelNamespace], Name: objects[i].Labels[kinds.LabelPolicy],
			Tier: spec.Tier, Priority: spec.Priority, Stage: cmp.Or(spec.Stage, api.PolicyStages[0]), Isolates: append([]string{}, spec.Isolate...),
			Ingress: len(spec.Ingress), Egress: len(spec.Egress), Subjects: status.Subjects, Object: objects[i].Name,
			State: cmp.Or(status.State, api.StatePending), Message: status.Message,
		})
	}
	slices.SortFunc(policies, func(x, y k8sPolicy) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Tier, y.Tier), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Object, y.Object))
	})
	if !a.IsTable() {
		return printList(a, policies)
	}
	t := a.Table(output.Column{Title: "NAMESPACE"}, output.Column{Title: "NAME"}, output.Column{Title: "TIER"}, output.Column{Title: "STAGE", Optional: 2}, output.Column{Title: "ISOLATES", Optional: 1},
		output.Column{Title: "INGRESS", Right: true, Optional: 1}, output.Column{Title: "EGRESS", Right: true, Optional: 1}, output.Column{Title: "SUBJECTS", Right: true},
		output.Column{Title: "STATE"}, output.Column{Title: "MESSAGE", Flexible: true})
	for i := range policies {
		p := &policies[i]
		t.Add(output.Cell{Text: cmp.Or(p.Namespace, "-")}, output.Cell{Text: p.Name}, output.Cell{Text: p.Tier}, output.Cell{Text: p.Stage}, output.Cell{Text: output.Join(p.Isolates)},
			output.Cell{Text: strconv.Itoa(p.Ingress)}, output.Cell{Text: strconv.Itoa(p.Egress)}, output.Cell{Text: strconv.Itoa(p.Subjects)},
			output.Cell{Text: p.State, Color: output.StateColor(p.State)}, output.Cell{Text: p.Message})
	}
	return showAll(a, "network policies", t, len(policies))
}

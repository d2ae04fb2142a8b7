// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

func k8sCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "k8s",
		Short: "Show the Services, policies, nodes and pods of Kubernetes that are configured on this node",
		Long: `Show the Services, policies, nodes and pods that the agent and the CNI plugin have
configured on this node. The API server is not queried.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return command.Usagef("unexpected %q; llcli k8s services, policies, nodes or pods", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(k8sServices(a), k8sPolicies(a), k8sNodes(a), k8sPods(a))
	return cmd
}

// namespaceFlag adds the flag that chooses a namespace.
func namespaceFlag(a *command.App, cmd *cobra.Command, namespace *string) {
	cmd.Flags().StringVarP(namespace, "namespace", "n", "", "only of this `NAMESPACE` (default: all)")
	command.Must(cmd.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions))
}

// atMostOne accepts at most one name.
func atMostOne(usage string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return command.Usagef("%d names; %s", len(args), usage)
		}
		return nil
	}
}

// qualified reads [NAMESPACE/]NAME, which may repeat the namespace of the flag.
func qualified(args []string, namespace string) (string, string, error) {
	if len(args) == 0 {
		return namespace, "", nil
	}
	before, name, slash := strings.Cut(args[0], "/")
	switch {
	case !slash:
		return namespace, args[0], nil
	case namespace != "" && namespace != before:
		return "", "", command.Usagef("%s is not in the namespace given with -n, %s", args[0], namespace)
	}
	return before, name, nil
}

// printList writes values as a list, if no table was requested.
func printList[T any](a *command.App, values []T) error {
	list := a.NewList()
	for i := range values {
		if err := list.Add(&values[i]); err != nil {
			return err
		}
	}
	list.End()
	return nil
}

// k8sNode is another node in the cluster, as seen from this one.
type k8sNode struct {
	Name     string   `json:"name"`
	Subnets  []string `json:"subnets"`
	Tunnel   string   `json:"tunnel,omitempty"` // empty: the underlay routes
	Underlay []string `json:"underlay"`
	State    string   `json:"state"`
	Message  string   `json:"message,omitempty"`
}

func k8sNodes(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Show the other nodes: their pods' subnets, and how they are reached",
		Args:  command.NoWords("nodes takes no names"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, _ []string) error {
			return a.Repeat(ctx, func() error { return showNodes(ctx, a, d) })
		}),
	}
	a.BindWatch(cmd)
	return cmd
}

func showNodes(ctx context.Context, a *command.App, d command.Daemon) error {
	peers, err := a.Collect(ctx, d, api.ListParams{Kind: api.KindPeer, Owner: api.OwnerK8s})
	if err != nil {
		return err
	}
	nodes := make([]k8sNode, len(peers))
	for i := range peers {
		var spec api.PeerSpec
		var status api.PeerStatus
		kinds.Decode(&peers[i], &spec, &status)
		nodes[i] = k8sNode{
			Name: peers[i].Name, Subnets: spec.Prefixes.Strings(), Tunnel: spec.Tunnel, Underlay: spec.Underlay.Strings(),
			State: cmp.Or(status.State, api.StatePending), Message: status.Message,
		}
	}
	slices.SortFunc(nodes, func(x, y k8sNode) int { return cmp.Compare(x.Name, y.Name) })
	if !a.IsTable() {
		return printList(a, nodes)
	}
	t := a.Table(output.Column{Title: "NAME"}, output.Column{Title: "SUBNETS", Flexible: true}, output.Column{Title: "TUNNEL", Optional: 1},
		output.Column{Title: "UNDERLAY", Flexible: true}, output.Column{Title: "STATE"}, output.Column{Title: "MESSAGE", Flexible: true})
	for _, n := range nodes {
		t.Add(output.Cell{Text: n.Name}, output.Cell{Text: output.Join(n.Subnets)}, output.Cell{Text: cmp.Or(n.Tunnel, "none")}, output.Cell{Text: output.Join(n.Underlay)},
			output.Cell{Text: n.State, Color: output.StateColor(n.State)}, output.Cell{Text: n.Message})
	}
	return showAll(a, "nodes of Kubernetes", t, len(nodes))
}

// showAll writes a table, or reports that it is empty.
func showAll(a *command.App, what string, t *output.Table, count int) error {
	if count == 0 {
		a.NoneFound(kinds.PluralOf(what))
		return nil
	}
	t.Flush()
	return nil
}

// k8sPod is a pod on this node.
type k8sPod struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
	Device    string   `json:"device"`
	Network   string   `json:"network,omitempty"`
	Endpoint  string   `json:"endpoint"` // name of the object
	State     string   `json:"state"`
	Message   string   `json:"message,omitempty"`
}

func k8sPods(a *command.App) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "pods [NAME]",
		Short: "Show the pods that are attached to this node",
		Long: `Show the pods that container runtimes have attached to this node through CNI. Pods in the
node's own network are not included.`,
		Example: "  llcli k8s pods -n shop",
		Args:    atMostOne("llcli k8s pods [NAME]"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			namespace, name, err := qualified(args, namespace)
			if err != nil {
				return err
			}
			return a.Repeat(ctx, func() error { return showPods(ctx, a, d, namespace, name) })
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	namespaceFlag(a, cmd, &namespace)
	a.BindWatch(cmd)
	return cmd
}

func showPods(ctx context.Context, a *command.App, d command.Daemon, namespace, name string) error {
	objects, err := a.Collect(ctx, d, api.ListParams{Kind: api.KindEndpoint, Owner: api.OwnerCNI})
	if err != nil {
		return err
	}
	pods := []k8sPod{}
	for i := range objects {
		var spec api.EndpointSpec
		var status api.EndpointStatus
		kinds.Decode(&objects[i], &spec, &status)
		if namespace != "" && spec.Namespace != namespace || name != "" && spec.Pod != name {
			continue
		}
		pods = append(pods, k8sPod{
			Namespace: spec.Namespace, Name: spec.Pod, Addresses: spec.Addresses, Device: spec.Device, Network: spec.Network,
			Endpoint: objects[i].Name, State: cmp.Or(status.State, api.StatePending), Message: status.Message,
		})
	}
	slices.SortFunc(pods, func(x, y k8sPod) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Endpoint, y.Endpoint))
	})
	if !a.IsTable() {
		return printList(a, pods)
	}
	t := a.Table(output.Column{Title: "NAMESPACE"}, output.Column{Title: "NAME"}, output.Column{Title: "ADDRESSES", Flexible: true}, output.Column{Title: "DEVICE", Optional: 1},
		output.Column{Title: "NETWORK", Optional: 2}, output.Column{Title: "STATE"}, output.Column{Title: "MESSAGE", Flexible: true})
	for _, p := range pods {
		t.Add(output.Cell{Text: cmp.Or(p.Namespace, "-")}, output.Cell{Text: cmp.Or(p.Name, "-")}, output.Cell{Text: output.Join(p.Addresses)}, output.Cell{Text: p.Device},
			output.Cell{Text: cmp.Or(p.Network, "-")}, output.Cell{Text: p.State, Color: output.StateColor(p.State)}, output.Cell{Text: p.Message})
	}
	return showAll(a, "pods", t, len(pods))
}

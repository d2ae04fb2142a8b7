// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

// Owners of objects from Kubernetes, and the labels of its services' objects.
const (
	labelNamespace = "namespace"
	labelService   = "service"
	labelPort      = "port"
)

func (a *app) k8sCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "k8s",
		Short: "Show the Services, nodes and pods of Kubernetes that are configured on this node",
		Long: `Show the services, nodes and pods that the agent and the CNI plugin told the daemon of.
Nothing is asked of the API server: this is what holds on this node.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unexpected %q; llcli k8s services, nodes or pods", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.k8sServices(), a.k8sNodes(), a.k8sPods())
	return cmd
}

// namespaceFlag adds the flag that chooses a namespace.
func (a *app) namespaceFlag(cmd *cobra.Command, namespace *string) {
	cmd.Flags().StringVarP(namespace, "namespace", "n", "", "only of this `NAMESPACE` (default: all)")
	must(cmd.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions))
}

// atMostOne wants no more than one name.
func atMostOne(usage string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usagef("%d names; %s", len(args), usage)
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
		return "", "", usagef("%s is not in namespace %s, which -n says", args[0], namespace)
	}
	return before, name, nil
}

// collect returns all objects of a list.
func (a *app) collect(ctx context.Context, d Daemon, params api.ListParams) ([]api.Object, error) {
	var all []api.Object
	_, err := a.list(ctx, d, params, func(objects []api.Object) error {
		all = append(all, objects...)
		return nil
	})
	return all, err
}

// printList writes values as a list, if no table was requested.
func printList[T any](a *app, values []T) error {
	list := listWriter{app: a}
	for i := range values {
		if err := list.add(&values[i]); err != nil {
			return err
		}
	}
	list.end()
	return nil
}

// k8sNode is another node of the cluster, as this one reaches it.
type k8sNode struct {
	Name     string   `json:"name"`
	Subnets  []string `json:"subnets"`
	Tunnel   string   `json:"tunnel,omitempty"` // empty: the underlay routes
	Underlay []string `json:"underlay"`
	State    string   `json:"state"`
	Message  string   `json:"message,omitempty"`
}

func (a *app) k8sNodes() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Show the other nodes: their pods' subnets, and how they are reached",
		Args:  noWords("nodes takes no names"),
		RunE: a.run(func(ctx context.Context, d Daemon, _ []string) error {
			return a.repeat(ctx, func() error { return a.showNodes(ctx, d) })
		}),
	}
	a.bindWatch(cmd)
	return cmd
}

func (a *app) showNodes(ctx context.Context, d Daemon) error {
	peers, err := a.collect(ctx, d, api.ListParams{Kind: api.KindPeer, Owner: api.OwnerK8s})
	if err != nil {
		return err
	}
	nodes := make([]k8sNode, len(peers))
	for i := range peers {
		var spec api.PeerSpec
		var status api.PeerStatus
		decode(&peers[i], &spec, &status)
		nodes[i] = k8sNode{
			Name: peers[i].Name, Subnets: spec.Prefixes.Strings(), Tunnel: spec.Tunnel, Underlay: spec.Underlay.Strings(),
			State: or(status.State, api.StatePending), Message: status.Message,
		}
	}
	slices.SortFunc(nodes, func(x, y k8sNode) int { return cmp.Compare(x.Name, y.Name) })
	if !a.isTable() {
		return printList(a, nodes)
	}
	t := a.table(column{title: "NAME"}, column{title: "SUBNETS", flexible: true}, column{title: "TUNNEL", optional: 1},
		column{title: "UNDERLAY", flexible: true}, column{title: "STATE"}, column{title: "MESSAGE", flexible: true})
	for _, n := range nodes {
		t.add(cell{text: n.Name}, cell{text: join(n.Subnets)}, cell{text: or(n.Tunnel, "none")}, cell{text: join(n.Underlay)},
			cell{text: n.State, color: stateColor(n.State)}, cell{text: n.Message})
	}
	return a.showAll("nodes of Kubernetes", t, len(nodes))
}

// showAll writes a table, or that it is empty.
func (a *app) showAll(what string, t *table, count int) error {
	if count == 0 {
		a.noneFound(what)
		return nil
	}
	t.flush()
	return nil
}

// k8sPod is a pod of this node.
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

func (a *app) k8sPods() *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "pods [NAME]",
		Short: "Show the pods that are attached to this node",
		Long: `Show the pods that container runtimes attached to this node by CNI. Those in the node's
own network are not among them.`,
		Example: "  llcli k8s pods -n shop",
		Args:    atMostOne("llcli k8s pods [NAME]"),
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			namespace, name, err := qualified(args, namespace)
			if err != nil {
				return err
			}
			return a.repeat(ctx, func() error { return a.showPods(ctx, d, namespace, name) })
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	a.namespaceFlag(cmd, &namespace)
	a.bindWatch(cmd)
	return cmd
}

func (a *app) showPods(ctx context.Context, d Daemon, namespace, name string) error {
	objects, err := a.collect(ctx, d, api.ListParams{Kind: api.KindEndpoint, Owner: api.OwnerCNI})
	if err != nil {
		return err
	}
	pods := []k8sPod{}
	for i := range objects {
		var spec api.EndpointSpec
		var status api.EndpointStatus
		decode(&objects[i], &spec, &status)
		if namespace != "" && spec.Namespace != namespace || name != "" && spec.Pod != name {
			continue
		}
		pods = append(pods, k8sPod{
			Namespace: spec.Namespace, Name: spec.Pod, Addresses: spec.Addresses, Device: spec.Device, Network: spec.Network,
			Endpoint: objects[i].Name, State: or(status.State, api.StatePending), Message: status.Message,
		})
	}
	slices.SortFunc(pods, func(x, y k8sPod) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Endpoint, y.Endpoint))
	})
	if !a.isTable() {
		return printList(a, pods)
	}
	t := a.table(column{title: "NAMESPACE"}, column{title: "NAME"}, column{title: "ADDRESSES", flexible: true}, column{title: "DEVICE", optional: 1},
		column{title: "NETWORK", optional: 2}, column{title: "STATE"}, column{title: "MESSAGE", flexible: true})
	for _, p := range pods {
		t.add(cell{text: or(p.Namespace, "-")}, cell{text: or(p.Name, "-")}, cell{text: join(p.Addresses)}, cell{text: p.Device},
			cell{text: or(p.Network, "-")}, cell{text: p.State, color: stateColor(p.State)}, cell{text: p.Message})
	}
	return a.showAll("pods", t, len(pods))
}

// objectsOf returns the names of the Services that a name stands for: for NAMESPACE/NAME, the
// Services of all ports and types of that service of Kubernetes, otherwise the name itself.
func (a *app) objectsOf(ctx context.Context, d Daemon, name string) ([]string, error) {
	namespace, service, ok := strings.Cut(name, "/")
	if !ok || namespace == "" || service == "" || strings.ContainsAny(service, "/:") {
		return []string{name}, nil
	}
	objects, err := a.collect(ctx, d, k8sServiceList(namespace, service))
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range objects {
		names = append(names, objects[i].Name)
	}
	if len(names) == 0 {
		return []string{name}, nil
	}
	slices.Sort(names)
	return names, nil
}

// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// k8sService is one object for a port of a Kubernetes service.
type k8sService struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Port      string        `json:"port"`
	Type      string        `json:"type"` // of the frontends
	Frontends []string      `json:"frontends"`
	Ready     int           `json:"ready"` // endpoints that get new connections
	Draining  int           `json:"draining"`
	Down      int           `json:"down"`
	Local     int           `json:"local"` // ready endpoints on this node
	Endpoints []k8sEndpoint `json:"endpoints"`
	Object    string        `json:"object"` // name of the object
	State     string        `json:"state"`
	Message   string        `json:"message,omitempty"`
}

// k8sEndpoint is a backend of a service.
type k8sEndpoint struct {
	Address string `json:"address"`
	State   string `json:"state"` // ready, draining, down
	Local   bool   `json:"local"`
	Pod     string `json:"pod,omitempty"` // on this node: namespace/name
}

func k8sServices(a *command.App) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "services [NAME]",
		Short: "Show services: frontends by type, and how many endpoints are ready, draining, local",
		Long: `Show the Services that the agent has configured, with a line for each port and type of
frontends. READY endpoints get new connections, DRAINING endpoints keep their existing
connections, and LOCAL counts the ready endpoints on this node. A named Service is shown with
its endpoints. If a policy restricts new connections to endpoints on this node, endpoints on
other nodes are draining, or down while no endpoint on this node is serving.

The type inside has no frontends: clients in the cluster are diverted to it and reach all
endpoints, even if a policy restricts other clients to endpoints on this node.`,
		Example: "  llcli k8s services -n shop\n  llcli k8s services shop/web",
		Args:    atMostOne("llcli k8s services [NAME]"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			namespace, name, err := qualified(args, namespace)
			if err != nil {
				return err
			}
			return a.Repeat(ctx, func() error { return showServices(ctx, a, d, namespace, name) })
		}),
		ValidArgsFunction: completeK8sServices(a, &namespace),
	}
	namespaceFlag(a, cmd, &namespace)
	a.BindWatch(cmd)
	return cmd
}

// completeK8sServices offers namespace/name of services, or names if the flag gives the namespace.
func completeK8sServices(a *command.App, namespace *string) command.Completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		var found []string
		if len(args) == 0 {
			a.Ask(cmd.Context(), func(ctx context.Context, d command.Daemon) error {
				objects, err := a.Collect(ctx, d, kinds.K8sServiceList(*namespace, ""))
				for i := range objects {
					name := objects[i].Labels[kinds.LabelService]
					if *namespace == "" {
						name = objects[i].Labels[kinds.LabelNamespace] + "/" + name
					}
					if strings.HasPrefix(name, prefix) && !slices.Contains(found, name) {
						found = append(found, name)
					}
				}
				return err
			})
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

func showServices(ctx context.Context, a *command.App, d command.Daemon, namespace, name string) error {
	objects, err := a.Collect(ctx, d, kinds.K8sServiceList(namespace, name))
	if err != nil {
		return err
	}
	here, err := findHereabouts(ctx, a, d)
	if err != nil {
		return err
	}
	services := []k8sService{}
	for i := range objects {
		if objects[i].Labels[kinds.LabelService] != "" {
			services = append(services, here.service(&objects[i]))
		}
	}
	slices.SortFunc(services, func(x, y k8sService) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Port, y.Port), cmp.Compare(x.Object, y.Object))
	})
	if !a.IsTable() {
		return printList(a, services)
	}
	if err := showAll(a, "Services of Kubernetes", serviceTable(a, services), len(services)); err != nil || name == "" {
		return err
	}
	a.Section(endpointTable(a, services))
	return nil
}

func serviceTable(a *command.App, services []k8sService) *output.Table {
	t := a.Table(output.Column{Title: "NAMESPACE"}, output.Column{Title: "NAME"}, output.Column{Title: "PORT"}, output.Column{Title: "TYPE"}, output.Column{Title: "FRONTENDS", Flexible: true, Optional: 2},
		output.Column{Title: "READY", Right: true}, output.Column{Title: "DRAINING", Right: true, Optional: 3}, output.Column{Title: "LOCAL", Right: true, Optional: 1},
		output.Column{Title: "STATE"}, output.Column{Title: "MESSAGE", Flexible: true})
	for i := range services {
		s := &services[i]
		ready := output.Cell{Text: strconv.Itoa(s.Ready)}
		if s.Ready == 0 {
			ready.Color = output.Yellow
		}
		t.Add(output.Cell{Text: s.Namespace}, output.Cell{Text: s.Name}, output.Cell{Text: s.Port}, output.Cell{Text: s.Type}, output.Cell{Text: output.Join(s.Frontends)},
			ready, output.Cell{Text: strconv.Itoa(s.Draining)}, output.Cell{Text: strconv.Itoa(s.Local)},
			output.Cell{Text: s.State, Color: output.StateColor(s.State)}, output.Cell{Text: s.Message})
	}
	return t
}

// endpointTable shows each endpoint of the services once for each port. Of a port's objects, it
// uses the one with the most endpoints, then with the most ready ones, because some objects contain
// only the endpoints on this node.
func endpointTable(a *command.App, services []k8sService) *output.Table {
	t := a.Table(output.Column{Title: "PORT"}, output.Column{Title: "ENDPOINT"}, output.Column{Title: "STATE"}, output.Column{Title: "NODE", Optional: 1}, output.Column{Title: "POD", Flexible: true, Optional: 1})
	for len(services) > 0 {
		end, most := 0, 0
		for end < len(services) && services[end].Namespace == services[0].Namespace && services[end].Port == services[0].Port {
			if s, m := &services[end], &services[most]; cmp.Or(cmp.Compare(len(s.Endpoints), len(m.Endpoints)), cmp.Compare(s.Ready, m.Ready)) > 0 {
				most = end
			}
			end++
		}
		for _, e := range services[most].Endpoints {
			node := "other"
			if e.Local {
				node = "this"
			}
			t.Add(output.Cell{Text: services[most].Port}, output.Cell{Text: e.Address}, output.Cell{Text: e.State, Color: endpointColor(e.State)}, output.Cell{Text: node}, output.Cell{Text: cmp.Or(e.Pod, "-")})
		}
		services = services[end:]
	}
	return t
}

func endpointColor(state string) string {
	return map[string]string{endpointReady: output.Green, "draining": output.Yellow, "down": output.Red}[state]
}

// hereabouts is the state of this node.
type hereabouts struct {
	subnets []netip.Prefix        // of pods
	hosts   map[netip.Addr]bool   // the node's own addresses
	pods    map[netip.Addr]string // namespace/name by address
}

func findHereabouts(ctx context.Context, a *command.App, d command.Daemon) (*hereabouts, error) {
	h := &hereabouts{hosts: map[netip.Addr]bool{}, pods: map[netip.Addr]string{}}
	for kind, read := range map[string]func(*api.Object){
		api.KindPodNetwork: h.readNetwork, api.KindInterface: h.readInterface, api.KindEndpoint: h.readEndpoint,
	} {
		objects, err := a.Collect(ctx, d, api.ListParams{Kind: kind})
		if err != nil {
			return nil, err
		}
		for i := range objects {
			read(&objects[i])
		}
	}
	return h, nil
}

func (h *hereabouts) readNetwork(o *api.Object) {
	var spec api.PodNetworkSpec
	kinds.Decode(o, &spec, &struct{}{})
	for _, text := range spec.Subnets {
		if p, err := netip.ParsePrefix(text); err == nil {
			h.subnets = append(h.subnets, p)
		}
	}
}

func (h *hereabouts) readInterface(o *api.Object) {
	var status api.InterfaceStatus
	kinds.Decode(o, &struct{}{}, &status)
	for _, text := range status.Addresses {
		if p, err := netip.ParsePrefix(text); err == nil {
			h.hosts[p.Addr()] = true
		}
	}
}

func (h *hereabouts) readEndpoint(o *api.Object) {
	var spec api.EndpointSpec
	kinds.Decode(o, &spec, &struct{}{})
	for _, text := range spec.Addresses {
		if a, err := netip.ParseAddr(text); err == nil && spec.Pod != "" {
			h.pods[a] = spec.Namespace + "/" + spec.Pod
		}
	}
}

// endpointReady is the word for a backend that gets new connections.
const endpointReady = "ready"

// service reads an object of a service.
func (h *hereabouts) service(o *api.Object) k8sService {
	var spec api.ServiceSpec
	var status api.ServiceStatus
	kinds.Decode(o, &spec, &status)
	s := k8sService{
		Namespace: o.Labels[kinds.LabelNamespace], Name: o.Labels[kinds.LabelService], Port: cmp.Or(o.Labels[kinds.LabelPort], "-"),
		Type: k8sType(o), Frontends: spec.Frontends, Endpoints: []k8sEndpoint{},
		Object: o.Name, State: cmp.Or(status.State, api.StatePending), Message: status.Message,
	}
	if s.Type == typeInside {
		s.Frontends = []string{} // no client sends to its frontends
	}
	for _, b := range spec.Backends {
		e := k8sEndpoint{Address: b.Address, State: endpointReady}
		if b.State != "" && b.State != "active" {
			e.State = b.State
		}
		if a, err := netip.ParseAddrPort(b.Address); err == nil {
			e.Pod = h.pods[a.Addr()]
			e.Local = e.Pod != "" || h.hosts[a.Addr()] || slices.ContainsFunc(h.subnets, func(p netip.Prefix) bool { return p.Contains(a.Addr()) })
		}
		s.count(&e)
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func (s *k8sService) count(e *k8sEndpoint) {
	switch e.State {
	case endpointReady:
		s.Ready++
		if e.Local {
			s.Local++
		}
	case "draining":
		s.Draining++
	default:
		s.Down++
	}
}

// typeInside is the type of objects that have no frontends.
const typeInside = "inside"

// k8sType returns the type of an object's frontends by the end of its name, which follows
// namespace/service[:port].
func k8sType(o *api.Object) string {
	rest := strings.TrimPrefix(o.Name, o.Labels[kinds.LabelNamespace]+"/"+o.Labels[kinds.LabelService])
	_, suffix, _ := strings.Cut(rest, "/")
	suffix, _, _ = strings.Cut(suffix, "/")
	return cmp.Or(suffix, "cluster")
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

// k8sService is one object of a port of a service of Kubernetes.
type k8sService struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Port      string        `json:"port"`
	Type      string        `json:"type"` // of the frontends
	Frontends []string      `json:"frontends"`
	Ready     int           `json:"ready"` // endpoints that get new connections
	Draining  int           `json:"draining"`
	Down      int           `json:"down"`
	Local     int           `json:"local"` // of the ready ones those on this node
	Endpoints []k8sEndpoint `json:"endpoints"`
	Object    string        `json:"object"` // name of the object
	State     string        `json:"state"`
	Message   string        `json:"message,omitempty"`
}

// k8sEndpoint is a server of a service.
type k8sEndpoint struct {
	Address string `json:"address"`
	State   string `json:"state"` // ready, draining, down
	Local   bool   `json:"local"`
	Pod     string `json:"pod,omitempty"` // of this node: namespace/name
}

func (a *app) k8sServices() *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "services [NAME]",
		Short: "Show services: frontends by type, and how many endpoints are ready, draining, local",
		Long: `Show the services that the agent told the daemon of: a line for each port and type of
frontends. READY endpoints get new connections, those that are DRAINING keep theirs, and
LOCAL ones are those of the ready that are on this node. A named service is shown with its
endpoints. Where a policy leaves new connections to endpoints of this node, those of other
nodes are draining, or down while none of this node serves.

The type inside has no frontends: clients of the cluster have all endpoints by it, where
policies leave others those of this node only.`,
		Example: "  llcli k8s services -n shop\n  llcli k8s services shop/web",
		Args:    atMostOne("llcli k8s services [NAME]"),
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			namespace, name, err := qualified(args, namespace)
			if err != nil {
				return err
			}
			return a.repeat(ctx, func() error { return a.showServices(ctx, d, namespace, name) })
		}),
		ValidArgsFunction: a.completeK8sServices(&namespace),
	}
	a.namespaceFlag(cmd, &namespace)
	a.bindWatch(cmd)
	return cmd
}

// completeK8sServices offers namespace/name of services, or names if the flag gives the namespace.
func (a *app) completeK8sServices(namespace *string) completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		var found []string
		if len(args) == 0 {
			a.ask(cmd.Context(), func(ctx context.Context, d Daemon) error {
				objects, err := a.collect(ctx, d, k8sServiceList(*namespace, ""))
				for i := range objects {
					name := objects[i].Labels[labelService]
					if *namespace == "" {
						name = objects[i].Labels[labelNamespace] + "/" + name
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

// k8sServiceList returns the request for the objects of services; empty: of all.
func k8sServiceList(namespace, name string) api.ListParams {
	p := api.ListParams{Kind: api.KindService, Owner: api.OwnerK8s, Labels: map[string]string{}}
	if namespace != "" {
		p.Labels[labelNamespace] = namespace
	}
	if name != "" {
		p.Labels[labelService] = name
	}
	return p
}

func (a *app) showServices(ctx context.Context, d Daemon, namespace, name string) error {
	objects, err := a.collect(ctx, d, k8sServiceList(namespace, name))
	if err != nil {
		return err
	}
	here, err := a.hereabouts(ctx, d)
	if err != nil {
		return err
	}
	services := []k8sService{}
	for i := range objects {
		if objects[i].Labels[labelService] != "" {
			services = append(services, here.service(&objects[i]))
		}
	}
	slices.SortFunc(services, func(x, y k8sService) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Port, y.Port), cmp.Compare(x.Object, y.Object))
	})
	if !a.isTable() {
		return printList(a, services)
	}
	if err := a.showAll("Services of Kubernetes", a.serviceTable(services), len(services)); err != nil || name == "" {
		return err
	}
	a.section(a.endpointTable(services))
	return nil
}

func (a *app) serviceTable(services []k8sService) *table {
	t := a.table(column{title: "NAMESPACE"}, column{title: "NAME"}, column{title: "PORT"}, column{title: "TYPE"}, column{title: "FRONTENDS", flexible: true, optional: 2},
		column{title: "READY", right: true}, column{title: "DRAINING", right: true, optional: 3}, column{title: "LOCAL", right: true, optional: 1},
		column{title: "STATE"}, column{title: "MESSAGE", flexible: true})
	for i := range services {
		s := &services[i]
		ready := cell{text: strconv.Itoa(s.Ready)}
		if s.Ready == 0 {
			ready.color = yellow
		}
		t.add(cell{text: s.Namespace}, cell{text: s.Name}, cell{text: s.Port}, cell{text: s.Type}, cell{text: join(s.Frontends)},
			ready, cell{text: strconv.Itoa(s.Draining)}, cell{text: strconv.Itoa(s.Local)},
			cell{text: s.State, color: stateColor(s.State)}, cell{text: s.Message})
	}
	return t
}

// endpointTable shows each endpoint of the services once for each port: as those have it
// that have most, and of these most that are ready, since some are for endpoints of this
// node only.
func (a *app) endpointTable(services []k8sService) *table {
	t := a.table(column{title: "PORT"}, column{title: "ENDPOINT"}, column{title: "STATE"}, column{title: "NODE", optional: 1}, column{title: "POD", flexible: true, optional: 1})
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
			t.add(cell{text: services[most].Port}, cell{text: e.Address}, cell{text: e.State, color: endpointColor(e.State)}, cell{text: node}, cell{text: or(e.Pod, "-")})
		}
		services = services[end:]
	}
	return t
}

func endpointColor(state string) string {
	return map[string]string{endpointReady: green, "draining": yellow, "down": red}[state]
}

// hereabouts is the state of this node.
type hereabouts struct {
	subnets []netip.Prefix        // of pods
	hosts   map[netip.Addr]bool   // the node's own addresses
	pods    map[netip.Addr]string // namespace/name by address
}

func (a *app) hereabouts(ctx context.Context, d Daemon) (*hereabouts, error) {
	h := &hereabouts{hosts: map[netip.Addr]bool{}, pods: map[netip.Addr]string{}}
	for kind, read := range map[string]func(*api.Object){
		api.KindPodNetwork: h.readNetwork, api.KindInterface: h.readInterface, api.KindEndpoint: h.readEndpoint,
	} {
		objects, err := a.collect(ctx, d, api.ListParams{Kind: kind})
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
	decode(o, &spec, &struct{}{})
	for _, text := range spec.Subnets {
		if p, err := netip.ParsePrefix(text); err == nil {
			h.subnets = append(h.subnets, p)
		}
	}
}

func (h *hereabouts) readInterface(o *api.Object) {
	var status api.InterfaceStatus
	decode(o, &struct{}{}, &status)
	for _, text := range status.Addresses {
		if p, err := netip.ParsePrefix(text); err == nil {
			h.hosts[p.Addr()] = true
		}
	}
}

func (h *hereabouts) readEndpoint(o *api.Object) {
	var spec api.EndpointSpec
	decode(o, &spec, &struct{}{})
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
	decode(o, &spec, &status)
	s := k8sService{
		Namespace: o.Labels[labelNamespace], Name: o.Labels[labelService], Port: or(o.Labels[labelPort], "-"),
		Type: k8sType(o), Frontends: spec.Frontends, Endpoints: []k8sEndpoint{},
		Object: o.Name, State: or(status.State, api.StatePending), Message: status.Message,
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
	rest := strings.TrimPrefix(o.Name, o.Labels[labelNamespace]+"/"+o.Labels[labelService])
	_, suffix, _ := strings.Cut(rest, "/")
	suffix, _, _ = strings.Cut(suffix, "/")
	return or(suffix, "cluster")
}

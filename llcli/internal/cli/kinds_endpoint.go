// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
)

func init() { schemas[api.KindEndpoint] = endpointSchema }

var endpointKind = kind{
	name:    api.KindEndpoint,
	words:   []string{"endpoint", "endpoints", "ep", "pod", "pods"},
	meaning: "a pod, a container or a VM behind a device of the switch",
	columns: []column{
		{title: "POD", flexible: true}, {title: "ADDRESSES", flexible: true}, {title: "MAC", optional: 2}, {title: "DEVICE", optional: 1},
		{title: "NETWORK", optional: 3},
	},
	wide: []column{
		{title: "INDEX", right: true, optional: 4}, {title: "MTU", right: true, optional: 4}, {title: "CONTAINER", optional: 5},
		{title: "LABELS", flexible: true, optional: 5},
	},
	cells: endpointCells, spec: func() any { return &api.EndpointSpec{} },
}

func endpointCells(o *api.Object, wide bool) []cell {
	var spec api.EndpointSpec
	var status api.EndpointStatus
	decode(o, &spec, &status)
	pod := or(spec.Pod, "-")
	if spec.Namespace != "" && spec.Pod != "" {
		pod = spec.Namespace + "/" + spec.Pod
	}
	cells := []cell{{text: pod}, {text: join(spec.Addresses)}, {text: spec.MAC}, {text: spec.Device}, {text: or(spec.Network, "-")}}
	if wide {
		container := or(spec.ContainerID, "-")
		if len(container) > 12 {
			container = container[:12]
		}
		cells = append(cells, cell{text: number(status.Index)}, cell{text: number(status.MTU)}, cell{text: container}, cell{text: labels(spec.Labels)})
	}
	return cells
}

// endpointsOf returns the names of the Endpoints that a name stands for: the Endpoint of that
// name, or else all interfaces of the pod NAMESPACE/NAME.
func (a *app) endpointsOf(ctx context.Context, d Daemon, name string) ([]string, error) {
	namespace, pod, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(pod, "/") {
		return []string{name}, nil
	}
	if _, err := a.object(ctx, d, api.KindEndpoint, name); !isNotFound(err) {
		return []string{name}, err
	}
	var names []string
	_, err := a.list(ctx, d, api.ListParams{Kind: api.KindEndpoint}, func(objects []api.Object) error {
		for i := range objects {
			var spec api.EndpointSpec
			decode(&objects[i], &spec, &struct{}{})
			if spec.Namespace == namespace && spec.Pod == pod {
				names = append(names, objects[i].Name)
			}
		}
		return nil
	})
	if len(names) == 0 {
		names = []string{name} // the daemon reports that it does not exist
	}
	return names, err
}

// allInterfaces puts the Endpoints of pods in the place of the pods' names.
func (a *app) allInterfaces(ctx context.Context, d Daemon, kind string, names []string) ([]string, error) {
	if kind != api.KindEndpoint {
		return names, nil
	}
	var all []string
	for _, name := range names {
		found, err := a.endpointsOf(ctx, d, name)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// showHostPorts shows how fast a pod may be, and which ports of the node lead to it.
func (a *app) showHostPorts(ctx context.Context, d Daemon, o *api.Object) {
	var status api.EndpointStatus
	decode(o, &struct{}{}, &status)
	for _, way := range []struct {
		title string
		rate  uint64
	}{{"To the pod", status.IngressRate}, {"From the pod", status.EgressRate}} {
		if way.rate > 0 {
			a.field(way.title, "at most "+bits(float64(way.rate))+"bit/s")
		}
	}
	var ports []string
	_, err := a.list(ctx, d, api.ListParams{Kind: api.KindNAT, Owner: api.OwnerCNI}, func(objects []api.Object) error {
		for i := range objects {
			if strings.HasPrefix(objects[i].Name, o.Name+"/") {
				ports = append(ports, hostPort(&objects[i]))
			}
		}
		return nil
	})
	if err != nil {
		a.note("the ports of the node that lead to %s: %v", o.Name, err)
	}
	slices.Sort(ports)
	a.lines("Host ports", slices.Compact(ports))
}

// hostPort describes a NAT that leads to a pod: 8080/tcp to port 80 of 10.244.3.5.
func hostPort(o *api.Object) string {
	var spec api.NATSpec
	decode(o, &spec, &struct{}{})
	if spec.Match == nil || spec.To == nil {
		return o.Name
	}
	port := join(spec.Match.Ports.Strings()) + "/" + join(spec.Match.Protocol.Strings())
	if at := join(spec.Match.Destination.Strings()); !strings.HasPrefix(at, "group:") {
		port += " at " + at
	}
	return fmt.Sprintf("%s to port %s of %s", port, join(spec.To.Ports.Strings()), join(spec.To.Addresses.Strings()))
}

const endpointSchema = `kind: Endpoint
name: shop/web-1              # a-z, 0-9 and - . / : inside; unique among Endpoints
labels: {node: n1}            # for llcli get -l; they mean nothing to the daemon
spec:
  device: hs3                 # the switch's end of the pod's link, in the switch's namespace
  addresses:                  # the only ones that packets of the pod come from; the
    - 10.244.3.5              # link-local one of the MAC is among them by itself
    - 2001:db8:3::5
  mac: 0a:58:0a:f4:03:05      # of the pod's end, and of no other
  mtu: 1450                   # of the device; default: as it is
  labels: {app: web}          # for the members of AddressGroups
  namespace: shop             # of the pod, as its orchestrator has it
  pod: web-1
  network: default            # PodNetwork or Bridge; default: the one that there is
  netns: /run/netns/web-1     # of the pod; informational
  containerID: 4f1d0c         # informational
`

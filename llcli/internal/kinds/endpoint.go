// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

var endpointKind = Kind{
	Name:    api.KindEndpoint,
	Words:   []string{"endpoint", "endpoints", "ep", "pod", "pods"},
	Meaning: "a pod, a container or a VM behind a device of the switch",
	Columns: []output.Column{
		{Title: "POD", Flexible: true}, {Title: "ADDRESSES", Flexible: true}, {Title: "MAC", Optional: 2}, {Title: "DEVICE", Optional: 1},
		{Title: "NETWORK", Optional: 3},
	},
	Wide: []output.Column{
		{Title: "INDEX", Right: true, Optional: 4}, {Title: "MTU", Right: true, Optional: 4}, {Title: "CONTAINER", Optional: 5},
		{Title: "LABELS", Flexible: true, Optional: 5},
	},
	Cells:    endpointCells,
	Spec:     func() any { return &api.EndpointSpec{} },
	Schema:   endpointSchema,
	Topics:   api.Topics,
	Counters: DeviceCounters,
	expand:   endpointsOf,
	details: func(ctx context.Context, a *command.App, d command.Daemon, o *api.Object) {
		showHostPorts(ctx, a, d, o)
		showTraffic(ctx, a, d, o)
	},
	fields: endpointFields,
	complete: func(_ string, spec map[string]any) error {
		for _, need := range []struct{ field, text string }{
			{"device", "the device in the switch is missing; set --device DEVICE"},
			{"addresses", "the address is missing; set --address ADDRESS"},
			{"mac", "the hardware address is missing; set --mac ADDRESS"},
		} {
			if spec[need.field] == nil {
				return command.Usagef("%s", need.text)
			}
		}
		return nil
	},
	AddExample: "  llcli endpoint add shop/web-1 --device hs3 --mac 0a:58:0a:f4:03:05 --address 10.244.3.5 --address 2001:db8:3::5",
	SetExample: "  llcli endpoint set shop/web-1 --add-address 10.244.3.100\n  llcli endpoint set shop/web-1 --pod-label app=web",
}

func endpointCells(o *api.Object, wide bool) []output.Cell {
	var spec api.EndpointSpec
	var status api.EndpointStatus
	Decode(o, &spec, &status)
	pod := cmp.Or(spec.Pod, "-")
	if spec.Namespace != "" && spec.Pod != "" {
		pod = spec.Namespace + "/" + spec.Pod
	}
	cells := []output.Cell{{Text: pod}, {Text: output.Join(spec.Addresses)}, {Text: spec.MAC}, {Text: spec.Device}, {Text: cmp.Or(spec.Network, "-")}}
	if wide {
		container := cmp.Or(spec.ContainerID, "-")
		if len(container) > 12 {
			container = container[:12]
		}
		cells = append(cells, output.Cell{Text: output.Number(status.Index)}, output.Cell{Text: output.Number(status.MTU)}, output.Cell{Text: container}, output.Cell{Text: output.Labels(spec.Labels)})
	}
	return cells
}

// showHostPorts shows the rate limits of a pod, and the ports of the node that lead to it.
func showHostPorts(ctx context.Context, a *command.App, d command.Daemon, o *api.Object) {
	var status api.EndpointStatus
	Decode(o, &struct{}{}, &status)
	for _, way := range []struct {
		title string
		rate  uint64
	}{{"To the pod", status.IngressRate}, {"From the pod", status.EgressRate}} {
		if way.rate > 0 {
			a.Field(way.title, "at most "+output.Bits(float64(way.rate))+"bit/s")
		}
	}
	var ports []string
	_, err := a.List(ctx, d, api.ListParams{Kind: api.KindNAT, Owner: api.OwnerCNI}, func(objects []api.Object) error {
		for i := range objects {
			if strings.HasPrefix(objects[i].Name, o.Name+"/") {
				ports = append(ports, hostPort(&objects[i]))
			}
		}
		return nil
	})
	if err != nil {
		a.Note("the ports of the node that lead to %s: %v", o.Name, err)
	}
	slices.Sort(ports)
	a.Lines("Host ports", slices.Compact(ports))
}

// hostPort describes a NAT that leads to a pod: 8080/tcp to port 80 of 10.244.3.5.
func hostPort(o *api.Object) string {
	var spec api.NATSpec
	Decode(o, &spec, &struct{}{})
	if spec.Match == nil || spec.To == nil {
		return o.Name
	}
	port := output.Join(spec.Match.Ports.Strings()) + "/" + output.Join(spec.Match.Protocol.Strings())
	if at := output.Join(spec.Match.Destination.Strings()); !strings.HasPrefix(at, "group:") {
		port += " at " + at
	}
	return fmt.Sprintf("%s to port %s of %s", port, output.Join(spec.To.Ports.Strings()), output.Join(spec.To.Addresses.Strings()))
}

const endpointSchema = `kind: Endpoint
name: shop/web-1              # a-z, 0-9 and - . / : inside; unique among Endpoints
labels: {node: n1}            # for llcli get -l; no effect in the daemon
spec:
  device: hs3                 # the switch's end of the pod's link, in the switch's namespace
  addresses:                  # the only source addresses that the pod may use, besides
    - 10.244.3.5              # the link-local address of its MAC
    - 2001:db8:3::5
  mac: 0a:58:0a:f4:03:05      # of the pod's end, and of no other device
  mtu: 1450                   # of the device; default: unchanged
  labels: {app: web}          # for AddressGroups and Policies
  namespace: shop             # of the pod, in its orchestrator
  pod: web-1
  uid: 6f3c9b0e-9d4b-4a56-9d0c-3f4f1f0f2a11 # of the pod, in its orchestrator
  network: default            # PodNetwork or Bridge; default: the only one that exists
  netns: /run/netns/web-1     # of the pod; informational
  containerID: 4f1d0c         # informational
`

var endpointFields = []specField{
	{flag: "device", path: "device", usage: "the switch's end of its link, a `DEVICE` in the switch's namespace"},
	{flag: "address", path: "addresses", form: formWords, usage: "`ADDRESS` that it may send from; may be repeated"},
	{flag: "mac", path: "mac", usage: "its hardware `ADDRESS`"},
	{flag: "mtu", path: "mtu", form: formNumber, usage: "MTU of the device in `BYTES` (default: unchanged)"},
	{flag: "network", path: "network", kind: api.KindPodNetwork, usage: "`NAME` of its PodNetwork or Bridge (default: the only one)"},
	{flag: "namespace", path: "namespace", usage: "`NAMESPACE` of the pod in its orchestrator"},
	{flag: "pod", path: "pod", usage: "`NAME` of the pod"},
	{flag: "uid", path: "uid", usage: "`UID` of the pod in its orchestrator"},
	{flag: "pod-label", path: "labels", form: formPairs, usage: "label of the pod for AddressGroups and Policies, `KEY=VALUE`; may be repeated"},
	{flag: "label", path: "labels", form: formPairs, usage: "the same as --pod-label, for other workloads, `KEY=VALUE`; may be repeated"},
	{flag: "netns", path: "netns", usage: "network namespace of the pod, a `PATH`; informational"},
	{flag: "container-id", path: "containerID", usage: "`ID` of the container; informational"},
}

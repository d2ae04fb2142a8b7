// SPDX-License-Identifier: Apache-2.0

package cli

import "github.com/loxilight/loxilight/api"

func init() { schemas[api.KindEndpoint] = endpointSchema }

var endpointKind = kind{
	name:    api.KindEndpoint,
	words:   []string{"endpoint", "endpoints", "ep"},
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

const endpointSchema = `kind: Endpoint
name: shop/web-1              # a-z, 0-9 and - . / : inside; unique among Endpoints
labels: {node: n1}            # for llcli get -l; they mean nothing to the daemon
spec:
  device: hs3                 # the switch's end of the pod's link, in the switch's namespace
  addresses:                  # the only ones that packets of the pod come from; the
    - 10.244.3.5              # link-local one of the MAC is among them by itself
    - 2001:db8:3::5
  mac: 0a:58:0a:f4:03:05      # of the pod's end, and of no other
  labels: {app: web}          # for the members of AddressGroups
  namespace: shop             # of the pod, as its orchestrator has it
  pod: web-1
  network: default            # PodNetwork or Bridge; default: the one that there is
  netns: /run/netns/web-1     # of the pod; only told
  containerID: 4f1d0c         # only told
`

// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"fmt"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

var podNetworkKind = Kind{
	Name:    api.KindPodNetwork,
	Words:   []string{"podnetwork", "podnetworks", "podnet"},
	Meaning: "this node's part in a network of pods: subnets, their bridge, masquerade",
	Columns: []output.Column{
		{Title: "SUBNETS", Flexible: true}, {Title: "USED", Right: true}, {Title: "BRIDGE", Optional: 1}, {Title: "MASQUERADE", Optional: 2},
	},
	Wide: []output.Column{
		{Title: "MTU", Right: true, Optional: 3}, {Title: "GATEWAY", Flexible: true, Optional: 4}, {Title: "HOST", Flexible: true, Optional: 4},
		{Title: "LABELS", Flexible: true, Optional: 5},
	},
	Cells:  podNetworkCells,
	Spec:   func() any { return &api.PodNetworkSpec{} },
	Schema: podNetworkSchema,
	fields: podNetworkFields,
	complete: func(_ string, spec map[string]any) error {
		if spec["subnets"] == nil {
			return command.Usagef("the subnet of this node's pods is missing; set --subnet PREFIX, such as 10.244.3.0/24")
		}
		return nil
	},
	AddExample: "  llcli podnetwork add default --subnet 10.244.3.0/24 --subnet 2001:db8:3::/64 --masquerade",
	SetExample: "  llcli podnetwork set default --add-except 10.0.0.0/8 --mtu 1400",
}

func podNetworkCells(o *api.Object, wide bool) []output.Cell {
	var spec api.PodNetworkSpec
	var status api.PodNetworkStatus
	Decode(o, &spec, &status)
	var used, gateways, hosts []string
	for _, s := range status.Subnets {
		used = append(used, fmt.Sprintf("%d", s.Used))
		gateways = append(gateways, s.Gateway)
		hosts = append(hosts, s.Host)
	}
	cells := []output.Cell{
		{Text: output.Join(spec.Subnets)}, {Text: output.Join(used)}, {Text: cmp.Or(spec.Bridge, "hsvlan110")}, {Text: output.YesNo(spec.Masquerade != nil && spec.Masquerade.Enabled)},
	}
	if wide {
		cells = append(cells, output.Cell{Text: output.Number(status.MTU)}, output.Cell{Text: output.Join(gateways)}, output.Cell{Text: output.Join(hosts)}, output.Cell{Text: output.Labels(o.Labels)})
	}
	return cells
}

var podNetworkFields = []specField{
	{flag: "subnet", path: "subnets", form: formWords, usage: "`PREFIX` that this node's pods are in, one of each family; may be repeated"},
	{flag: "bridge", path: "bridge", usage: "the name of the pods' bridge `DEVICE` to create (default hsvlan110)"},
	{flag: "mtu", path: "mtu", form: formNumber, usage: "MTU of the pods in `BYTES` (default: what uplinks and tunnels carry)"},
	{flag: "masquerade", path: "masquerade.enabled", form: formTruth, usage: "masquerade traffic to destinations outside the pod network"},
	{flag: "except", path: "masquerade.except", form: formWords, usage: "`PREFIX` that sees the pods' own addresses; may be repeated"},
	{flag: "policy", path: "policy", usage: "whether pods need an Entity: optional (the default), `required`"},
	{flag: "resolver", path: "resolvers", form: formWords, usage: "`ADDRESS` of a DNS server from whose responses names in Policies are learnt; may be repeated"},
}

const podNetworkSchema = `kind: PodNetwork
name: default                 # a-z, 0-9 and - . / : inside; unique among PodNetworks
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  subnets:                    # of this node: one IPv4 subnet, one IPv6 subnet, or both
    - 10.244.3.0/24           # .1 is the pods' gateway, .2 the node itself
    - 2001:db8:3::/64
  bridge: hsvlan110           # device of the pods' bridge in the switch; the default
  mtu: 1450                   # default: the smallest MTU of the uplinks and Tunnels
  masquerade:                 # absent: pods keep their own addresses everywhere
    enabled: true             # destinations other than pods and Peers see the node's address,
    except: [10.0.0.0/8]      # except these
  policy: required            # pods need an Entity: CNI ADD waits for it; default: optional
  resolvers: [10.96.0.10]     # DNS servers from whose responses names in Policies are learnt
`

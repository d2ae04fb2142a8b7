// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/loxilight/loxilight/api"
)

func init() { schemas[api.KindPodNetwork] = podNetworkSchema }

var podNetworkKind = kind{
	name:    api.KindPodNetwork,
	words:   []string{"podnetwork", "podnetworks", "podnet"},
	meaning: "this node's part in a network of pods: subnets, their bridge, masquerade",
	columns: []column{
		{title: "SUBNETS", flexible: true}, {title: "USED", right: true}, {title: "BRIDGE", optional: 1}, {title: "MASQUERADE", optional: 2},
	},
	wide: []column{
		{title: "MTU", right: true, optional: 3}, {title: "GATEWAY", flexible: true, optional: 4}, {title: "HOST", flexible: true, optional: 4},
		{title: "LABELS", flexible: true, optional: 5},
	},
	cells: podNetworkCells, spec: func() any { return &api.PodNetworkSpec{} },
}

func podNetworkCells(o *api.Object, wide bool) []cell {
	var spec api.PodNetworkSpec
	var status api.PodNetworkStatus
	decode(o, &spec, &status)
	var used, gateways, hosts []string
	for _, s := range status.Subnets {
		used = append(used, fmt.Sprintf("%d", s.Used))
		gateways = append(gateways, s.Gateway)
		hosts = append(hosts, s.Host)
	}
	cells := []cell{
		{text: join(spec.Subnets)}, {text: join(used)}, {text: or(spec.Bridge, "hsvlan110")}, {text: yesNo(spec.Masquerade != nil && spec.Masquerade.Enabled)},
	}
	if wide {
		cells = append(cells, cell{text: number(status.MTU)}, cell{text: join(gateways)}, cell{text: join(hosts)}, cell{text: labels(o.Labels)})
	}
	return cells
}

var podNetworkFields = []specField{
	{flag: "subnet", path: "subnets", form: formWords, usage: "`PREFIX` that this node's pods are in, one of each family; may be repeated"},
	{flag: "bridge", path: "bridge", usage: "the name of the pods' bridge `DEVICE`, which is made (default hsvlan110)"},
	{flag: "mtu", path: "mtu", form: formNumber, usage: "MTU of the pods in `BYTES` (default: what uplinks and tunnels carry)"},
	{flag: "masquerade", path: "masquerade.enabled", form: formTruth, usage: "masquerade traffic to destinations outside the pod network"},
	{flag: "except", path: "masquerade.except", form: formWords, usage: "`PREFIX` that sees the pods' own addresses; may be repeated"},
}

var endpointFields = []specField{
	{flag: "device", path: "device", usage: "the switch's end of its link, a `DEVICE` in the switch's namespace"},
	{flag: "address", path: "addresses", form: formWords, usage: "`ADDRESS` that it may send from; may be repeated"},
	{flag: "mac", path: "mac", usage: "its hardware `ADDRESS`"},
	{flag: "mtu", path: "mtu", form: formNumber, usage: "MTU of the device in `BYTES` (default: as it is)"},
	{flag: "network", path: "network", kind: api.KindPodNetwork, usage: "`NAME` of its PodNetwork or Bridge (default: the only one)"},
	{flag: "namespace", path: "namespace", usage: "`NAMESPACE` of the pod, as its orchestrator has it"},
	{flag: "pod", path: "pod", usage: "`NAME` of the pod"},
	{flag: "pod-label", path: "labels", form: formPairs, usage: "label of the pod for AddressGroups, `KEY=VALUE`; may be repeated"},
	{flag: "netns", path: "netns", usage: "network namespace of the pod, a `PATH`; informational"},
	{flag: "container-id", path: "containerID", usage: "`ID` of the container; informational"},
}

// podNouns are the words for pods and their networks.
func podNouns() []noun {
	return []noun{
		{
			kind: findKind(api.KindPodNetwork), fields: podNetworkFields,
			complete: func(_ string, spec map[string]any) error {
				if spec["subnets"] == nil {
					return usagef("the subnet of this node's pods is missing; set --subnet PREFIX, such as 10.244.3.0/24")
				}
				return nil
			},
			add: "  llcli podnetwork add default --subnet 10.244.3.0/24 --subnet 2001:db8:3::/64 --masquerade",
			set: "  llcli podnetwork set default --add-except 10.0.0.0/8 --mtu 1400",
		},
		{
			kind: findKind(api.KindEndpoint), fields: endpointFields,
			complete: func(_ string, spec map[string]any) error {
				for _, need := range []struct{ field, text string }{
					{"device", "the device in the switch is missing; set --device DEVICE"},
					{"addresses", "the address is missing; set --address ADDRESS"},
					{"mac", "the hardware address is missing; set --mac ADDRESS"},
				} {
					if spec[need.field] == nil {
						return usagef("%s", need.text)
					}
				}
				return nil
			},
			add: "  llcli endpoint add shop/web-1 --device hs3 --mac 0a:58:0a:f4:03:05 --address 10.244.3.5 --address 2001:db8:3::5",
			set: "  llcli endpoint set shop/web-1 --add-address 10.244.3.100\n  llcli endpoint set shop/web-1 --pod-label app=web",
		},
	}
}

// addressesWord is the word of get for the addresses of pods.
const addressesWord = "podaddresses"

// isAddresses reports whether a word means the addresses of pods.
func isAddresses(word string) bool {
	return strings.EqualFold(word, addressesWord) || strings.EqualFold(word, "podaddress")
}

// getAddresses shows the owners of pods' addresses, page by page.
func (a *app) getAddresses(ctx context.Context, d Daemon) error {
	t := a.table(column{title: "ADDRESSES", flexible: true}, column{title: "POD"}, column{title: "CONTAINER", flexible: true, optional: 2},
		column{title: "INTERFACE", optional: 3}, column{title: "NETWORK", optional: 1}, column{title: "SINCE", optional: 4}, column{title: "GONE", flexible: true})
	next := func(after string) ([]api.AddressLease, string, error) {
		var page api.AddressesListResult
		err := d.Call(ctx, api.MethodAddressesList, api.AddressesListParams{Continue: after}, &page)
		return page.Items, page.Continue, err
	}
	return showPages(a, "addresses of pods", t, next, func(l *api.AddressLease) []cell {
		return []cell{
			{text: join(l.Addresses)}, {text: or(l.Pod, "-")}, {text: l.ContainerID}, {text: l.IfName},
			{text: l.Network}, {text: l.Since}, {text: or(l.Gone, "-")},
		}
	})
}

const podNetworkSchema = `kind: PodNetwork
name: default                 # a-z, 0-9 and - . / : inside; unique among PodNetworks
labels: {team: net}           # for llcli get -l; they mean nothing to the daemon
spec:
  subnets:                    # of this node: one of IPv4, one of IPv6, or both
    - 10.244.3.0/24           # .1 is the pods' gateway, .2 the node itself
    - 2001:db8:3::/64
  bridge: hsvlan110           # device of the pods' bridge in the switch; the default
  mtu: 1450                   # default: what the uplinks carry
  masquerade:                 # absent: pods are seen by their own addresses everywhere
    enabled: true             # who is no pod and no peer sees the node's address,
    except: [10.0.0.0/8]      # but for these
`

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

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

// addressesWord is what get shows of the leases of addresses.
const addressesWord = "addresses"

// getAddresses shows whose the addresses of pods are, page by page.
func (a *app) getAddresses(ctx context.Context, d Daemon) error {
	t := a.table(column{title: "ADDRESSES", flexible: true}, column{title: "POD"}, column{title: "CONTAINER", flexible: true, optional: 2},
		column{title: "INTERFACE", optional: 3}, column{title: "NETWORK", optional: 1}, column{title: "SINCE", optional: 4}, column{title: "GONE", flexible: true})
	list := listWriter{app: a}
	var params api.AddressesListParams
	shown := 0
	for {
		var page api.AddressesListResult
		if err := d.Call(ctx, api.MethodAddressesList, params, &page); err != nil {
			return err
		}
		shown += len(page.Items)
		for i := range page.Items {
			l := &page.Items[i]
			if a.isTable() {
				t.add(cell{text: join(l.Addresses)}, cell{text: or(l.Pod, "-")}, cell{text: l.ContainerID}, cell{text: l.IfName},
					cell{text: l.Network}, cell{text: l.Since}, cell{text: or(l.Gone, "-")})
			} else if err := list.add(l); err != nil {
				return err
			}
		}
		if a.isTable() && len(page.Items) > 0 {
			t.flush()
		}
		if params.Continue = page.Continue; page.Continue == "" {
			break
		}
	}
	switch {
	case !a.isTable():
		list.end()
	case shown == 0:
		a.note("there are none")
	}
	return nil
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

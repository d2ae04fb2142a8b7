// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strconv"

	"github.com/loxilight/loxilight/api"
)

// testNetwork is the kernel's state as a testDaemon reports it.
var testNetwork = map[string][]api.NetworkEntry{
	api.NetworkBridges: {
		{Netns: "host", Device: "virbr0", Origin: "other", MTU: 1500, MAC: "52:54:00:12:34:56", Addresses: []string{"192.168.122.1/24"}},
		{Netns: "switch", Device: "br0", Origin: "loxilight", Object: "Bridge/lan", Up: true, MTU: 9000, MAC: "c2:e5:dc:0b:6e:9e", VLANFiltering: true,
			Addresses: []string{"10.71.0.1/24", "fd71::1/64"}, Ports: []api.NetworkPort{
				{Device: "hs1", Up: true, PVID: 10, Untagged: []string{"10"}, VLANs: []string{"200-299"}}, {Device: "hs2"},
			}},
	},
	api.NetworkFDB: {
		{Netns: "switch", Device: "hs1", Bridge: "br0", VLAN: 10, MAC: "02:42:ac:11:00:09", State: "learned", Origin: "kernel"},
	},
	api.NetworkNeighbors: {
		{Netns: "host", Device: "eth0", Address: "192.0.2.1", MAC: "02:42:ac:11:00:01", State: "reachable", Origin: "kernel"},
		{Netns: "switch", Device: "br0", Address: "fd71::9", State: "failed", Origin: "kernel"},
	},
	api.NetworkRoutes: {
		{Netns: "host", Prefix: "0.0.0.0/0", Type: "unicast", Origin: "dhcp", Metric: 100, NextHops: []api.NextHop{{Via: "192.0.2.1", Device: "eth0", Weight: 1}}},
		{Netns: "switch", Prefix: "203.0.113.0/24", Type: "unicast", Origin: "loxilight", Object: "Route/far", MTU: 1400, Source: "10.71.0.1",
			NextHops: []api.NextHop{{Via: "10.71.0.3", Device: "br0", Weight: 3}, {Device: "ppp0", Weight: 1}}},
		{Netns: "switch", Prefix: "2001:db8::/32", Type: "blackhole", Origin: "static"},
	},
}

// networkList returns one entry per page.
func (d *testDaemon) networkList(p api.NetworkListParams) (any, *api.Error) {
	if p.Netns != "" && p.Netns != "host" && p.Netns != "switch" {
		return nil, api.Errorf(api.ReasonInvalid, "%q is not one of host, switch", p.Netns).At("", "netns")
	}
	var entries []api.NetworkEntry
	for _, e := range testNetwork[p.What] {
		if p.Netns == "" || e.Netns == p.Netns {
			entries = append(entries, e)
		}
	}
	at, _ := strconv.Atoi(p.Continue)
	if at >= len(entries) {
		return api.NetworkListResult{}, nil
	}
	r := api.NetworkListResult{Items: entries[at : at+1]}
	if at+1 < len(entries) {
		r.Continue = strconv.Itoa(at + 1)
	}
	return r, nil
}

// addressesList returns one lease per page.
func addressesList(p api.AddressesListParams) (any, *api.Error) {
	leases := []api.AddressLease{
		{Network: "default", Addresses: []string{"10.244.3.17/24", "2001:db8:3::11/64"}, Pod: "shop/web-1", ContainerID: "4f2a9c", IfName: "eth0",
			Netns: "/run/netns/cni-77", Since: "2026-03-04T05:06:07Z"},
		{Network: "default", Addresses: []string{"10.244.3.18/24"}, ContainerID: "77bd02", IfName: "net1", Since: "2026-03-01T00:00:00Z", Gone: "the machine has rebooted since"},
	}
	at, _ := strconv.Atoi(p.Continue)
	r := api.AddressesListResult{Items: leases[at : at+1]}
	if at+1 < len(leases) {
		r.Continue = strconv.Itoa(at + 1)
	}
	return r, nil
}

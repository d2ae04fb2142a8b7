// SPDX-License-Identifier: Apache-2.0

package api

// PodNetworkSpec is this node's part of a network of pods.
type PodNetworkSpec struct {
	// Subnets are this node's subnets: one for IPv4, one for IPv6, or both. The first address of
	// each belongs to the switch and is the pods' gateway, the second one belongs to the node.
	Subnets []string `json:"subnets"`
	Bridge  string   `json:"bridge,omitempty"` // device of the pods' bridge; default hsvlan110
	MTU     int      `json:"mtu,omitempty"`    // bytes; default: the smallest of the uplinks and Tunnels
	// Masquerade translates the source of packets from pods to destinations other than pods to the
	// node's address; nil: no translation.
	Masquerade *PodMasquerade `json:"masquerade,omitempty"`
	// Policy is whether pods need an Entity: optional (default), required. With required, a pod is
	// not opened before it has an Entity whose Policies are in force, and all traffic of a pod whose
	// Entity has been deleted is dropped.
	Policy string `json:"policy,omitempty"`
	// Resolvers are the addresses of the DNS servers from whose responses to Endpoints of this network
	// the addresses of names in Policies are learnt; at most 64.
	Resolvers []string `json:"resolvers,omitempty"`
}

// PolicyRequired is a value of [PodNetworkSpec].Policy.
const PolicyRequired = "required"

// PodMasquerade selects the pods' connections that get the node's address: those that leave the
// node through an uplink for destinations other than pods.
type PodMasquerade struct {
	Enabled bool     `json:"enabled"`
	Except  []string `json:"except,omitempty"` // further destinations that see the pods' own addresses: addresses, prefixes
}

// PodNetworkStatus is the status of a PodNetwork.
type PodNetworkStatus struct {
	Status
	MTU     int         `json:"mtu,omitempty"` // the largest packet of a pod, in bytes; 0: not known yet
	Subnets []PodSubnet `json:"subnets,omitempty"`
}

// PodSubnet is one of the subnets of a PodNetwork.
type PodSubnet struct {
	Subnet  string `json:"subnet"`
	Gateway string `json:"gateway"` // address of the switch in it
	Host    string `json:"host"`    // address of the node in it
	Used    uint64 `json:"used"`    // number of addresses that pods have
	Size    uint64 `json:"size"`    // addresses available for pods, at most 2^53
}

// AddressesListParams are the parameters of addresses.list. Leases are ordered by network, then by
// owner.
type AddressesListParams struct {
	Network  string `json:"network,omitempty"` // name of a PodNetwork; empty: all
	Limit    int    `json:"limit,omitempty"`   // 0: as many as fit in the reply
	Continue string `json:"continue,omitempty"`
}

// AddressesListResult is the result of addresses.list.
type AddressesListResult struct {
	Items    []AddressLease `json:"items"`
	Continue string         `json:"continue,omitempty"` // empty: this is the last page
}

// AddressLease assigns addresses of a PodNetwork to a container's interface.
type AddressLease struct {
	Network     string   `json:"network"`
	Addresses   []string `json:"addresses"` // each with the length of its subnet
	Pod         string   `json:"pod,omitempty"`
	ContainerID string   `json:"containerID"`
	IfName      string   `json:"ifName"`
	Netns       string   `json:"netns,omitempty"` // path of the network namespace
	Since       string   `json:"since"`           // RFC 3339
	// Gone is the reason why the owner can no longer exist; empty: it may exist.
	Gone string `json:"gone,omitempty"`
}

// SPDX-License-Identifier: Apache-2.0

package api

// PodNetworkSpec is the part that this node has in a network of pods.
type PodNetworkSpec struct {
	// Subnets are this node's: one of IPv4, one of IPv6, or both. The first address of
	// each is the pods' gateway, which the switch has, the second one is the node's own.
	Subnets []string `json:"subnets"`
	Bridge  string   `json:"bridge,omitempty"` // device of the pods' bridge; default hsvlan110
	MTU     int      `json:"mtu,omitempty"`    // bytes; default: as the uplinks
	// Masquerade translates the source of pods' packets to other destinations to the node's
	// address; nil: no translation.
	Masquerade *PodMasquerade `json:"masquerade,omitempty"`
}

// PodMasquerade selects the pods' connections that get the node's address: those that leave the
// node by an uplink and do not go to pods.
type PodMasquerade struct {
	Enabled bool     `json:"enabled"`
	Except  []string `json:"except,omitempty"` // destinations, too, that see the pods' own addresses: addresses, prefixes
}

// PodNetworkStatus is the status of a PodNetwork.
type PodNetworkStatus struct {
	Status
	MTU     int         `json:"mtu,omitempty"` // bytes that a packet of a pod may have; 0: not known yet
	Subnets []PodSubnet `json:"subnets,omitempty"`
}

// PodSubnet is one of the subnets of a PodNetwork.
type PodSubnet struct {
	Subnet  string `json:"subnet"`
	Gateway string `json:"gateway"` // address of the switch in it
	Host    string `json:"host"`    // address of the node in it
	Used    uint64 `json:"used"`    // addresses that pods have
	Size    uint64 `json:"size"`    // addresses that there are for pods, at most 2^53
}

// AddressesListParams are the parameters of addresses.list. Leases are in the order of their
// networks and owners.
type AddressesListParams struct {
	Network  string `json:"network,omitempty"` // name of a PodNetwork; empty: all
	Limit    int    `json:"limit,omitempty"`   // 0: as many as fit the reply
	Continue string `json:"continue,omitempty"`
}

// AddressesListResult answers addresses.list.
type AddressesListResult struct {
	Items    []AddressLease `json:"items"`
	Continue string         `json:"continue,omitempty"` // empty: that was all
}

// AddressLease assigns addresses of a PodNetwork to an interface of a container.
type AddressLease struct {
	Network     string   `json:"network"`
	Addresses   []string `json:"addresses"` // each with the length of its subnet
	Pod         string   `json:"pod,omitempty"`
	ContainerID string   `json:"containerID"`
	IfName      string   `json:"ifName"`
	Netns       string   `json:"netns,omitempty"` // path of the network namespace
	Since       string   `json:"since"`           // RFC 3339
	// Gone is why the owner cannot be alive any more; empty: it may be.
	Gone string `json:"gone,omitempty"`
}

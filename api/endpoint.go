// SPDX-License-Identifier: Apache-2.0

package api

// EndpointSpec is a pod, a container or a VM behind a device in the switch's network
// namespace. Nothing comes in by the device but what has its MAC and its addresses as source.
type EndpointSpec struct {
	Device    string   `json:"device"`        // the switch's end of its link
	Addresses []string `json:"addresses"`     // without a length; the link-local one of the MAC is among them by itself
	MAC       string   `json:"mac"`           // of the pod's end
	MTU       int      `json:"mtu,omitempty"` // of the device, in bytes; default: as it is
	// Labels are for AddressGroups to choose it by.
	Labels      map[string]string `json:"labels,omitempty"`
	Namespace   string            `json:"namespace,omitempty"` // of the pod, as its orchestrator has it
	Pod         string            `json:"pod,omitempty"`       // its name in there
	Network     string            `json:"network,omitempty"`   // PodNetwork or Bridge that it is in; default: the one that there is
	Netns       string            `json:"netns,omitempty"`     // path of the pod's network namespace
	ContainerID string            `json:"containerID,omitempty"`
}

// EndpointStatus is what became of an Endpoint. It is Ready when its device is a port of its
// network's bridge and guarded.
type EndpointStatus struct {
	Status
	Index int      `json:"index,omitempty"` // of the device
	MTU   int      `json:"mtu,omitempty"`   // bytes
	Hooks []string `json:"hooks,omitempty"` // such as tcx-ingress
	// How fast what goes to the pod, and what comes from it, may be, in bits a second, as CNI
	// was told; 0: nothing bounds it.
	IngressRate uint64 `json:"ingressRate,omitempty"`
	EgressRate  uint64 `json:"egressRate,omitempty"`
}

// SPDX-License-Identifier: Apache-2.0

package api

// EndpointSpec is a pod, a container or a VM behind a device in the switch's network namespace.
// The device admits only packets with the Endpoint's MAC and addresses as source.
type EndpointSpec struct {
	Device    string   `json:"device"`        // the switch's end of its link
	Addresses []string `json:"addresses"`     // without a prefix length; the link-local address of the MAC is always included
	MAC       string   `json:"mac"`           // MAC of the pod's end of the link
	MTU       int      `json:"mtu,omitempty"` // MTU of the device, in bytes; default: unchanged
	// Labels are the labels by which AddressGroups select the Endpoint.
	Labels      map[string]string `json:"labels,omitempty"`
	Namespace   string            `json:"namespace,omitempty"` // namespace of the pod, in its orchestrator
	Pod         string            `json:"pod,omitempty"`       // name of the pod
	UID         string            `json:"uid,omitempty"`       // of the pod, in its orchestrator
	Network     string            `json:"network,omitempty"`   // PodNetwork or Bridge; default: the only one
	Netns       string            `json:"netns,omitempty"`     // path of the pod's network namespace
	ContainerID string            `json:"containerID,omitempty"`
}

// EndpointStatus is the status of an Endpoint. It is Ready if its device is a port of its network's
// bridge and has a source guard.
type EndpointStatus struct {
	Status
	Index int      `json:"index,omitempty"` // interface index of the device
	MTU   int      `json:"mtu,omitempty"`   // bytes
	Hooks []string `json:"hooks,omitempty"` // such as tcx-ingress
	// Rate limits for traffic to the pod and from the pod, in bits per second, as passed to CNI;
	// 0: no limit.
	IngressRate uint64 `json:"ingressRate,omitempty"`
	EgressRate  uint64 `json:"egressRate,omitempty"`
}

// SPDX-License-Identifier: Apache-2.0

package api

// MirrorSpec copies packets to a device, or through a Tunnel to a Peer. Copies are frames as they
// are on the wire of the port on which they are taken. A copy is never copied.
type MirrorSpec struct {
	Source    MirrorSource `json:"source"`
	Direction string       `json:"direction,omitempty"` // one of MirrorDirections
	// Match selects among the packets of Source, by the fields that they have where they are
	// copied: Source, Destination, Protocol, Ports and SourcePorts, without groups. Each list has
	// at most 16 members. Nil: every packet.
	Match   *Match       `json:"match,omitempty"`
	Snaplen int          `json:"snaplen,omitempty"` // bytes to which a copy is cut, from the Ethernet header on; 64 to 65535; 0: whole
	To      MirrorTarget `json:"to"`
}

// MirrorSource names the object whose packets are copied. Exactly one field is set.
type MirrorSource struct {
	Interface string `json:"interface,omitempty"` // in: packets that arrive on its device, out: packets that leave through it
	Endpoint  string `json:"endpoint,omitempty"`  // the same, as the node sees them: in is from the pod, out is to it
	Service   string `json:"service,omitempty"`   // packets of its connections; in: from clients, out: to clients
	Rule      string `json:"rule,omitempty"`      // a FirewallRule: packets of the connections that it allows, likewise
}

// MirrorTarget receives the copies. Either Device, or Peer and VNI are set.
type MirrorTarget struct {
	Device string `json:"device,omitempty"`
	// Netns is the network namespace of Device: host, switch. Default: the namespace of the source
	// Interface; switch for an Endpoint, host for a Service and a rule.
	Netns string `json:"netns,omitempty"`
	Peer  string `json:"peer,omitempty"` // name of a Peer with a Tunnel
	VNI   uint32 `json:"vni,omitempty"`  // of the copies, 1 to 16777215; for gre the key. Differs from the VNIs of all Tunnels
}

// MirrorStatus is the status of a Mirror.
type MirrorStatus struct {
	Status
	Devices  []string        `json:"devices,omitempty"` // on which packets are copied
	Counters *MirrorCounters `json:"counters,omitempty"`
}

// MirrorCounters count copies since the Mirror took effect.
type MirrorCounters struct {
	Packets uint64 `json:"packets"` // copies that were sent
	Bytes   uint64 `json:"bytes"`   // their bytes, after cutting and without the tunnel's headers
	Drops   uint64 `json:"drops"`   // copies that could not be sent
}

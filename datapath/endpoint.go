// SPDX-License-Identifier: Apache-2.0

package datapath

import "net/netip"

// EndpointName identifies an [Endpoint].
type EndpointName string

// endpointPort is the prefix of the port names of endpoints; port names of Interface objects
// contain no capital letters.
const endpointPort = "Endpoint/"

// Port returns the name of the endpoint's port, for counters and state.
func (n EndpointName) Port() PortName { return PortName(endpointPort + n) }

// Endpoint returns the name of the endpoint that has this port, and false if no endpoint has it.
func (n PortName) Endpoint() (EndpointName, bool) {
	if len(n) <= len(endpointPort) || n[:len(endpointPort)] != endpointPort {
		return "", false
	}
	return EndpointName(n[len(endpointPort):]), true
}

// Endpoint is a pod, a container or a VM behind a device in the switch's network namespace. Once
// programs are attached to the device, only packets with the endpoint's MAC and addresses as source
// are accepted from it.
type Endpoint struct {
	Device    string
	MAC       [6]byte      // of the pod's end
	Addresses []netip.Addr // of the pod; the link-local address derived from MAC is allowed too
	MTU       int          // of the device, in bytes; 0: unchanged
	Network   string       // name of its network, for messages
	Bridge    string       // to which the device belongs; empty: the network does not exist
	Learns    bool         // names are learnt from DNS responses to it
	Routes    []Route      // to endpoint addresses that its network routes elsewhere
}

// EndpointJoiner is a table of endpoints. The table must be notified when an endpoint's device has
// become a port of its bridge: from then on, the kernel bridges or routes the packets of that
// device.
type EndpointJoiner interface {
	Joined(name EndpointName) error
}

// IsTunnelMAC reports whether a MAC is used in the inner Ethernet headers of tunnels.
func IsTunnelMAC(mac [6]byte) bool {
	return mac == [6]byte{0x02, 0x4c, 0x4c, 0, 0, 0x01} || mac == [6]byte{0x02, 0x4c, 0x4c, 0, 0, 0x02}
}

// LinkLocal returns the IPv6 link-local address that is derived from a MAC (RFC 4291, appendix A).
func LinkLocal(mac [6]byte) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5],
	})
}

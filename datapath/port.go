// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net"
	"net/netip"
)

// PortName identifies a [Port]: the name of its Interface object.
type PortName string

// Role is what lies behind a port.
type Role uint8

// The roles.
const (
	RoleUplink Role = iota // other machines
	RolePort               // a pod, a container, a VM
	RoleHost               // the host itself
	RoleTunnel             // a tunnel device
)

// Port is a Linux device that the data plane attaches to.
type Port struct {
	Device string
	Switch bool // in the switch's network namespace rather than the host's
	Role   Role
}

// PortState is the device of a port as it is now.
type PortState struct {
	Index     int // 0: there is no such device
	MAC       net.HardwareAddr
	MTU       int // bytes
	Addresses []netip.Prefix
	Hooks     []string // such as tcx-ingress
}

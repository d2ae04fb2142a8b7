// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
)

// host is the address of host i of a port's network; 1 is the node.
func host(port, i int, v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::%x", port+1, i))
	}
	return netip.AddrFrom4([4]byte{10, 0, byte(port + 1), byte(i)})
}

// route returns the result of the node's routing table: the port through which packets to an
// address leave, and the host that gets them. local: the node itself.
func route(a netip.Addr) (port int, station [6]byte, local bool) {
	b := a.As16()
	n, i := 0, 0
	switch {
	case a.Is4() && b[12] == 10 && b[13] == 0:
		n, i = int(b[14]), int(b[15])
	case a.Is6() && b[0] == 0x20 && b[1] == 1 && b[2] == 0x0d && b[3] == 0xb8:
		n, i = int(b[4])<<8|int(b[5]), int(b[15])
	}
	if n < 1 || n > portCount {
		return portCount - 1, hostMAC(portCount-1, 2), false
	}
	return n - 1, hostMAC(n-1, i), i == 1
}

// portAddr is the address that the node has on a port.
func portAddr(port int, v6 bool) netip.Addr { return host(port, 1, v6) }

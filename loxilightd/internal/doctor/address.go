// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
)

// resolved names the device of a port that is chosen by its address; false: nobody has it, or
// it is in the switch, where nobody looks.
func resolved(port datapath.Port) (datapath.Port, bool) {
	if !port.Address.IsValid() {
		return port, true
	}
	list, err := net.Interfaces()
	if err != nil || port.Switch {
		return port, false
	}
	for i := range list {
		addrs, err := list[i].Addrs()
		if err != nil {
			continue // it went meanwhile
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == port.Address {
				port.Device = list[i].Name
				return port, true
			}
		}
	}
	return port, false
}

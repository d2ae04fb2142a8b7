// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
)

// resolved returns a port that is selected by address, with the name of its device filled in. It
// returns false if no device has the address, or if the port is in the switch, which is not
// searched.
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
			continue // the device was deleted in the meantime
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

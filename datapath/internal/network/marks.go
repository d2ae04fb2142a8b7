// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net"

	"github.com/loxilight/loxilight/datapath"
)

// Mark returns the alias of devices that this instance created, or the prefix of their aliases.
func Mark(cfg datapath.Config) string { return mark(cfg) }

// MACOf returns the MAC address that this instance gives to a device of that name.
func MACOf(cfg datapath.Config, device string) net.HardwareAddr { return macOf(cfg, device) }

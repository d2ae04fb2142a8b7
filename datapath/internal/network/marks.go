// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net"

	"github.com/loxilight/loxilight/datapath"
)

// Mark returns the alias of devices that this instance created, or its prefix.
func Mark(cfg datapath.Config) string { return mark(cfg) }

// MACOf returns the MAC address for the device of that name if this instance creates it.
func MACOf(cfg datapath.Config, device string) net.HardwareAddr { return macOf(cfg, device) }

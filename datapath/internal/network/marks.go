// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net"

	"github.com/loxilight/loxilight/datapath"
)

// Mark returns the alias of devices that this instance made, or its prefix.
func Mark(cfg datapath.Config) string { return mark(cfg) }

// MACOf is the hardware address of a device that this instance makes, by its name.
func MACOf(cfg datapath.Config, device string) net.HardwareAddr { return macOf(cfg, device) }

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"regexp"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// podDevice matches the names of pod links. External devices may have such names too; pods then use
// different names.
var podDevice = regexp.MustCompile("^" + datapath.PodDevicePrefix + "[0-9]+$")

// notReserved rejects an object that would create a device with a name that the daemon uses for its
// own devices.
func (s *Server) notReserved(o *state.Object) *api.Error {
	field, device := "spec.device", ""
	switch v := o.Value.(type) {
	case *state.Bridge:
		device = v.Device
	case *state.Tunnel:
		device = v.Device
	case *state.PodNetwork:
		field, device = "spec.bridge", v.Bridge
	default:
		return nil
	}
	refused := func(format string, args ...any) *api.Error {
		return api.Errorf(api.ReasonInvalid, format, args...).At(o.Key.String(), field)
	}
	switch {
	case podDevice.MatchString(device):
		return refused("%s is reserved for devices of pods: choose a name other than %s followed by a number", device, datapath.PodDevicePrefix)
	case device != "" && device == s.SwitchDevice:
		return refused("%s is the switch's end of the link to the host (switch.switchDevice): take another name", device)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestReservedNames: no object can create a device with a name that is reserved for pods' devices
// or for the link to the host; but existing external devices may have such names.
func TestReservedNames(t *testing.T) {
	h := newHarness(t)
	h.SwitchDevice = "hs_host"
	object := func(kind, spec, device string) string {
		return `{"objects":[{"kind":"` + kind + `","name":"a","spec":` + fmt.Sprintf(spec, device) + `}]}`
	}
	for _, c := range []struct{ kind, spec, field string }{
		{"Tunnel", `{"device":"%s","vni":7}`, "spec.device"}, {"Bridge", `{"device":"%s"}`, "spec.device"},
		{"PodNetwork", `{"subnets":["10.7.1.0/24"],"bridge":"%s"}`, "spec.bridge"},
	} {
		for device, says := range map[string]string{"hs0": "hs0 is reserved for devices of pods", "hs17": "choose a name other than hs followed by a number", "hs_host": "(switch.switchDevice): take another name"} {
			h.wantError("apply", object(c.kind, c.spec, device), 1, c.kind+"/a", c.field, says)
		}
		for _, device := range []string{"hs", "hs1a", "ahs1", "hsvx100", "loxi_host"} {
			result[api.ChangeResult](h, "apply", object(c.kind, c.spec, device))
			result[api.ChangeResult](h, "delete", `{"objects":[{"kind":"`+c.kind+`","name":"a"}]}`)
		}
	}
	result[api.ChangeResult](h, "apply", object("Interface", `{"device":"%s","netns":"switch"}`, "hs1"))
	result[api.ChangeResult](h, "apply", object("Bridge", `{"device":"br1","ports":[{"device":"%s"}]}`, "hs2"))
	// A Tunnel creates two devices, and no other object may use their names.
	const tunnel, network = `{"device":"%s","vni":7}`, `{"subnets":["10.7.1.0/24"],"bridge":"%s"}`
	h.wantError("apply", object("Tunnel", tunnel, "br1"), 3, "Tunnel/a", "spec.device", "device br1 in the switch belongs to Bridge/a already")
	result[api.ChangeResult](h, "apply", object("Tunnel", tunnel, "vx"))
	h.wantError("apply", strings.Replace(object("Tunnel", tunnel, "vx-e"), `"a"`, `"b"`, 1), 3, "Tunnel/b", "spec.device", "belongs to Tunnel/a already")
	h.wantError("apply", object("Bridge", `{"device":"%s"}`, "vx-e"), 3, "Bridge/a", "spec.device", "device vx-e in the switch belongs to Tunnel/a already")
	h.wantError("apply", object("PodNetwork", network, "vx"), 3, "PodNetwork/a", "spec.bridge", "vx belongs to Tunnel/a already")
	result[api.ChangeResult](h, "apply", object("PodNetwork", network, "pods"))
	h.wantError("apply", object("Tunnel", tunnel, "pods"), 3, "Tunnel/a", "spec.device", "pods is the bridge of PodNetwork/a")
}

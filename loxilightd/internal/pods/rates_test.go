// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
)

// TestRates: a pod's rates are returned only for its own Endpoint, even after a restart.
func TestRates(t *testing.T) {
	n := newNode(t)
	bandwidth := map[string]any{"ingressRate": 10_000_000, "ingressBurst": 80_000, "egressRate": 7_000_000, "egressBurst": 70_000}
	device := n.mustAdd("c1", map[string]any{"runtimeConfig": map[string]any{"bandwidth": bandwidth}}).Interfaces[0].Name
	free := n.mustAdd("c2", nil).Interfaces[0].Name
	name := ""
	n.desired.set(func() {
		for r, o := range n.desired.objects {
			if r.Kind == api.KindEndpoint && strings.Contains(string(o.Spec), `"device":"`+device+`"`) {
				name = r.Name
			}
		}
	})
	for range 2 {
		for _, c := range []struct {
			device, endpoint string
			in, out          uint64
		}{{device, name, 10_000_000, 7_000_000}, {device, "another-pods", 0, 0}, {free, name, 0, 0}, {"hs99", "", 0, 0}} {
			in, out := n.Rates(c.device, c.endpoint)
			if in.Rate != c.in || out.Rate != c.out {
				t.Errorf("%s of %q: %+v and %+v, want %d and %d", c.device, c.endpoint, in, out, c.in, c.out)
			}
		}
		n.restart()
	}
	if in, _ := n.Rates(device, name); in != (datapath.PodRate{Rate: 10_000_000, Burst: 80_000}) {
		t.Errorf("to the pod: %+v", in)
	}
}

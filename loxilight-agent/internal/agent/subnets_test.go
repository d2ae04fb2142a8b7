// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestOtherSubnetsWaitForPods: a node that was recreated with different podCIDRs continues to use
// the earlier ones while pods have addresses in them, which delays nothing else. It gets the new
// ones when these pods are gone.
func TestOtherSubnetsWaitForPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent()
	w.inStep(api.KindPeer, "n2")
	pod := api.Object{Kind: api.KindEndpoint, Name: "pod", Spec: raw(t, api.EndpointSpec{
		Device: "hs1", MAC: "02:00:00:00:00:09", Addresses: []string{"10.244.1.9"}, Network: "default",
	})}
	if _, err := w.daemon.Apply(t.Context(), api.ApplyParams{Objects: []api.Object{pod}}); err != nil {
		t.Fatal(err)
	}
	subnet := func() string { return w.daemon.has()["PodNetwork/default"] }
	w.kube.Set(node("n1", "192.0.2.1", "10.244.9.0/24"))
	eventually(t, "the daemon has refused it", func() bool {
		return strings.Contains(w.log.String(), "refuses an object") && strings.Contains(w.log.String(), "1 Endpoint would have an address outside all subnets")
	})
	w.kube.Set(node("n3", "192.0.2.3", "10.244.3.0/24"))
	w.inStep(api.KindPeer, "n2 n3")
	if got := subnet(); !strings.Contains(got, "10.244.1.0/24") {
		t.Errorf("the PodNetwork is %s", got)
	}
	if _, err := w.daemon.Delete(t.Context(), api.DeleteParams{Objects: []api.ObjectRef{{Kind: pod.Kind, Name: pod.Name}}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the PodNetwork has the new one", func() bool { return strings.Contains(subnet(), "10.244.9.0/24") })
}

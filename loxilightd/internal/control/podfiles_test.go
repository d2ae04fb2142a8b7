// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestFilesWaitForPods: a PodNetwork in the object files that conflicts with pods is applied as
// soon as the pods are deleted, for example after a reboot.
func TestFilesWaitForPods(t *testing.T) {
	h := newHarness(t)
	network := func(subnet string) string {
		return "kind: PodNetwork\nname: default\nspec: {subnets: [" + subnet + "]}\n"
	}
	h.write("pods.yaml", network("10.7.1.0/24"))
	h.ask(admin, "reload", `{}`)
	pods := h.ObjectsOf(api.OwnerCNI)
	var refs []api.ObjectRef
	for i, name := range []string{"a", "b"} {
		n := string(rune('1' + i))
		o := api.Object{Kind: api.KindEndpoint, Name: name, Spec: []byte(`{"device":"hs` + n + `","addresses":["10.7.1.1` + n + `"],"mac":"02:00:00:00:00:0` + n + `","network":"default"}`)}
		refs = append(refs, api.ObjectRef{Kind: o.Kind, Name: o.Name})
		if _, err := pods.Change([]api.Object{o}, nil); err != nil {
			t.Fatal(err)
		}
	}
	h.write("pods.yaml", network("10.7.2.0/24"))
	h.wantError("reload", `{}`, 3, "PodNetwork/default", "spec.subnets", "pods.yaml:3: PodNetwork/default: spec.subnets: 2 Endpoints would have addresses outside all subnets, the first is Endpoint/a with 10.7.1.11")
	subnet := func() string {
		return string(result[api.Object](h, "get", `{"kind":"PodNetwork","name":"default"}`).Spec)
	}
	for i, want := range []string{"10.7.1.0/24", "10.7.2.0/24"} {
		if _, err := pods.Change(nil, refs[i:i+1]); err != nil {
			t.Fatal(err)
		}
		if got := subnet(); !strings.Contains(got, want) {
			t.Errorf("with %d pods gone: %s, want %s", i+1, got, want)
		}
	}
	if status := result[api.StatusResult](h, "status", `{}`); len(status.Health.Messages) > 0 {
		t.Errorf("health: %v", status.Health.Messages)
	}
}

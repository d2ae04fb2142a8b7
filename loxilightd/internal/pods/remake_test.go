// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so in time: %s", what)
		}
	}
}

// TestRemake: links that another program deletes are recreated unchanged, even by the next run; a
// link that a DEL removes is not recreated.
func TestRemake(t *testing.T) {
	n := newNode(t)
	n.mustAdd("c1", map[string]any{"runtimeConfig": map[string]any{"mac": "02:11:22:33:44:55", "bandwidth": map[string]any{"ingressRate": 8000000}}})
	n.mustAdd("c2", map[string]any{"mtu": 1400})
	links := func() string {
		all := n.links.Links()
		for _, l := range all {
			for i := range l.Routes {
				l.Routes[i].Spare = false // matters only at ADD
			}
		}
		text, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := links()
	again := func() bool { return links() == before }
	remove := func(devices ...string) {
		t.Helper()
		for _, d := range devices {
			if err := n.links.Delete(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove("hs1", "hs2")
	eventually(t, "both links are as before", again)
	n.stop()
	remove("hs2")
	n.start()
	eventually(t, "after a restart both links are as before", again)
	n.wantOnly("c1", "c2")

	// An external device takes the name in the meantime: the link gets the next name, and its
	// Endpoint is updated.
	n.links.SetForeign("hs1")
	remove("hs1")
	eventually(t, "the link has another name", func() bool { _, ok := n.links.Links()["hs3"]; return ok && n.links.Links()["hs3"].Open })
	found := false
	for _, o := range n.desired.Owned(kindEndpoint) {
		found = found || strings.Contains(string(o.Spec), `"device":"hs3"`)
	}
	if !found {
		t.Error("no Endpoint has the new name")
	}
	for _, c := range []string{"c1", "c2"} {
		if err := n.command(api.CNIDel, c, nil); err != nil {
			t.Error(err)
		}
	}
	n.wantOnly()
}

// TestMissing: while a link cannot be recreated, the status of its Endpoint contains the reason.
func TestMissing(t *testing.T) {
	n := newNode(t)
	n.mustAdd("c1", nil)
	n.mustAdd("c2", nil)
	why := func(container string) string {
		for _, r := range n.all() {
			if r.ContainerID == container {
				return n.Missing(r.Object)
			}
		}
		return ""
	}
	if why("c1") != "" {
		t.Errorf("its link exists, and %q", why("c1"))
	}
	gone := n.all()[0] // in no particular order
	netns := gone.Netns
	if err := os.Remove(netns); err != nil {
		t.Fatal(err)
	}
	if err := n.links.Delete(t.Context(), gone.Device); err != nil {
		t.Fatal(err)
	}
	n.remakeAll(t.Context())
	if got := n.Missing(gone.Object); got != "" && !strings.Contains(got, netns+" of its pod no longer exists") {
		t.Errorf("missing: %q", got)
	}
	eventually(t, "the pod that is gone is collected, and nothing is missing", func() bool {
		n.sweep(t.Context())
		return len(n.all()) == 1 && n.Missing(gone.Object) == ""
	})
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestManyAreRefused: the other objects are sent, whether the agent gets the rejected ones one by
// one, finds them all at startup, or the daemon was killed.
func TestManyAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const bad, good = 40, 120
	var byHand []api.Object
	for i := range bad {
		byHand = append(byHand, api.Object{
			Kind: api.KindService, Name: fmt.Sprintf("by-hand-%d", i), Spec: raw(t, api.ServiceSpec{Frontends: []string{fmt.Sprintf("10.96.5.%d:80/tcp", i+1)}}),
		})
	}
	if _, err := w.daemon.Apply(t.Context(), api.ApplyParams{Objects: byHand}); err != nil {
		t.Fatal(err)
	}
	for i := range bad {
		w.kube.Set(service("shop", fmt.Sprintf("m%d", i), fmt.Sprintf("10.96.5.%d", i+1)))
	}
	for i := range good {
		w.kube.Set(service("shop", fmt.Sprintf("%c%d", "az"[i%2], i), fmt.Sprintf("10.96.6.%d", i+1)))
	}
	a, stop := w.agent()
	all := func() bool { return len(strings.Fields(w.daemon.names(api.KindService))) == good+1 }
	eventually(t, "all others", all)
	eventually(t, "the agent counts the refused ones", func() bool { return a.state.numbers().refused == bad })
	w.daemon.kill()
	w.daemon.start()
	w.kube.Delete(service("shop", "a0", ""))
	w.kube.Set(service("shop", "new", "10.96.7.1"))
	eventually(t, "all others after the daemon was killed", func() bool {
		names := " " + w.daemon.names(api.KindService) + " "
		return all() && strings.Contains(names, " shop/new ") && !strings.Contains(names, " shop/a0 ")
	})
	stop()
	for i := range bad {
		byHand[i].Spec = nil
		if _, err := w.daemon.Delete(t.Context(), api.DeleteParams{Objects: []api.ObjectRef{{Kind: api.KindService, Name: byHand[i].Name}}}); err != nil {
			t.Fatal(err)
		}
	}
	w.agent()
	eventually(t, "all of them", func() bool { return len(strings.Fields(w.daemon.names(api.KindService))) == good+bad+1 })
}

// TestReferredToStays: an object that another client's object refers to cannot be deleted. It
// stays, and delays nothing, until the reference is removed.
func TestReferredToStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(service("shop", "web", "10.96.0.7"))
	w.agent()
	w.inStep(api.KindService, "default/kubernetes shop/web")
	if _, err := w.daemon.Apply(t.Context(), api.ApplyParams{Objects: []api.Object{{
		Kind: api.KindService, Name: "by-hand",
		Spec: raw(t, api.ServiceSpec{Frontends: []string{"203.0.113.9:80/tcp"}, Divert: []api.Divert{{Sources: []string{"10.0.0.0/8"}, Service: "shop/web"}}}),
	}}}); err != nil {
		t.Fatal(err)
	}
	w.kube.Delete(service("shop", "web", ""))
	w.kube.Set(service("shop", "new", "10.96.0.8"))
	eventually(t, "the daemon refuses to delete it", func() bool { return strings.Contains(w.log.String(), "refuses to delete") })
	w.inStep(api.KindService, "default/kubernetes shop/new shop/web")
	if _, err := w.daemon.Delete(t.Context(), api.DeleteParams{Objects: []api.ObjectRef{{Kind: api.KindService, Name: "by-hand"}}}); err != nil {
		t.Fatal(err)
	}
	w.inStep(api.KindService, "default/kubernetes shop/new") // it is retried automatically
}

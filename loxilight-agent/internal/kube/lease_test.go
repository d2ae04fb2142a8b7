// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testkube"
)

func newClient(t *testing.T, server *testkube.Server) *Client {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := New(Options{Kubeconfig: kubeconfig, UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestLeaseHasOneHolder: a lease that is renewed is not taken; a lease that is not renewed is
// taken after its duration; a released lease is taken at once.
func TestLeaseHasOneHolder(t *testing.T) {
	server := testkube.New(t)
	c := newClient(t, server)
	lease := func(holder string) *Lease {
		return &Lease{Client: c, Namespace: "kube-system", Name: "l", Holder: holder, Duration: 3 * time.Second}
	}
	try := func(l *Lease) bool {
		t.Helper()
		if err := l.Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		return !l.Held().IsZero()
	}
	a, b := lease("a"), lease("b")
	if !try(a) || try(b) {
		t.Fatal("a does not have it, or b does")
	}
	since := a.Held()
	for begin := time.Now(); time.Since(begin) < 4*time.Second; time.Sleep(200 * time.Millisecond) { // longer than its duration
		if !try(a) || try(b) {
			t.Fatal("a has lost it, though it says that it has it")
		}
	}
	if a.Held() != since {
		t.Errorf("a has had it since %s, then since %s", since, a.Held())
	}
	silent := time.Now()
	for !try(b) {
		if !a.Held().IsZero() && time.Since(silent) > 3*time.Second {
			t.Fatal("a thinks that it has it, silent for longer than its duration")
		}
		if time.Since(silent) > 20*time.Second {
			t.Fatal("b does not get it")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if took := time.Since(silent); took < time.Second { // a's last renewal may have been earlier
		t.Errorf("b took it %s after a's last word", took)
	}
	if !a.Held().IsZero() || try(a) {
		t.Error("both have it")
	}
	if l := server.Lease("kube-system", "l"); *l.Spec.HolderIdentity != "b" || *l.Spec.LeaseTransitions != 1 {
		t.Errorf("%+v", l.Spec)
	}
	if err := b.Release(t.Context()); err != nil || !b.Held().IsZero() {
		t.Errorf("release: %v", err)
	}
	if !try(a) {
		t.Error("a does not get what b has given up")
	}
}

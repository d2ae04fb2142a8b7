// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestServiceWithoutBackends: every owner gets the message; the health is affected only if a
// Service without backends is not normal for its owner.
func TestServiceWithoutBackends(t *testing.T) {
	store := attachedStore(t)
	n := start(t, Options{Store: store, Plane: backends.NewFake(backends.FakeOptions{})})
	own, pods := service("own", 1, 80, 0), service("pods", 2, 80, 0)
	pods.Owner = state.OwnerK8s
	waitFor(t, n, commit(t, store, []*state.Object{own, pods}), own, pods)
	for _, o := range []*state.Object{own, pods} {
		if s, _ := n.Status(o.Key); s.State != reconcile.Done || !strings.Contains(s.Message, "no IPv4 backend") {
			t.Errorf("%s: %+v, want it Ready with a message", o.Key, s)
		}
	}
	eventually(t, func() bool { return len(n.Noted()) == 1 && n.Noted()[own.Key] != "" })
	if some, count := n.NotDone(5); count != 0 {
		t.Errorf("not Ready are %v, want none", some)
	}
}

// TestServiceWaitsForItsFirstHealth: waiting for a new Service includes waiting for the first probe
// of a backend.
func TestServiceWaitsForItsFirstHealth(t *testing.T) {
	live, err := net.Listen("tcp", "127.0.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	port := live.Addr().(*net.TCPAddr).AddrPort().Port()
	store := attachedStore(t)
	n := start(t, Options{Store: store, Plane: backends.NewFake(backends.FakeOptions{})})
	good, dead := service("good", 1, port, 1), service("dead", 2, 1, 1)
	for _, o := range []*state.Object{good, dead} {
		o.Value.(*state.Service).Health = &state.HealthCheck{
			Type: "tcp", Interval: 50 * time.Millisecond, Timeout: time.Second, Healthy: 2, Unhealthy: 2,
		}
	}
	revision := commit(t, store, []*state.Object{good, dead})
	left, _ := n.Wait(within(t, 2*time.Second), revision, []state.Key{good.Key, dead.Key})
	if len(left) != 1 || left[0] != dead.Key {
		t.Fatalf("not Ready: %v, want %v", left, dead.Key)
	}
	if s, _ := n.Status(dead.Key); !strings.Contains(s.Message, "1 unhealthy") {
		t.Errorf("status %+v, want it to say that its backend is unhealthy", s)
	}
}

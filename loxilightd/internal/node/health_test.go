// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/health"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestDeadBackendIsTakenOut starts with a live and a dead backend, checks that the dead backend is
// down from the start, and then exchanges their roles.
func TestDeadBackendIsTakenOut(t *testing.T) {
	l1, err := net.Listen("tcp", "127.0.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l1.Addr().(*net.TCPAddr).AddrPort().Port()
	store, plane := openStore(t), backends.NewFake(backends.FakeOptions{})
	o := service("web", 1, port, 2)
	o.Value.(*state.Service).Health = &state.HealthCheck{
		Type: "tcp", Interval: 20 * time.Millisecond, Timeout: time.Second, Healthy: 2, Unhealthy: 2,
	}
	commit(t, store, []*state.Object{o})
	changes := make(chan health.Result, 100)
	n := start(t, Options{Store: store, Plane: plane, HealthChanged: func(_ health.Target, r health.Result) { changes <- r }})
	if err := n.Synced(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	states := func() [2]datapath.BackendState {
		_, services := plane.Content()
		b := services["web"].Backends
		return [2]datapath.BackendState{b[0].State, b[1].State}
	}
	if s, want := states(), [2]datapath.BackendState{datapath.BackendActive, datapath.BackendDown}; s != want {
		t.Errorf("states at the start: %v, want %v", s, want)
	}
	l2, err := net.Listen("tcp", fmt.Sprintf("127.0.1.2:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer l2.Close()
	if err := l1.Close(); err != nil {
		t.Fatal(err)
	}
	want := [2]datapath.BackendState{datapath.BackendDown, datapath.BackendActive}
	eventually(t, func() bool { return states() == want })
	if len(changes) < 4 {
		t.Errorf("%d changes were reported, want 4", len(changes))
	}
	if r := n.Health(health.Target{Service: "web", Backend: netip.MustParseAddrPort(l2.Addr().String())}); r.State != health.Healthy {
		t.Errorf("health of the second backend: %+v", r)
	}
}

// TestDeadBackendOverARestart: after a restart, an unhealthy backend stays out of use until it
// answers, however long its first probe takes; one answer is enough. A new backend is used until
// its own probe fails.
func TestDeadBackendOverARestart(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.1.1:0") // accepts connections, but sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).AddrPort().Port()
	mute, err := net.Listen("tcp", fmt.Sprintf("127.0.1.2:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	store, plane := openStore(t), backends.NewFake(backends.FakeOptions{})
	web := func(count int, timeout time.Duration) *state.Object {
		o := service("web", 1, port, count)
		o.Value.(*state.Service).Health = &state.HealthCheck{
			Type: "http", Path: "/", Interval: 20 * time.Millisecond, Timeout: timeout, Healthy: 100, Unhealthy: 1,
		}
		o.Spec += fmt.Sprint(timeout)
		return o
	}
	states := func() (s []datapath.BackendState) {
		_, services := plane.Content()
		for _, b := range services["web"].Backends {
			s = append(s, b.State)
		}
		return s
	}
	wantStates := func(want ...datapath.BackendState) {
		t.Helper()
		if got := states(); !cmp.Equal(got, want) {
			t.Errorf("states %v, want %v", got, want)
		}
	}
	t.Run("before", func(t *testing.T) {
		commit(t, store, []*state.Object{web(1, 30*time.Millisecond)})
		if err := start(t, Options{Store: store, Plane: plane}).Synced(within(t, 20*time.Second)); err != nil {
			t.Fatal(err)
		}
	})
	wantStates(datapath.BackendDown)

	commit(t, store, []*state.Object{web(2, time.Minute)})
	n := start(t, Options{Store: store, Plane: plane})
	if err := n.Synced(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	wantStates(datapath.BackendDown, datapath.BackendActive)
	for backend, want := range map[net.Listener]health.State{listener: health.Unhealthy, mute: health.Unknown} {
		if r := n.Health(health.Target{Service: "web", Backend: netip.MustParseAddrPort(backend.Addr().String())}); r.State != want {
			t.Errorf("health of %s: %+v, want %s", backend.Addr(), r, want)
		}
	}
	go func() { _ = http.Serve(listener, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) }() // until the listener is closed
	eventually(t, func() bool { return states()[0] == datapath.BackendActive })
}

// TestDrainingIsNotUnhealthy: a backend that an earlier run took out of use because of its
// service's spec, or whose service was deleted, does not count as unhealthy.
func TestDrainingIsNotUnhealthy(t *testing.T) {
	store, plane := openStore(t), backends.NewFake(backends.FakeOptions{})
	for _, name := range []string{"web", "late"} {
		v := service(name, 1, 9, 2).Value.(*state.Service).Service
		v.Backends[0].State, v.Backends[1].State = datapath.BackendDraining, datapath.BackendDown
		if err := plane.Services().Update(t.Context(), datapath.ServiceName(name), v); err != nil {
			t.Fatal(err)
		}
	}
	checked := func(name string, id int) *state.Object {
		o := service(name, id, 9, 2)
		o.Value.(*state.Service).Health = &state.HealthCheck{Type: "tcp", Interval: time.Hour, Timeout: time.Hour, Healthy: 1, Unhealthy: 1}
		return o
	}
	web := checked("web", 1)
	web.Value.(*state.Service).Backends[0].State = datapath.BackendDraining
	commit(t, store, []*state.Object{web})
	n := New(Options{Store: store, Plane: plane, Log: slog.New(slog.DiscardHandler)}) // this node probes no backends
	t.Cleanup(n.watch.Close)
	wantHealth := func(name string, want ...health.State) {
		t.Helper()
		for i, b := range web.Value.(*state.Service).Backends {
			if r := n.Health(health.Target{Service: name, Backend: b.Addr}); r.State != want[i] {
				t.Errorf("health of %s of %s: %+v, want %s", b.Addr, name, r, want[i])
			}
		}
	}
	n.setChecks(store.Snapshot(), []state.Key{web.Key})
	wantHealth("web", health.Unknown, health.Unhealthy)
	n.markInitialized() // this deletes late
	late := checked("late", 2)
	commit(t, store, []*state.Object{late})
	n.setChecks(store.Snapshot(), []state.Key{late.Key})
	wantHealth("late", health.Unknown, health.Unknown)
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/loxilightd/internal/health"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func openStore(t *testing.T) *state.Store {
	t.Helper()
	return openStoreIn(t, t.TempDir())
}

// undecodableStore is like openStore, with objects that this version cannot decode.
func undecodableStore(t *testing.T, objects ...*state.Object) *state.Store {
	t.Helper()
	dir := t.TempDir()
	t.Run("another version", func(t *testing.T) { commit(t, openStoreIn(t, dir), objects) })
	return openStoreIn(t, dir)
}

func openStoreIn(t *testing.T, dir string) *state.Store {
	t.Helper()
	s, _, err := state.Open(state.Config{
		Dir: dir, Tables: datapath.DefaultTables(),
		Decode: func(string, []byte) (state.Value, error) { return nil, fmt.Errorf("of another version") },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// attachedStore is like openStore, with one attached device, without which no Service or rule is
// Ready.
func attachedStore(t *testing.T) *state.Store {
	t.Helper()
	s := openStore(t)
	attach(t, s)
	return s
}

func start(t *testing.T, o Options) *Node {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	n := New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); n.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return n
}

// service makes a Service with the given number of backends, all on the same port. id determines
// its frontend address.
func service(name string, id int, port uint16, count int) *state.Object {
	v := &state.Service{Service: datapath.Service{
		Frontends: []datapath.Frontend{{
			Addr:     netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(id >> 8), byte(id)}), 80),
			Protocol: datapath.TCP,
		}},
		IdleTimeout: datapath.DefaultIdleTimeout(),
	}}
	for i := range count {
		addr := netip.AddrFrom4([4]byte{127, 0, 1, byte(i + 1)})
		v.Backends = append(v.Backends, datapath.Backend{Addr: netip.AddrPortFrom(addr, port), Weight: 1})
	}
	spec, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return &state.Object{
		Key: state.Key{Kind: state.KindService, Name: name}, Owner: "cli", Spec: string(spec), Value: v,
	}
}

func commit(t *testing.T, s *state.Store, put []*state.Object, del ...state.Key) uint64 {
	t.Helper()
	r, err := s.Commit(&state.Transaction{Put: put, Delete: del})
	if err != nil {
		t.Fatal(err)
	}
	return r.Revision
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// wantAsDesired compares the services in the data plane with the services in the store.
func wantAsDesired(t *testing.T, s *state.Store, plane *backends.FakePlane) {
	t.Helper()
	want := map[datapath.ServiceName]datapath.Service{}
	for o := range s.Snapshot().After(state.KindService, "") {
		want[datapath.ServiceName(o.Name)] = o.Value.(*state.Service).Service
	}
	_, got := plane.Content()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Errorf("services (-wanted +there):\n%s", d)
	}
}

// TestFollowsThroughFaults lets four writers change the desired state while one call in three
// fails. Once the faults end, the data plane must reach the desired state.
func TestFollowsThroughFaults(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	store := attachedStore(t)
	plane := backends.NewFake(backends.FakeOptions{Faults: 0.33, Seed: seed})
	n := start(t, Options{Store: store, Plane: plane})
	var writers sync.WaitGroup
	for w := range 4 {
		random := rand.New(rand.NewPCG(seed, uint64(w)))
		writers.Go(func() {
			for range 50 {
				id := w*50 + random.IntN(25)
				name := fmt.Sprint("service-", id)
				if random.IntN(4) == 0 {
					commit(t, store, nil, state.Key{Kind: state.KindService, Name: name})
				} else {
					commit(t, store, []*state.Object{service(name, id, uint16(random.IntN(3)+1), random.IntN(4))})
				}
			}
		})
	}
	writers.Wait()
	plane.SetFaults(0)
	var all []state.Key
	for id := range 200 {
		all = append(all, state.Key{Kind: state.KindService, Name: fmt.Sprint("service-", id)})
	}
	all = append(all, state.Key{Kind: state.KindInterface, Name: "lo"})
	if left, err := n.Wait(within(t, time.Minute), store.Snapshot().Revision, all); err != nil {
		t.Fatalf("left %v: %v", left, err)
	}
	wantAsDesired(t, store, plane)
	if some, count := n.NotDone(10); len(some) != 0 || count != 0 {
		t.Errorf("%d not done: %v", count, some)
	}
}

// TestPendingBeforeTheFirstPass: an object that has not reached a reconciler yet is not Ready.
func TestPendingBeforeTheFirstPass(t *testing.T) {
	store, plane := openStore(t), backends.NewFake(backends.FakeOptions{})
	commit(t, store, []*state.Object{service("a", 1, 1, 1), service("b", 2, 1, 1)})
	n := New(Options{Store: store, Plane: plane, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(n.watch.Close) // as Run does
	some, count := n.NotDone(1)
	if len(some) != 1 || count != 2 {
		t.Errorf("%d not done, of which %v; want 2, of which one", count, some)
	}
}

// TestWaitMeansDone waits for each change and checks it immediately. The health of another service
// changes continuously, which must not make Wait return early.
func TestWaitMeansDone(t *testing.T) {
	store, plane := attachedStore(t), backends.NewFake(backends.FakeOptions{})
	n := start(t, Options{Store: store, Plane: plane})
	key := state.Key{Kind: state.KindService, Name: "web"}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	var turning sync.WaitGroup
	defer turning.Wait()
	defer cancel()
	turning.Go(func() {
		for ctx.Err() == nil {
			n.healthChanged(health.Target{Service: "other"}, health.Result{})
		}
	})
	for i := range 200 {
		port := uint16(i + 1)
		revision := commit(t, store, []*state.Object{service("web", 7, port, 1)})
		if left, err := n.Wait(within(t, 20*time.Second), revision, []state.Key{key}); err != nil {
			t.Fatalf("left %v: %v", left, err)
		}
		_, services := plane.Content()
		if b := services["web"].Backends; len(b) != 1 || b[0].Addr.Port() != port {
			t.Fatalf("revision %d is reported to be Done, and the backends are %v", revision, b)
		}
	}
	revision := commit(t, store, nil, key)
	if _, err := n.Wait(within(t, 20*time.Second), revision, []state.Key{key}); err != nil {
		t.Fatal(err)
	}
	wantAsDesired(t, store, plane)
}

func TestRestartAdoptsAndPrunes(t *testing.T) {
	store, plane := undecodableStore(t, service("undecodable", 3, 9, 1)), backends.NewFake(backends.FakeOptions{})
	for _, name := range []string{"web", "gone", "undecodable"} {
		v := service(name, 1, 9, 1).Value.(*state.Service).Service
		if err := plane.Services().Update(t.Context(), datapath.ServiceName(name), v); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, store, []*state.Object{service("web", 1, 10, 2), service("new", 2, 10, 1)})
	n := start(t, Options{Store: store, Plane: plane})
	if err := n.Synced(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, services := plane.Content(); len(services["undecodable"].Backends) != 1 {
		t.Error("the row of an undecodable object was pruned")
	}
	undecodable := service("undecodable", 3, 9, 1)
	waitFor(t, n, commit(t, store, nil, undecodable.Key), undecodable)
	wantAsDesired(t, store, plane)
}

func TestLostStatePrunesLater(t *testing.T) {
	store, plane := attachedStore(t), backends.NewFake(backends.FakeOptions{})
	if err := plane.Services().Update(t.Context(), "old", datapath.Service{}); err != nil {
		t.Fatal(err)
	}
	n := start(t, Options{Store: store, Plane: plane, PruneNotBefore: time.Now().Add(300 * time.Millisecond)})
	revision := commit(t, store, []*state.Object{service("web", 1, 10, 2)})
	key := state.Key{Kind: state.KindService, Name: "web"}
	if left, err := n.Wait(within(t, 20*time.Second), revision, []state.Key{key}); err != nil {
		t.Fatalf("left %v: %v", left, err)
	}
	if time.Now().Before(n.opts.PruneNotBefore) {
		if p := n.Problems(); len(p) != 1 || !strings.Contains(p[0], "desired state was lost") {
			t.Errorf("problems %q", p)
		}
	}
	if err := n.Synced(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	if time.Now().Before(n.opts.PruneNotBefore) {
		t.Error("pruned before the grace has passed")
	}
	wantAsDesired(t, store, plane)
	if p := n.Problems(); len(p) != 0 {
		t.Errorf("problems %q, want none any more", p)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	testnet.Eventually(t, 20*time.Second, "what this line waits for", ok)
}

func TestExternalChangesAndMaintenance(t *testing.T) {
	store, plane := attachedStore(t), backends.NewFake(backends.FakeOptions{})
	var mu sync.Mutex
	var reports []string
	n := start(t, Options{Store: store, Plane: plane, StatusChanged: func(k state.Key, s Status) {
		if k.Kind != state.KindService {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		reports = append(reports, fmt.Sprint(k, " ", s.State))
	}})
	commit(t, store, []*state.Object{service("web", 1, 10, 2)})
	key := state.Key{Kind: state.KindService, Name: "web"}
	eventually(t, func() bool { s, ok := n.Status(key); return ok && s.State == reconcile.Done })
	if err := plane.DamageService("web", true); err != nil {
		t.Fatal(err)
	}
	plane.SignalChange()
	eventually(t, func() bool { return n.Repairs() == 1 })
	eventually(t, func() bool { _, s := plane.Content(); return len(s) == 1 })
	eventually(t, func() bool { return plane.Maintained() > 0 })
	mu.Lock()
	defer mu.Unlock()
	// The second report ends the Pending status that was visible during the repair.
	if want := []string{"Service/web done", "Service/web done"}; !cmp.Equal(reports, want) {
		t.Errorf("reported %q, want %q", reports, want)
	}
}

// TestGoneLast moves the frontends of ten services to ten other services in one transaction.
func TestGoneLast(t *testing.T) {
	store, plane := attachedStore(t), backends.NewFake(backends.FakeOptions{})
	var mu sync.Mutex
	var reports []string
	n := start(t, Options{Store: store, Plane: plane, StatusChanged: func(k state.Key, s Status) {
		if k.Kind != state.KindService {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		reports = append(reports, s.State.String())
	}})
	var old, fresh []*state.Object
	var keys []state.Key
	for i := range 10 {
		old = append(old, service(fmt.Sprint("old-", i), i, 10, 1))
		fresh = append(fresh, service(fmt.Sprint("fresh-", i), i, 10, 1))
		keys = append(keys, old[i].Key)
	}
	for _, change := range []struct {
		put []*state.Object
		del []state.Key
	}{{old, nil}, {fresh, keys}} {
		revision := commit(t, store, change.put, change.del...)
		for _, o := range change.put {
			keys = append(keys, o.Key)
		}
		if left, err := n.Wait(within(t, 20*time.Second), revision, keys); err != nil {
			t.Fatalf("left %v: %v", left, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for i, s := range reports {
		if want := "done"; i < 20 && s != want {
			t.Errorf("notice %d is %s: new rows must come before deleted ones", i, s)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/internal/testnet"
)

// newKernelSite is a site with the eBPF data plane, small connection tables, and its own pins.
func newKernelSite(t *testing.T) (s *site, pins string) {
	t.Helper()
	testnet.RequireRoot(t)
	pins = filepath.Join(testnet.BPFFS(t), "loxilight")
	s = newSite(t)
	s.configure("pinDir: "+pins, "switch: {namespace: host}",
		"tables: {connections: 1024, affinity: 1024, backends: 65536}")
	return s, pins
}

// node creates a network namespace with the device in0 for the daemon, which is not started yet. It
// returns the Interface for that device, without which no Service is Ready.
func (s *site) node() api.Object {
	s.ns = testnet.New(s.t, "node")
	peer := testnet.New(s.t, "peer")
	testnet.Veth(s.t, testnet.Port{NS: s.ns, Name: "in0", Addrs: []string{"192.0.2.1/24"}}, testnet.Port{NS: peer, Name: "out0", Addrs: []string{"192.0.2.2/24"}})
	s.ns.Route(s.t, "default", "192.0.2.2")
	s.ns.Forward(s.t)
	return interfaceObject("in0")
}

// writer changes its own services until the daemon no longer answers. It records the possible
// states of each service: the last acknowledged state, and the state that an unanswered request
// would lead to.
type writer struct {
	id       int
	random   *rand.Rand
	answered map[string]string // name: spec
	asked    map[string]string // name: spec; only the last change, if that was not answered
}

// write changes services until a call fails.
func (w *writer) write(t *testing.T, c *client.Client) {
	for {
		number := w.random.IntN(50)
		name := fmt.Sprintf("w%d-%d", w.id, number)
		o := serviceObject(name, w.id<<8+number, backendsOf(w.random)...)
		gone := w.random.IntN(4) == 0
		w.asked = map[string]string{name: string(o.Spec)}
		var err error
		if gone {
			w.asked[name] = ""
			_, err = c.Delete(t.Context(), api.DeleteParams{Objects: []api.ObjectRef{{Kind: o.Kind, Name: name}}})
		} else {
			_, err = c.Apply(t.Context(), api.ApplyParams{Objects: []api.Object{o}})
		}
		if err != nil {
			return
		}
		maps.Copy(w.answered, w.asked)
		w.asked = nil
	}
}

func backendsOf(random *rand.Rand) []string {
	b := make([]string, 1+random.IntN(5))
	for i := range b {
		b[i] = fmt.Sprintf("10.1.2.%d:%d", i+1, 8000+random.IntN(100))
	}
	return b
}

// check compares the existing services with the possible states.
func (w *writer) check(t *testing.T, there map[string]string) {
	t.Helper()
	names := maps.Clone(w.answered)
	maps.Copy(names, w.asked)
	for name := range names {
		got := there[name]
		if want := w.answered[name]; got == want {
			continue
		}
		if asked, ok := w.asked[name]; !ok || got != asked {
			t.Errorf("%s is %q, was answered %q", name, got, w.answered[name])
		}
		w.answered[name] = got
	}
	w.asked = nil
}

// TestKilledWhileWriting: the daemon is killed repeatedly while four clients write.
// Afterwards, all acknowledged changes exist, the data plane matches the desired state, and no
// service is partly applied.
func TestKilledWhileWriting(t *testing.T) {
	s, _ := newKernelSite(t)
	in0 := s.node()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 100))
	writers := make([]*writer, 4)
	for i := range writers {
		writers[i] = &writer{id: i, random: rand.New(rand.NewPCG(seed, uint64(i))), answered: map[string]string{}}
	}
	p := s.run()
	s.apply(in0)
	for round := range 4 {
		var writing sync.WaitGroup
		for _, w := range writers {
			writing.Go(func() { w.write(t, s.Client) })
		}
		// Kill the daemon at a random moment while the writers are busy.
		time.Sleep(100*time.Millisecond + time.Duration(random.Int64N(int64(400*time.Millisecond))))
		p.signal(syscall.SIGKILL)
		p.ends()
		writing.Wait()
		p = s.run()
		there := s.specs()
		for _, w := range writers {
			w.check(t, there)
		}
		s.wantUsage(there)
		if len(there) == 0 {
			t.Errorf("round %d: nothing was written", round)
		}
	}
	p.stop()
}

// specs returns the specs of all services by name.
func (s *site) specs() map[string]string {
	s.t.Helper()
	m := map[string]string{}
	for o, err := range s.List(s.t.Context(), api.ListParams{Kind: api.KindService}) {
		if err != nil {
			s.t.Fatal(err)
		}
		m[o.Name] = string(o.Spec)
	}
	return m
}

// wantUsage waits until the tables of the data plane hold exactly the entries that specs need.
func (s *site) wantUsage(specs map[string]string) {
	s.t.Helper()
	var frontends, backends uint64
	for name, text := range specs {
		var spec api.ServiceSpec
		if err := json.Unmarshal([]byte(text), &spec); err != nil {
			s.t.Fatalf("%s: %v", name, err)
		}
		frontends += uint64(len(spec.Frontends))
		backends += uint64(len(spec.Backends))
	}
	var r api.StatusResult
	defer func() {
		if s.t.Failed() {
			s.t.Logf("want %d services and %d backends in use, status is %+v", frontends, backends, r)
		}
	}()
	eventually(s.t, func() bool {
		r = s.status()
		return r.Capacity["services"].Used == frontends && r.Capacity["backends"].Used == backends && len(r.NotReady) == 0
	})
	states := map[string]int{}
	for o, err := range s.List(s.t.Context(), api.ListParams{Kind: api.KindService}) {
		var status api.Status
		if err == nil {
			err = json.Unmarshal(o.Status, &status)
		}
		if err != nil {
			s.t.Fatal(err)
		}
		states[status.State]++
	}
	if keys := slices.Collect(maps.Keys(states)); len(keys) > 1 || len(keys) == 1 && keys[0] != api.StateReady {
		s.t.Errorf("states %v, want all Ready", states)
	}
}

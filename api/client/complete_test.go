// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// cutter answers get with a Service whose lists have two elements in each part.
type cutter struct {
	spec     api.ServiceSpec
	status   api.ServiceStatus
	revision uint64
	calls    int
	before   func(call int) // may change it
}

func (c *cutter) Call(_ context.Context, method string, params, result any) error {
	c.calls++
	if c.before != nil {
		c.before(c.calls)
	}
	p, ok := params.(api.GetParams)
	if method != api.MethodGet || !ok || p.Kind != api.KindService || p.Name != "big" {
		return fmt.Errorf("call %s %+v", method, params)
	}
	from, _ := strconv.Atoi(p.Continue) // empty: from the start
	longest := max(len(c.spec.Frontends), len(c.spec.Backends))
	if from > 0 && from >= longest {
		return api.Errorf(api.ReasonInvalid, "behind the end")
	}
	part := func(n int) (int, int) { return min(from, n), min(from+2, n) }
	spec, status := c.spec, c.status
	a, b := part(len(spec.Frontends))
	spec.Frontends = spec.Frontends[a:b]
	a, b = part(len(spec.Backends))
	spec.Backends, status.Backends = spec.Backends[a:b], status.Backends[a:b]
	o := result.(*api.Object)
	*o = api.Object{Kind: p.Kind, Name: p.Name, Revision: c.revision}
	o.Spec, _ = json.Marshal(spec)     // which can be encoded
	o.Status, _ = json.Marshal(status) // too
	if from+2 < longest {
		o.Continue = strconv.Itoa(from + 2)
	}
	return nil
}

// fill gives the service so many backends and three frontends.
func (c *cutter) fill(backends int) {
	c.revision++
	c.spec = api.ServiceSpec{Frontends: []string{"192.0.2.1:80/tcp", "192.0.2.2:80/tcp", "192.0.2.3:80/tcp"}, Algorithm: "random"}
	c.status = api.ServiceStatus{Status: api.Status{State: api.StateReady}}
	for i := range backends {
		address := fmt.Sprintf("10.0.%d.%d:80", c.revision, i)
		c.spec.Backends = append(c.spec.Backends, api.Backend{Address: address})
		c.status.Backends = append(c.status.Backends, api.BackendStatus{Address: address, State: "active"})
	}
}

func TestComplete(t *testing.T) {
	for name, test := range map[string]struct {
		backends int
		before   func(c *cutter, call int)
	}{
		"whole":    {2, nil},
		"in parts": {7, nil},
		"changed meanwhile": {7, func(c *cutter, call int) {
			if call == 3 {
				c.fill(9)
			}
		}},
		"shortened meanwhile": {7, func(c *cutter, call int) {
			if call == 4 {
				c.fill(1)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &cutter{}
			c.fill(test.backends)
			if test.before != nil {
				c.before = func(call int) { test.before(c, call) }
			}
			o := &api.Object{}
			if err := c.Call(t.Context(), api.MethodGet, api.GetParams{Kind: api.KindService, Name: "big"}, o); err != nil {
				t.Fatal(err)
			}
			if err := caller(c.Call).completeObject(t.Context(), o, 0); err != nil {
				t.Fatal(err)
			}
			var spec api.ServiceSpec
			var status api.ServiceStatus
			if err := json.Unmarshal(o.Spec, &spec); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(o.Status, &status); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(spec.Backends, c.spec.Backends) || !slices.Equal(spec.Frontends, c.spec.Frontends) || spec.Algorithm != "random" {
				t.Errorf("spec = %+v, want %+v", spec, c.spec)
			}
			if !slices.Equal(status.Backends, c.status.Backends) || status.State != api.StateReady {
				t.Errorf("status = %+v, want %+v", status, c.status)
			}
			if o.Continue != "" || o.Revision != c.revision {
				t.Errorf("continue = %q, revision = %d; want none and %d", o.Continue, o.Revision, c.revision)
			}
		})
	}
}

func TestCompleteGivesUp(t *testing.T) {
	c := &cutter{}
	c.fill(9)
	c.before = func(int) { c.fill(9) }
	o := &api.Object{Kind: api.KindService, Name: "big", Continue: "2"}
	if err := caller(c.Call).completeObject(t.Context(), o, 0); err == nil || !strings.Contains(err.Error(), "Service/big") {
		t.Errorf("error = %v, want that it changes too fast", err)
	}
}

// TestJoinWithin: lists in objects within the spec are put together as well.
func TestJoinWithin(t *testing.T) {
	got, err := joinLists(json.RawMessage(`{"action":"deny","match":{"in":["e"],"source":["a","b"]}}`),
		json.RawMessage(`{"action":"deny","match":{"source":["c"],"ports":[1]}}`))
	if want := `{"action":"deny","match":{"in":["e"],"ports":[1],"source":["a","b","c"]}}`; err != nil || string(got) != want {
		t.Errorf("joined: %s, %v; want %s", got, err, want)
	}
}

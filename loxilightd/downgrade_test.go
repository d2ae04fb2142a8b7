// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// makeUndecodable gives an object in the store a spec that a newer version may write.
func (s *site) makeUndecodable(k state.Key) {
	s.t.Helper()
	store, _, err := state.Open(state.Config{Dir: s.path("state"), Tables: datapath.DefaultTables(), Decode: control.Decode})
	if err != nil {
		s.t.Fatal(err)
	}
	o, ok := store.Snapshot().Get(k)
	if !ok {
		s.t.Fatalf("%s is not in the store", k)
	}
	newer := *o
	newer.Spec = strings.TrimSuffix(o.Spec, "}") + `,"future":true}`
	if _, err := store.Commit(&state.Transaction{Put: []*state.Object{&newer}}); err != nil {
		s.t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		s.t.Fatal(err)
	}
}

// TestDowngrade: a FirewallRule that this version cannot decode stays in force after a downgrade,
// although other rules change. After a boot, all packets are denied in its place.
func TestDowngrade(t *testing.T) {
	p := newPatient(t, "tcx")
	for _, port := range []string{"7000", "7001"} {
		p.ns.ServeTCP(t, "192.0.2.1:"+port, port)
	}
	rule := func(name, port string) api.Object {
		return api.Object{Kind: api.KindFirewallRule, Name: name,
			Spec: fmt.Appendf(nil, `{"action":"deny","match":{"protocol":"tcp","ports":%q}}`, port)}
	}
	wantOpen := func(when string, want map[string]bool) {
		t.Helper()
		for port, open := range want {
			c, err := p.far.Dial("tcp", "192.0.2.2:0", "192.0.2.1:"+port, time.Second)
			if err == nil {
				_ = c.Close() // nothing was sent
			}
			if (err == nil) != open {
				t.Errorf("%s: connection to port %s: %v, want open %t", when, port, err, open)
			}
		}
	}
	wantState := func(name, state, word string) {
		t.Helper()
		var st api.Status
		eventually(t, func() bool {
			o, ok := p.get(api.KindFirewallRule, name)
			return ok && json.Unmarshal(o.Status, &st) == nil && st.State == state && strings.Contains(st.Message, word)
		})
	}
	p.apply(rule("x", "7000"), rule("a", "9"))
	wantOpen("before", map[string]bool{"7000": false, "7001": true})
	p.daemon.stop()
	p.makeUndecodable(state.Key{Kind: api.KindFirewallRule, Name: "x"})

	p.daemon = p.run()
	wantState("a", api.StateReady, "")
	if _, err := p.Apply(t.Context(), api.ApplyParams{Objects: []api.Object{rule("b", "10")}}); err != nil {
		t.Fatal(err)
	}
	wantState("b", api.StatePending, "this version cannot decode FirewallRule/x")
	wantOpen("after a downgrade", map[string]bool{"7000": false, "7001": true})
	p.daemon.stop()

	if code, _, log := p.mode("--detach"); code != 0 { // as a boot does
		t.Fatalf("exit code %d of --detach:\n%s", code, log)
	}
	p.daemon = p.run()
	wantState("b", api.StateReady, "")
	eventually(t, func() bool { return strings.Contains(fmt.Sprint(p.status().Health), "denies all packets") })
	wantOpen("after a boot", map[string]bool{"7000": false, "7001": false})

	wait := api.Change{Wait: api.Duration(10 * time.Second)}
	if err := p.Call(t.Context(), api.MethodDelete, api.DeleteParams{Objects: []api.ObjectRef{{Kind: api.KindFirewallRule, Name: "x"}}, Change: wait}, nil); err != nil {
		t.Fatal(err)
	}
	wantOpen("after its deletion", map[string]bool{"7000": true, "7001": true})
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// TestLargeService applies a service with 5,000 backends, which is returned in full and can be
// applied again.
func TestLargeService(t *testing.T) {
	const count = 5000
	s := newSite(t)
	s.run()
	backends := make([]string, count)
	for i := range backends {
		backends[i] = fmt.Sprintf("10.%d.%d.2:8080", i>>8, i&255)
	}
	s.apply(serviceObject("small", 1, "10.0.1.2:8080"), serviceObject("big", 2, backends...))
	check := func(o *api.Object) {
		t.Helper()
		var spec api.ServiceSpec
		var status api.ServiceStatus
		if err := json.Unmarshal(o.Spec, &spec); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(o.Status, &status); err != nil {
			t.Fatal(err)
		}
		if len(spec.Backends) != count || len(status.Backends) != count {
			t.Fatalf("%s has %d backends and the status of %d, want %d", o.Name, len(spec.Backends), len(status.Backends), count)
		}
		for i := range backends {
			if spec.Backends[i].Address != backends[i] || status.Backends[i].Address != backends[i] {
				t.Fatalf("backend %d is %s, its status is of %s; want %s", i, spec.Backends[i].Address, status.Backends[i].Address, backends[i])
			}
		}
	}
	o, err := s.Get(t.Context(), api.KindService, "big")
	if err != nil {
		t.Fatal(err)
	}
	check(o)
	var names []string
	for o, err := range s.List(t.Context(), api.ListParams{Kind: api.KindService}) {
		if err != nil {
			t.Fatal(err)
		}
		if names = append(names, o.Name); o.Name == "big" {
			check(&o)
		}
	}
	if fmt.Sprint(names) != "[big small]" {
		t.Errorf("list = %v, want [big small]", names)
	}
	counters, err := s.Counters(t.Context(), api.KindService, "big")
	if err != nil || len(counters.Backends) != count || counters.Backends[count-1].Address != backends[count-1] {
		t.Errorf("counters of %d backends, %v; want %d", len(counters.Backends), err, count)
	}
	again, err := s.Apply(t.Context(), api.ApplyParams{Objects: []api.Object{{Kind: o.Kind, Name: o.Name, Spec: o.Spec}}})
	if err != nil || len(again.Changes) != 1 || again.Changes[0].Action != api.ActionUnchanged {
		t.Errorf("the object as it was read, applied again: %+v, %v; want unchanged", again, err)
	}
}

// TestChangeLargerThanARequest replaces 10,000 services at once: a transaction of several requests,
// which is dropped as a whole if the daemon is killed in the meantime.
func TestChangeLargerThanARequest(t *testing.T) {
	const count = 10000
	s := newSite(t)
	p := s.run()
	params := api.ReplaceParams{Owner: api.OwnerCLI, Kinds: []string{api.KindService}}
	for i := range count {
		params.Objects = append(params.Objects, serviceObject(fmt.Sprintf("s%05d", i), i, "10.0.1.2:8080", "10.0.1.3:8080"))
	}
	result, err := s.Replace(t.Context(), params)
	if err != nil || result.Revision != 1 || result.Summary[api.ActionCreated] != count {
		t.Fatalf("replace = %+v, %v; want revision 1 and %d created", result, err, count)
	}
	// Committing a transaction that the daemon no longer knows would delete all services.
	staging := api.ReplaceParams{Owner: params.Owner, Kinds: params.Kinds, Objects: params.Objects[:10]}
	staging.Transaction, staging.More = "mine", true
	if _, err := s.Replace(t.Context(), staging); err != nil {
		t.Fatal(err)
	}
	p.signal(9)
	p.ends()
	s.run()
	staging.Objects, staging.More = nil, false
	_, err = s.Replace(t.Context(), staging)
	if refused, ok := errors.AsType[*api.Error](err); !ok || refused.Reason() != api.ReasonConflict {
		t.Errorf("the commit of a forgotten transaction: %v, want conflict", err)
	}
	if got := s.status().Objects[api.KindService]; got != count {
		t.Errorf("%d services, want %d", got, count)
	}
}

// TestGroupLargerThanARequest uses 100,000 prefixes: they are rejected as one group, but accepted
// as several groups that are members of another group.
func TestGroupLargerThanARequest(t *testing.T) {
	const count, each = 100_000, 20_000
	s := newSite(t)
	s.run()
	members := make([]string, count)
	for i := range members {
		members[i] = fmt.Sprintf("2001:db8:%x:%x::/64", i>>16, i&65535)
	}
	group := func(name string, members []string) api.Object {
		raw, err := json.Marshal(map[string]any{"members": members})
		if err != nil {
			t.Fatal(err)
		}
		return api.Object{Kind: api.KindAddressGroup, Name: name, Spec: raw}
	}
	objects := []api.Object{
		serviceObject("first", 1, "10.0.1.2:80"),
		{Kind: api.KindFirewallRule, Name: "r", Spec: json.RawMessage(`{"action":"deny","match":{"source":"group:all"}}`)},
		{Kind: api.KindInterface, Name: "lo", Spec: json.RawMessage(`{"device":"lo"}`)}, // without an Interface, the rule is not Ready
	}
	_, err := s.Apply(t.Context(), api.ApplyParams{Objects: append(slices.Clip(objects), group("all", members))})
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Data.Object != "AddressGroup/all" || !strings.Contains(e.Message, "group:NAME") {
		t.Errorf("all in one group: %v, want that it is too large", err)
	}
	var parts []string
	for part := range slices.Chunk(members, each) {
		name := fmt.Sprint("part-", len(parts))
		objects, parts = append(objects, group(name, part)), append(parts, "group:"+name)
	}
	objects = append(objects, group("all", parts))
	result, err := s.Apply(t.Context(), api.ApplyParams{Objects: objects, Change: api.Change{Wait: api.Duration(20 * time.Second)}})
	if err != nil || result.Revision != 1 || result.Summary[api.ActionCreated] != len(objects) {
		t.Fatalf("%+v, %v; want %d created", result, err, len(objects))
	}
	o, err := s.Get(t.Context(), api.KindAddressGroup, "part-4")
	if err != nil {
		t.Fatal(err)
	}
	var spec struct{ Members []string }
	if err := json.Unmarshal(o.Spec, &spec); err != nil || !slices.Equal(spec.Members, members[4*each:]) {
		t.Errorf("%d members of the last part, %v", len(spec.Members), err)
	}
	if used := s.status().Capacity["prefixes"].Used; used != count {
		t.Errorf("%d prefixes, want %d", used, count)
	}
}

// TestWatchOverKill watches objects while the real daemon is killed and restarted.
func TestWatchOverKill(t *testing.T) {
	s := newSite(t)
	p := s.run()
	s.apply(serviceObject("a", 1, "10.0.1.2:8080"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ready, killed := map[string]bool{}, false
	for w, err := range s.Watch(ctx, client.WatchOptions{Kinds: []string{api.KindService}}) {
		if err != nil {
			continue // Watch retries
		}
		var status api.Status
		if w.Object != nil && json.Unmarshal(w.Object.Status, &status) == nil {
			ready[w.Ref.Name] = status.State == api.StateReady
		}
		if w.Synced && !killed {
			p.signal(9)
			p.ends()
			if err := os.WriteFile(s.path("conf.d/b.yaml"), []byte("kind: Service\nname: b\nspec: {frontends: [\"10.96.0.9:80/tcp\"]}\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			s.run()
			killed = true
		}
		if killed && ready["a"] && ready["b"] {
			return
		}
	}
	t.Errorf("the watch ended, ready were %v", ready)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// documentedObjects returns the specs in docs/api.md, as objects.
func documentedObjects(t *testing.T) (objects []api.Object) {
	t.Helper()
	page, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	objects = append(objects, api.Object{Kind: api.KindAddressGroup, Name: "partners", Spec: json.RawMessage(`{"members":["192.0.2.77"]}`)},
		api.Object{Kind: api.KindAddressGroup, Name: "offices", Spec: json.RawMessage(`{"members":["10.2.0.0/16"]}`)},
		api.Object{Kind: api.KindTier, Name: "main", Spec: json.RawMessage(`{"order":100}`)})
	for i, m := range regexp.MustCompile("(?s)```json (\\w+)Spec\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		switch m[1] {
		// The objects to which these refer do not exist here.
		case api.KindInterface, api.KindService, api.KindPodNetwork, api.KindEndpoint, api.KindPeer:
		default:
			if strings.Contains(m[2], `"peer"`) {
				continue
			}
			objects = append(objects, api.Object{Kind: m[1], Name: fmt.Sprint("example-", i), Spec: json.RawMessage(m[2])})
		}
	}
	if len(objects) < 9 {
		t.Fatalf("only %d examples were found", len(objects))
	}
	return objects
}

// TestDocumentedObjects applies the documented objects in one change, and finds them after a
// restart: Ready, or, if they name devices that do not exist here, Pending with a message.
func TestDocumentedObjects(t *testing.T) {
	s := newSite(t)
	p := s.run()
	objects := documentedObjects(t)
	var result api.ChangeResult
	if err := s.Call(t.Context(), api.MethodApply, api.ApplyParams{Objects: objects}, &result); err != nil {
		t.Fatal(err)
	}
	checkApplied := func(want api.Object) error {
		o, ok := s.get(want.Kind, want.Name)
		var status api.Status
		if err := json.Unmarshal(o.Status, &status); !ok || err != nil {
			return fmt.Errorf("found %v: %w", ok, err)
		}
		lacks := strings.Contains(status.Message, "run llcli interface add") || strings.Contains(status.Message, "does not exist") ||
			strings.Contains(status.Message, "no Endpoint of")
		if status != (api.Status{State: api.StateReady}) && !(status.State == api.StatePending && lacks) {
			return fmt.Errorf("status %+v", status)
		}
		return nil
	}
	check := func() {
		t.Helper()
		for _, want := range objects {
			var err error
			eventually(t, func() bool { err = checkApplied(want); return err == nil })
			if err != nil {
				t.Errorf("%s/%s: %v", want.Kind, want.Name, err)
			}
		}
	}
	check()
	p.stop()
	s.run()
	check()
	if c := s.status().Capacity; c["rules"].Used != 5 || c["prefixes"].Used == 0 {
		t.Errorf("capacity %+v, want 5 rules", c)
	}
}

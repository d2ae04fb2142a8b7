// SPDX-License-Identifier: Apache-2.0

package state

import (
	"slices"
	"testing"
)

// TestRollbackLeavesPods: pods that were attached since stay, and those that are gone do
// not come back.
func TestRollbackLeavesPods(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	pod := func(name, spec string) *Object { return object(t, OwnerCNI, "Service/"+name, spec) }
	commit(t, s, &Transaction{Put: []*Object{service(t, "web", "192.0.2.1:80 1"), pod("gone", "192.0.2.2:80 1"), pod("stays", "192.0.2.3:80 1")}})
	then := s.Snapshot().Revision
	commit(t, s, &Transaction{Put: []*Object{pod("new", "192.0.2.4:80 1")}, Delete: []Key{{KindService, "gone"}, {KindService, "web"}}})
	r, err := s.Rollback(&Rollback{Revision: then})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for o := range s.Snapshot().All() {
		names = append(names, o.Name)
	}
	if want := []string{"new", "stays", "web"}; !slices.Equal(names, want) {
		t.Errorf("after going back there are %q, want %q", names, want)
	}
	if want := []Key{{KindService, "gone"}, {KindService, "new"}}; !slices.Equal(r.Left, want) {
		t.Errorf("left %v, want %v", r.Left, want)
	}
}

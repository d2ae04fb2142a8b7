// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"slices"
	"testing"
)

// TestRollbackLeavesPods: pods that were attached after the restored revision stay, and pods that
// were deleted after it do not return.
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

// TestRollbackOfOwnerLeavesPods: a rollback for one owner does not change pods' objects either,
// whether that owner owned them at the restored revision, owns them now, or is the owner of all
// pods.
func TestRollbackOfOwnerLeavesPods(t *testing.T) {
	for _, owner := range []string{"", "cli", OwnerCNI} {
		t.Run("owner "+owner, func(t *testing.T) {
			s, _ := open(t, testConfig(t.TempDir()))
			pod := func(name, spec string) *Object { return object(t, OwnerCNI, "Service/"+name, spec) }
			commit(t, s, &Transaction{Put: []*Object{
				service(t, "web", "192.0.2.1:80 1"), pod("gone", "192.0.2.2:80 1"), pod("stays", "192.0.2.3:80 1"),
				service(t, "taken", "192.0.2.5:80 1"), pod("given", "192.0.2.6:80 1"),
			}})
			then := s.Snapshot().Revision
			for _, k := range []string{"gone", "web", "taken", "given"} {
				commit(t, s, &Transaction{Delete: []Key{{KindService, k}}})
			}
			commit(t, s, &Transaction{Put: []*Object{
				pod("new", "192.0.2.4:80 1"), pod("taken", "192.0.2.15:80 1"), service(t, "given", "192.0.2.16:80 1"), pod("stays", "192.0.2.3:80 2"),
			}})
			r, err := s.Rollback(&Rollback{Revision: then, Owner: owner})
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"new cni 192.0.2.4:80 1", "stays cni 192.0.2.3:80 2", "taken cni 192.0.2.15:80 1"}
			if owner == OwnerCNI {
				want = append([]string{"given cli 192.0.2.16:80 1"}, want...)
			} else {
				want = append(want, "web cli 192.0.2.1:80 1")
			}
			var got []string
			for o := range s.Snapshot().All() {
				got = append(got, o.Name+" "+o.Owner+" "+o.Spec)
			}
			if !slices.Equal(got, want) {
				t.Errorf("after going back there are %q, want %q", got, want)
			}
			left := map[string]string{"": "[Service/given Service/gone Service/new Service/stays Service/taken]", "cli": "[Service/given Service/taken]"}
			left[OwnerCNI] = left[""]
			if got := fmt.Sprint(r.Left); got != left[owner] {
				t.Errorf("left %s, want %s", got, left[owner])
			}
		})
	}
}

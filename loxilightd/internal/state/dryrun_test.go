// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// TestReadersKeepNoWriterWaiting checks that dry runs and readers of the history finish during a
// commit, and that a commit finishes while the history is read.
func TestReadersKeepNoWriterWaiting(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	first := commit(t, s, &Transaction{Put: []*Object{service(t, "a", "198.51.100.1:80 1")}})
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "198.51.100.1:80 2")}})

	s.writer.Lock()
	done := make(chan error, 1)
	go func() {
		_, err := s.Commit(&Transaction{Put: []*Object{service(t, "b", "198.51.100.2:80 1")}, DryRun: true})
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("a dry run waits for a commit")
	}
	s.writer.Unlock()

	err := s.Diffs(first.Revision+1, "", func(d Diff) bool {
		commit(t, s, &Transaction{Put: []*Object{service(t, "c", "198.51.100.3:80 1")}}) // deadlocks if the writer waits
		return true
	})
	if err != nil {
		t.Error(err)
	}
	r, err := s.Rollback(&Rollback{Revision: first.Revision, DryRun: true})
	if err != nil || len(r.Changes) != 2 {
		t.Errorf("%+v, %v; want two changes", r, err)
	}
	if _, err = s.Rollback(&Rollback{Revision: first.Revision, DryRun: true, MaxBytes: 1}); !isRefusal(err, Capacity) {
		t.Errorf("%v, want a refusal: more of the history than one byte", err)
	}
}

func isRefusal(err error, reason Reason) bool {
	r, ok := errors.AsType[*Refusal](err)
	return ok && r.Reason == reason
}

// TestDryRunsBesideCommits runs dry runs concurrently with commits, for the race detector.
func TestDryRunsBesideCommits(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	var all sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				text := fmt.Sprintf("198.51.100.%d:80 1", i%10)
				_, err := s.Commit(&Transaction{Put: []*Object{service(t, "other", text)}, DryRun: true})
				if err != nil && !isRefusal(err, Conflict) {
					t.Error(err)
				}
			}
		})
	}
	for i := range 50 {
		name := fmt.Sprint("s", i%10)
		commit(t, s, &Transaction{Put: []*Object{service(t, name, fmt.Sprintf("198.51.100.%d:80 %d", i%10, 1+i%3))}})
		if i%7 == 0 {
			commit(t, s, &Transaction{Delete: []Key{{KindService, name}}})
		}
	}
	close(stop)
	all.Wait()
}

// TestCirclesOfManyGroups applies so many groups that refer to one large group that visiting the
// large group once for each of them would take minutes.
func TestCirclesOfManyGroups(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	named := func(name string, groups ...datapath.GroupName) *Object {
		return &Object{Key: Key{KindAddressGroup, name}, Owner: "cli", Spec: name, Value: &AddressGroup{Groups: groups}}
	}
	const leaves, many = 20_000, 20_000
	objects := []*Object{}
	var list []datapath.GroupName
	for i := range leaves {
		name := fmt.Sprint("leaf", i)
		objects, list = append(objects, named(name)), append(list, datapath.GroupName(name))
	}
	objects = append(objects, named("large", list...))
	before := datapath.GroupName("large")
	for i := range many { // each group also refers to the previous group, which gives a long path
		name := fmt.Sprint("user", i)
		objects, before = append(objects, named(name, "large", before)), datapath.GroupName(name)
	}
	if _, err := s.Commit(&Transaction{Put: objects, DryRun: true}); err != nil {
		t.Fatal(err)
	}
	objects[0].Value = &AddressGroup{Groups: []datapath.GroupName{before}}
	_, err := s.Commit(&Transaction{Put: objects, DryRun: true})
	if r, _ := errors.AsType[*Refusal](err); r == nil || r.Key != objects[0].Key || r.Field != "spec.members" {
		t.Errorf("%v, want a refusal that blames %s", err, objects[0].Key)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// descriptors returns how many files a process has open.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestChurnLeavesNothing: clients connect, change objects, subscribe and disconnect,
// all concurrently. Afterwards, the daemon has as many open files as before.
func TestChurnLeavesNothing(t *testing.T) {
	s := newSite(t)
	p := s.run()
	s.apply(serviceObject("stays", 1, "10.0.1.2:8080"))
	before := descriptors(t, p.cmd.Process.Pid)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var clients sync.WaitGroup
	for worker := range 4 {
		clients.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := s.visit(t.Context(), fmt.Sprintf("w%d-%d", worker, i%20), 2+worker*20+i%20); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
	eventually(t, func() bool { return descriptors(t, p.cmd.Process.Pid) <= before })
	status := s.status()
	if status.Objects[api.KindService] != 1 || len(status.NotReady) > 0 || status.Capacity["services"].Used != 1 {
		t.Errorf("status afterwards: %+v", status)
	}
	if status.Revision < 100 {
		t.Errorf("only %d changes were made", status.Revision)
	}
}

// visit is one client that subscribes, applies, reads, deletes and disconnects.
func (s *site) visit(ctx context.Context, name string, id int) error {
	c, err := client.New(client.Options{Socket: s.Socket()})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	events, err := c.Subscribe(ctx, api.TopicChanges)
	if err != nil {
		return err
	}
	defer events.Close()
	change := api.Change{Wait: api.Duration(10 * time.Second)}
	if _, err := c.Apply(ctx, api.ApplyParams{Objects: []api.Object{serviceObject(name, id, "10.0.1.2:8080")}, Change: change}); err != nil {
		return err
	}
	if _, err := c.Get(ctx, api.KindService, name); err != nil {
		return err
	}
	_, err = c.Delete(ctx, api.DeleteParams{Objects: []api.ObjectRef{{Kind: api.KindService, Name: name}}, Change: change})
	return err
}

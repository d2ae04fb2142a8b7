// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/tick"
)

const (
	// remakeInterval is how often pods' missing links are searched for without a Wake. remakePause
	// is the minimum time between two searches.
	remakeInterval = 500 * time.Millisecond
	remakePause    = 50 * time.Millisecond
	// remakeWait limits how long the recreation of a link waits for another command for the same
	// interface.
	remakeWait = 50 * time.Millisecond
	// maxRemakes is the number of links that are recreated concurrently.
	maxRemakes = 8
)

// remakeLoop runs until ctx ends and recreates pods' links that another program has deleted, one by
// one or along with the switch's namespace.
func (s *Server) remakeLoop(ctx context.Context) {
	for {
		var due <-chan time.Time // never without pods; register wakes the loop
		if s.hasLinks() {
			due = tick.After(remakeInterval)
		}
		select {
		case <-s.woken:
		case <-due:
		case <-ctx.Done():
			return
		}
		begin := time.Now()
		s.remakeAll(ctx)
		select {
		case <-time.After(max(remakePause, 4*time.Since(begin))):
		case <-ctx.Done():
			return
		}
	}
}

// Wake triggers a search for pods' missing links, because devices have changed.
func (s *Server) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// remakeAll recreates all missing links whose pods still exist.
func (s *Server) remakeAll(ctx context.Context) {
	records := s.all()
	if len(records) == 0 {
		return
	}
	devices, err := s.Links.Devices(ctx)
	if err != nil {
		return // retried the next time
	}
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, maxRemakes)
	for _, r := range records {
		if _, there := devices[r.Device]; there {
			s.setMissing(r, "")
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			s.remake(ctx, r)
		})
	}
}

// remake recreates the link of one pod, with the same name, MAC, addresses and routes.
func (s *Server) remake(ctx context.Context, r *record) {
	bounded, cancel := context.WithTimeout(ctx, remakeWait)
	release, busy := s.hold(bounded, r.owner())
	cancel()
	if busy != nil {
		return // an ADD or DEL for this interface is in progress
	}
	defer release()
	devices, err := s.Links.Devices(ctx)
	s.mu.Lock()
	current := s.pods[r.owner()] == r
	s.mu.Unlock()
	if _, there := devices[r.Device]; err != nil || there || !current || !r.Done {
		return
	}
	if netnsDeleted(r.Netns) {
		s.setMissing(r, fmt.Sprintf("the network namespace %s of its pod no longer exists", r.Netns))
		return
	}
	if err := s.reconnect(ctx, r); err != nil {
		s.setMissing(r, fmt.Sprintf("the link of its pod could not be recreated: %s", err.Message))
		return
	}
	s.setMissing(r, "")
	s.Log.Info("the link of a pod was deleted, and is recreated", slog.String("object", r.Object),
		slog.String("container", r.ContainerID), slog.String("device", r.Device))
}

// reconnect creates the link of a pod, and opens it for packets once its source guard is in force.
func (s *Server) reconnect(ctx context.Context, r *record) *api.Error {
	before := r.Device
	defer s.opens(r)()
	link, err := s.makeLink(ctx, r)
	if err != nil {
		return err
	}
	endpoint, revision := r.endpoint(), uint64(0)
	if r.Device != before {
		if revision, err = s.changes.do(ctx, []api.Object{endpoint}, nil); err != nil {
			return objectError(err)
		}
	}
	bounded, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if s.VerifyEndpoint != nil {
		if err := s.VerifyEndpoint(bounded, r.Object); err != nil {
			return unavailable("%s/%s could not be checked: %v", kindEndpoint, r.Object, err)
		}
	}
	if err := s.Objects.Ready(bounded, revision, refsOf([]api.Object{endpoint})); err != nil {
		return objectError(err)
	}
	if err := s.Links.Open(ctx, link); err != nil {
		return linkError(err)
	}
	return nil
}

// opens records that a pod's link will be opened once its Endpoint is Ready. The returned function
// removes this entry, after success or the last attempt.
func (s *Server) opens(r *record) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opening[r.Object] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.opening, r.Object)
	}
}

// Opening reports whether an Endpoint's link will be opened once the Endpoint is Ready.
func (s *Server) Opening(endpoint string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opening[endpoint]
}

// setMissing records why a pod's link does not exist. why is empty if the link exists.
func (s *Server) setMissing(r *record, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why == "" || s.pods[r.owner()] != r {
		delete(s.missing, r.Object)
		return
	}
	if s.missing[r.Object] != why {
		s.Log.Warn("the link of a pod no longer exists", slog.String("object", r.Object), slog.String("device", r.Device), slog.String("cause", why))
	}
	s.missing[r.Object] = why
}

// Missing returns why the device of an Endpoint does not exist, or an empty string if the device
// exists or is not a pod's device.
func (s *Server) Missing(endpoint string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missing[endpoint]
}

// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"sync"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// slow makes a change only when the test lets it proceed.
type slow struct {
	Objects
	begun, proceed chan struct{}

	mu   sync.Mutex
	made []string
}

func (s *slow) Change(puts []api.Object, _ []api.ObjectRef) (uint64, *api.Error) {
	s.begun <- struct{}{}
	<-s.proceed
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range puts {
		s.made = append(s.made, o.Name)
	}
	return uint64(len(s.made)), nil
}

// TestCallerGivesUp: if a caller gives up before its change has begun, the change is not made, and
// the caller gets an error. Once the change has begun, the caller gets the result.
func TestCallerGivesUp(t *testing.T) {
	s := &slow{begun: make(chan struct{}, 3), proceed: make(chan struct{})}
	b := newBatch(s)
	running, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.run(running)
	}()
	defer func() {
		stop()
		<-ended
	}()
	type answer struct {
		revision uint64
		err      *api.Error
	}
	do := func(name string) (giveUp func(), answered chan answer) {
		ctx, cancel := context.WithCancel(context.Background())
		answered = make(chan answer, 1)
		go func() {
			revision, err := b.do(ctx, []api.Object{{Kind: api.KindEndpoint, Name: name}}, nil)
			answered <- answer{revision, err}
		}()
		return cancel, answered
	}
	giveUp, first := do("first")
	<-s.begun
	giveUpQueued, queued := do("queued")
	for len(b.jobs) == 0 { // bounded by the test's timeout
		select {
		case a := <-queued:
			t.Fatalf("answered %v before the change", a)
		default:
		}
	}
	giveUpQueued()
	if a := <-queued; a.err == nil || a.err.Reason() != api.ReasonUnavailable {
		t.Errorf("answered %v, want that the daemon is busy", a)
	}
	giveUp()
	close(s.proceed)
	if a := <-first; a.err != nil || a.revision != 1 {
		t.Errorf("answered %v although the change was made", a)
	}
	cancel, last := do("last") // once this change is answered, run has seen the withdrawn change
	defer cancel()
	<-last
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.made) != 2 || s.made[0] != "first" || s.made[1] != "last" {
		t.Errorf("made %v, want first and last: queued was refused", s.made)
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
)

// state is the state of the agent and its daemon, as reported by probes, the Node's condition and
// metrics.
type state struct {
	mu          sync.Mutex
	begun       bool      // all input for the daemon is known
	synced      bool      // the daemon has received everything once
	daemon      bool      // the daemon is in sync now
	since       time.Time // since when it has been, or has not been
	pods        string    // state of the PodNetwork; empty: unknown
	podsMessage string
	podsSince   time.Time
	podsLooked  time.Time // time of the last read from the daemon
	failure     string    // why the daemon is not in sync
	objects     int       // that the daemon should have
	refused     int       // that the daemon rejects
	updated     time.Time // when the daemon last had everything
	changed     chan struct{}

	// Used only by the goroutine that talks to the daemon.
	gather     time.Duration
	lastRepair time.Time
	repairs    time.Duration // the last pause before a repair
}

func newState() *state {
	now := time.Now()
	return &state{since: now, podsSince: now, changed: make(chan struct{}, 1), gather: gatherMin}
}

// poke wakes the goroutine that writes the node's condition.
func (s *state) poke() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// begin records that the agent starts to send to the daemon, which it has not contacted before.
func (s *state) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun, s.since = true, time.Now()
}

func (s *state) inStep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.daemon {
		s.since = time.Now()
	}
	if !s.synced {
		s.podsSince = time.Now()
	}
	s.synced, s.daemon, s.failure = true, true, ""
	s.poke()
}

// lost records that the daemon is not in sync.
func (s *state) lost(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemon {
		s.since = time.Now()
	}
	s.daemon, s.failure = false, err.Error()
	s.poke()
}

// numbers is the input of metrics and probes.
type numbers struct {
	begun, daemon    bool
	since, updated   time.Time
	objects, refused int
}

func (s *state) numbers() numbers {
	s.mu.Lock()
	defer s.mu.Unlock()
	return numbers{s.begun, s.daemon, s.since, s.updated, s.objects, s.refused}
}

// count records how many objects the daemon has and how many it rejected.
func (s *state) count(objects, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects, s.refused, s.updated = objects, refused, time.Now()
}

func (s *state) network(state, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.pods == api.StateReady) != (state == api.StateReady) {
		s.podsSince = time.Now()
	}
	s.pods, s.podsMessage, s.podsLooked = state, message, time.Now()
	s.poke()
}

// nextLook returns when the state of the pod network must be read again, even without an event, or
// the zero time if it was Ready.
func (s *state) nextLook() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods == api.StateReady {
		return time.Time{}
	}
	return s.podsLooked.Add(lookAgain)
}

// Readiness reports whether the node can serve pods, and if not, why.
func (a *Agent) Readiness() (ready bool, why string) {
	s := a.state
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.synced && s.failure != "":
		return false, "not in sync with the daemon yet: " + s.failure
	case !s.synced:
		if missing := a.missing(); len(missing) > 0 {
			return false, "the API server has not listed all " + strings.Join(missing, ", ") + " yet"
		}
		return false, "the daemon is being configured"
	case !s.daemon:
		return false, "out of sync with the daemon: " + s.failure
	case s.pods != api.StateReady:
		return false, "PodNetwork/default is " + s.pods + ": " + s.podsMessage
	}
	return true, ""
}

// The pauses before another client's changes are repaired.
const (
	repairMin  = time.Second
	repairMax  = time.Minute
	repairOver = 10 * time.Minute // without an external change for this long, the next one is repaired at once
)

func (s *state) repairPause() time.Duration {
	now := time.Now()
	switch quiet := now.Sub(s.lastRepair); {
	case s.lastRepair.IsZero() || quiet > repairOver:
		s.repairs = 0
	case s.repairs == 0:
		s.repairs = repairMin
	default:
		s.repairs = min(2*s.repairs, repairMax)
	}
	s.lastRepair = now
	return s.repairs
}

func decode(raw json.RawMessage, into any) error {
	if len(raw) == 0 {
		return nil
	}
	return json.Unmarshal(raw, into)
}

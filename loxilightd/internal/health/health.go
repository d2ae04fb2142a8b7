// SPDX-License-Identifier: Apache-2.0

// Package health determines which backends work, by probing them periodically. It knows services by
// name only, and does not know how a failed backend is handled. Probes are sent from the network
// namespace of the process.
package health

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// Type is the type of a probe.
type Type string

// The types.
const (
	TCP   Type = "tcp"   // a connection is accepted
	HTTP  Type = "http"  // GET is answered with a status from 200 to 399
	HTTPS Type = "https" // same as HTTP, but over TLS; the certificate is not verified
	Ping  Type = "ping"  // an ICMP echo is answered
)

// Check defines how the backends of a service are probed. No field has a default.
type Check struct {
	Type      Type
	Path      string // for HTTP and HTTPS
	Port      uint16 // 0: the backend's
	Interval  time.Duration
	Timeout   time.Duration
	Healthy   int // consecutive answers after which an unhealthy backend is healthy
	Unhealthy int // consecutive failures after which a healthy backend is unhealthy
}

// State is the health of a backend.
type State uint8

// The states.
const (
	Unknown State = iota // not probed yet
	Healthy
	Unhealthy
)

// String returns the name of s in the API.
func (s State) String() string { return [...]string{"unknown", "healthy", "unhealthy"}[s] }

// Result is the health of a backend, and why it is not healthy.
type Result struct {
	State   State
	Message string
}

// Target is one backend of one service.
type Target struct {
	Service string
	Backend netip.AddrPort
}

// maxProbes limits the concurrent probes. If this limit is too low for the number of backends, the
// probe intervals grow.
const maxProbes = 512

// Checker probes backends. Its methods are safe for concurrent use; Run must be called only once.
type Checker struct {
	changed func(Target, Result)
	probe   func(context.Context, *Check, netip.AddrPort) error
	wake    chan struct{}

	mu       sync.Mutex
	services map[string]map[netip.AddrPort]*target
	due      schedule
	running  int
	unknown  int           // targets in state Unknown
	known    chan struct{} // closed when unknown is 0; replaced when it is no longer 0
}

// target is one backend that is probed.
type target struct {
	Target
	check     *Check
	result    Result
	answered  bool // the first probe was answered, or timed out
	streak    int  // consecutive results that contradict result.State
	at        time.Time
	heapIndex int // -1: not in due
	removed   bool
}

// New returns a Checker that sends no probes before Run. The Checker calls changed whenever a
// backend's state changes, including the first time, from any goroutine and with no lock held.
func New(changed func(Target, Result)) *Checker {
	known := make(chan struct{})
	close(known)
	return &Checker{
		changed: changed, probe: probe, wake: make(chan struct{}, 1),
		services: map[string]map[netip.AddrPort]*target{}, known: known,
	}
}

// leftMessage is the message for backends that an earlier run took out of use and that have not
// been probed yet.
const leftMessage = "out of use when the daemon started, and has not answered since"

// Set sets which of a service's backends to probe, and how. Backends that have already been probed
// keep their result; new backends in left are Unhealthy until they answer. An empty list ends all
// probes for the service.
func (c *Checker) Set(service string, check Check, backends []netip.AddrPort, left map[netip.AddrPort]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.services[service]
	wanted := make(map[netip.AddrPort]*target, len(backends))
	now := time.Now()
	for _, b := range backends {
		t := old[b]
		switch {
		case wanted[b] != nil:
			continue
		case t == nil:
			t = &target{Target: Target{service, b}, check: &check, heapIndex: -1}
			if left[b] {
				t.result = Result{Unhealthy, leftMessage}
			} else {
				c.countUnknown(1)
			}
			// This spreads the first probes, so that they do not stay synchronized.
			c.schedule(t, now.Add(rand.N(min(check.Interval/4, 100*time.Millisecond)+1)))
		case *t.check != check:
			t.check, t.streak = &check, 0
			if t.heapIndex >= 0 {
				c.schedule(t, now)
			}
		}
		wanted[b] = t
	}
	for b, t := range old {
		if wanted[b] == nil {
			c.drop(t)
		}
	}
	delete(c.services, service)
	if len(wanted) > 0 {
		c.services[service] = wanted
	}
	c.signal()
}

// drop removes a target. The caller holds c.mu.
func (c *Checker) drop(t *target) {
	t.removed = true
	if t.heapIndex >= 0 {
		heap.Remove(&c.due, t.heapIndex)
	}
	if t.result.State == Unknown {
		c.countUnknown(-1)
	}
}

// countUnknown updates unknown and known. The caller holds c.mu.
func (c *Checker) countUnknown(by int) {
	before := c.unknown
	c.unknown += by
	switch {
	case before == 0 && c.unknown > 0:
		c.known = make(chan struct{})
	case before > 0 && c.unknown == 0:
		close(c.known)
	}
}

// schedule inserts t into due, or moves it within due. The caller holds c.mu.
func (c *Checker) schedule(t *target, at time.Time) {
	t.at = at
	if t.heapIndex >= 0 {
		heap.Fix(&c.due, t.heapIndex)
	} else {
		heap.Push(&c.due, t)
	}
}

func (c *Checker) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Result returns the health of a backend. A backend that is not probed is Unknown.
func (c *Checker) Result(service string, backend netip.AddrPort) Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.services[service][backend]; t != nil {
		return t.result
	}
	return Result{}
}

// WaitKnown waits until no backend is Unknown, or ctx ends.
func (c *Checker) WaitKnown(ctx context.Context) {
	c.mu.Lock()
	known := c.known
	c.mu.Unlock()
	select {
	case <-known:
	case <-ctx.Done():
	}
}

// Run probes until ctx ends, and returns when no probe is in progress.
func (c *Checker) Run(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	for {
		t, check, rest := c.next(time.Now())
		if t != nil {
			probes.Go(func() { c.ask(ctx, t, check) })
			continue
		}
		timer := time.NewTimer(rest)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// next removes and returns a target that is due, or returns the time until a target is due.
func (c *Checker) next(now time.Time) (*target, *Check, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.due) == 0 || c.running == maxProbes {
		return nil, nil, time.Minute
	}
	if rest := c.due[0].at.Sub(now); rest > 0 {
		return nil, nil, rest
	}
	t := heap.Pop(&c.due).(*target)
	t.at = now
	c.running++
	return t, t.check, 0
}

// ask performs one probe.
func (c *Checker) ask(ctx context.Context, t *target, check *Check) {
	probeCtx, cancel := context.WithTimeout(ctx, check.Timeout)
	defer cancel()
	err := c.probe(probeCtx, check, t.Backend)
	changed := false
	c.mu.Lock()
	c.running--
	if !t.removed && ctx.Err() == nil {
		if t.check == check {
			changed = c.record(t, err)
		}
		c.schedule(t, later(t.at.Add(t.check.Interval), time.Now()))
	}
	result := t.result
	c.mu.Unlock()
	c.signal()
	if changed {
		c.changed(t.Target, result)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// record records the result of a probe, and reports whether the state of the target changed. The
// first result takes effect immediately. The caller holds c.mu.
func (c *Checker) record(t *target, err error) (changed bool) {
	first := !t.answered
	t.answered = true
	r, needed := Result{State: Healthy}, t.check.Healthy
	if err != nil {
		r, needed = Result{Unhealthy, err.Error()}, t.check.Unhealthy
	}
	if t.result.State == r.State {
		t.result, t.streak = r, 0
		return false
	}
	if t.streak++; !first && t.streak < needed {
		return false
	}
	if t.result.State == Unknown {
		c.countUnknown(-1)
	}
	t.result, t.streak = r, 0
	return true
}

// schedule orders targets by the time of their next probe.
type schedule []*target

// Len, Less, Swap, Push and Pop implement [heap.Interface].
func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at.Before(s[j].at) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].heapIndex, s[j].heapIndex = i, j
}
func (s *schedule) Push(x any) {
	t := x.(*target)
	t.heapIndex = len(*s)
	*s = append(*s, t)
}
func (s *schedule) Pop() any {
	old := *s
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	t.heapIndex = -1
	return t
}

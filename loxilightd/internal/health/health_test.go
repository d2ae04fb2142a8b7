// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var (
	b1 = netip.MustParseAddrPort("10.0.1.2:8080")
	b2 = netip.MustParseAddrPort("[2001:db8::4]:8081")
)

// world is a set of backends, each working or not, and a record of their probes.
type world struct {
	mu      sync.Mutex
	dead    map[netip.AddrPort]bool
	mute    map[netip.AddrPort]bool
	asked   map[netip.AddrPort]int
	reports []string
}

func (w *world) set(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

func (w *world) probe(ctx context.Context, _ *Check, b netip.AddrPort) error {
	w.mu.Lock()
	w.asked[b]++
	dead, mute := w.dead[b], w.mute[b]
	w.mu.Unlock()
	if mute {
		<-ctx.Done()
		return ctx.Err()
	}
	if dead {
		return errors.New("dead")
	}
	return nil
}

func (w *world) wantReports(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Sort(w.reports); !slices.Equal(w.reports, want) {
		t.Errorf("after %s: reported %q, want %q", time.Now().Format("04:05"), w.reports, want)
	}
	w.reports = nil
}

func run(t *testing.T, f func(t *testing.T, c *Checker, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{dead: map[netip.AddrPort]bool{}, mute: map[netip.AddrPort]bool{}, asked: map[netip.AddrPort]int{}}
		c := New(func(t Target, r Result) {
			w.set(func() {
				w.reports = append(w.reports, t.Service+" "+t.Backend.String()+" "+r.State.String()+" "+r.Message)
			})
		})
		c.probe = w.probe
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		f(t, c, w)
		cancel()
		<-ended
	})
}

var check = Check{Type: TCP, Interval: 5 * time.Second, Timeout: time.Second, Healthy: 2, Unhealthy: 3}

func TestTurnsAfterSoManyInARow(t *testing.T) {
	run(t, func(t *testing.T, c *Checker, w *world) {
		w.dead[b2] = true
		c.Set("web", check, []netip.AddrPort{b1, b2, b1}, nil)
		time.Sleep(time.Second)
		w.wantReports(t, "web 10.0.1.2:8080 healthy ", "web [2001:db8::4]:8081 unhealthy dead")

		w.set(func() { w.dead[b1], w.dead[b2] = true, false })
		time.Sleep(5 * time.Second) // b1: 1 of 3; b2: 1 of 2
		w.wantReports(t)
		w.set(func() { w.dead[b1] = false })
		time.Sleep(5 * time.Second) // b1 starts counting again
		w.wantReports(t, "web [2001:db8::4]:8081 healthy ")
		w.set(func() { w.dead[b1] = true })
		time.Sleep(10 * time.Second)
		w.wantReports(t)
		time.Sleep(5 * time.Second)
		w.wantReports(t, "web 10.0.1.2:8080 unhealthy dead")
		if r := c.Result("web", b1); r != (Result{Unhealthy, "dead"}) {
			t.Errorf("result %+v", r)
		}
	})
}

func TestBackendsComeAndGo(t *testing.T) {
	run(t, func(t *testing.T, c *Checker, w *world) {
		w.dead[b1] = true
		c.Set("web", check, []netip.AddrPort{b1}, nil)
		time.Sleep(time.Second)
		w.wantReports(t, "web 10.0.1.2:8080 unhealthy dead")
		// After a second backend is added, the result of the first one stays.
		c.Set("web", check, []netip.AddrPort{b1, b2}, nil)
		if r := c.Result("web", b1); r.State != Unhealthy {
			t.Errorf("the known result is forgotten: %+v", r)
		}
		time.Sleep(time.Second)
		w.wantReports(t, "web [2001:db8::4]:8081 healthy ")
		// After the check changes, the backend is immediately probed with the new check.
		quick := check
		quick.Interval, quick.Healthy = time.Second, 1
		w.set(func() { w.dead[b1] = false })
		c.Set("web", quick, []netip.AddrPort{b1, b2}, nil)
		w.wantReports(t, "web 10.0.1.2:8080 healthy ")
		c.Set("web", quick, nil, nil)
		synctest.Wait()
		before := w.asked[b1]
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := w.asked[b1] - before; n != 0 {
			t.Errorf("asked %d times after it was removed", n)
		}
		if r := c.Result("web", b1); r.State != Unknown {
			t.Errorf("result of a backend that is not probed: %+v", r)
		}
	})
}

func TestWaitKnown(t *testing.T) {
	run(t, func(t *testing.T, c *Checker, w *world) {
		begin := time.Now()
		c.WaitKnown(t.Context())
		if d := time.Since(begin); d != 0 {
			t.Errorf("waited %s for nothing", d)
		}
		w.mute[b2] = true
		c.Set("web", check, []netip.AddrPort{b1, b2}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		c.WaitKnown(ctx)
		if d := time.Since(begin); d != 500*time.Millisecond {
			t.Errorf("waited %s, want until the deadline", d)
		}
		c.WaitKnown(t.Context())
		if d := time.Since(begin); d < time.Second || d > 1100*time.Millisecond {
			t.Errorf("waited %s, want the timeout of the check", d)
		}
		c.Set("web", check, []netip.AddrPort{b1}, nil)
		c.WaitKnown(t.Context())
	})
}

// TestLeftOutOfUse: a backend that was out of use before is immediately Unhealthy, and its first
// answer is enough to make it Healthy.
func TestLeftOutOfUse(t *testing.T) {
	run(t, func(t *testing.T, c *Checker, w *world) {
		w.mute[b1], w.dead[b2] = true, true
		left := map[netip.AddrPort]bool{b1: true, b2: true}
		c.Set("web", check, []netip.AddrPort{b1, b2}, left)
		begin := time.Now()
		c.WaitKnown(t.Context())
		if d := time.Since(begin); d != 0 {
			t.Errorf("waited %s for a known result", d)
		}
		if r := c.Result("web", b1); r != (Result{Unhealthy, leftMessage}) {
			t.Errorf("result %+v before the first answer", r)
		}
		time.Sleep(500 * time.Millisecond)
		w.wantReports(t) // the state of b2 is unchanged
		if r := c.Result("web", b2); r != (Result{Unhealthy, "dead"}) {
			t.Errorf("result %+v after it answered", r)
		}
		c.Set("web", check, []netip.AddrPort{b2}, left)
		w.set(func() { w.mute[b1] = false })
		c.Set("web", check, []netip.AddrPort{b1, b2}, left)
		time.Sleep(500 * time.Millisecond)
		w.wantReports(t, "web 10.0.1.2:8080 healthy ")
		w.set(func() { w.dead[b1], w.dead[b2] = true, false })
		time.Sleep(5 * time.Second) // b1: 1 of 3; b2: 1 of 2
		w.wantReports(t)
	})
}

// TestManyDeadBackends: backends that do not answer delay other probes by at most their timeout.
func TestManyDeadBackends(t *testing.T) {
	run(t, func(t *testing.T, c *Checker, w *world) {
		var mute []netip.AddrPort
		addr := netip.MustParseAddr("10.1.0.1")
		for range 2 * maxProbes {
			mute = append(mute, netip.AddrPortFrom(addr, 80))
			w.mute[mute[len(mute)-1]] = true
			addr = addr.Next()
		}
		c.Set("dead", check, mute, nil)
		c.Set("web", check, []netip.AddrPort{b1}, nil)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := w.asked[b1]; n < 18 || n > 26 {
			t.Errorf("asked %d times in two minutes, want about 24", n)
		}
	})
}

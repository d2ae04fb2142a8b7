// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"time"

	"github.com/loxilight/loxilight/internal/dirwatch"
	"github.com/loxilight/loxilight/internal/tick"
)

// Interval is the interval at which pins and links are compared with their wanted state. While no
// programs are attached, it is idleInterval, if the kernel reports changes to the folder of pins, or
// unwatchedInterval. A round after such a change begins after pause, with further changes.
const (
	Interval          = 500 * time.Millisecond
	idleInterval      = 5 * time.Second
	unwatchedInterval = time.Second
	pause             = 50 * time.Millisecond
)

// Start starts the rounds, which Close ends.
func (k *Keeper) Start() { k.ended.Go(k.run) }

// Close ends the rounds.
func (k *Keeper) Close() {
	close(k.done)
	k.ended.Wait()
}

// Wake starts a round, because the first program was attached.
func (k *Keeper) Wake() {
	if k == nil {
		return // not started yet
	}
	select {
	case k.woken <- struct{}{}:
	default: // a round is about to start
	}
}

// interval returns the time until the next round; watched is set if changes to the folder of pins
// are reported.
func (k *Keeper) interval(watched bool) time.Duration {
	switch {
	case !k.options.IsIdle():
		return Interval
	case watched:
		return idleInterval
	}
	return unwatchedInterval
}

// await waits until a round is due, and returns false if the rounds must end.
func (k *Keeper) await(w *dirwatch.Watcher) bool {
	var changed <-chan struct{}
	if w != nil && w.Add(k.options.Dir) == nil {
		changed = w.Changed()
	}
	select {
	case <-tick.After(k.interval(changed != nil)):
	case <-k.woken:
	case <-changed:
		select {
		case <-time.After(pause):
		case <-k.done:
			return false
		}
	case <-k.done:
		return false
	}
	return true
}

func (k *Keeper) run() {
	w, err := dirwatch.New()
	if err == nil {
		defer w.Close()
	}
	for k.await(w) {
		if k.Detached() || k.options.Severed() {
			k.options.Signal()
		}
		k.options.EachRound()
		k.KeepPins()
	}
}

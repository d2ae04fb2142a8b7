// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"testing"
	"time"
)

// TestFollowAllAfterWaiting: a change is handled soon, even if handling an earlier one took long because
// it had to wait.
func TestFollowAllAfterWaiting(t *testing.T) {
	v := &Devices{done: make(chan struct{})}
	updates, handled := make(chan int), make(chan time.Time, 2)
	v.wg.Add(1)
	waits := 2 * followRestMax
	go followAll(v, updates, func(int) {}, func() {
		time.Sleep(waits)
		waits = 0
		handled <- time.Now()
	})
	updates <- 1
	first := <-handled
	updates <- 2
	if took := (<-handled).Sub(first); took > 2*followRestMax {
		t.Errorf("the second change was handled %s after the first, want about %s", took, followRestMax)
	}
	close(v.done)
	close(updates)
	v.wg.Wait()
}

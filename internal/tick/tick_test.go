// SPDX-License-Identifier: Apache-2.0

package tick

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestTicksOfDifferentIntervalsCoincide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start = time.Now()
		time.Sleep(300 * time.Millisecond)
		for _, x := range []struct{ every, want time.Duration }{
			{time.Second, time.Second},
			{time.Second, 2 * time.Second},
			{5 * time.Second, 5 * time.Second},
			{time.Second, 6 * time.Second},
			{500 * time.Millisecond, 6500 * time.Millisecond},
			{time.Second, 7 * time.Second},
		} {
			<-After(x.every)
			if got := time.Since(start); got != x.want {
				t.Errorf("the next tick of %v is %v after the start, want %v", x.every, got, x.want)
			}
		}
	})
}

func TestUntilIsPositive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start = time.Now()
		if got := Until(time.Second); got != time.Second {
			t.Errorf("at a tick, the next one is due after %v, want 1s", got)
		}
		start = start.Add(900 * time.Millisecond)
		if got := Until(time.Second); got != 900*time.Millisecond {
			t.Errorf("900 ms before the start, the next tick is due after %v, want 900ms", got)
		}
	})
}

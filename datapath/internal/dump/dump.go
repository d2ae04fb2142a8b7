// SPDX-License-Identifier: Apache-2.0

// Package dump provides the helper for all netlink dumps that concurrent changes may interrupt.
package dump

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"
)

// patience limits how long a dump is retried.
const patience = 3 * time.Second

// Retry repeats a dump that a change interrupted, until it is complete. If the changes do not stop,
// it fails with [netlink.ErrDumpInterrupted] after some seconds.
func Retry[T any](list func() (T, error)) (t T, err error) {
	end := time.Now().Add(patience)
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		if t, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) || time.Now().After(end) {
			return t, err
		}
		time.Sleep(pause)
	}
}

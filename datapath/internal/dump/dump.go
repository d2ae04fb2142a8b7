// SPDX-License-Identifier: Apache-2.0

// Package dump has the one helper through which everything is listed that the
// kernel may change meanwhile.
package dump

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"
)

// patience bounds how long a listing is repeated.
const patience = 3 * time.Second

// Retry repeats a listing that a change interrupted, until it is whole. Changes that
// never end make it fail with [netlink.ErrDumpInterrupted] after seconds.
func Retry[T any](list func() (T, error)) (t T, err error) {
	end := time.Now().Add(patience)
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		if t, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) || time.Now().After(end) {
			return t, err
		}
		time.Sleep(pause)
	}
}

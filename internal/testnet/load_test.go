// SPDX-License-Identifier: Apache-2.0

package testnet

import (
	"testing"
	"time"
)

func TestExtended(t *testing.T) {
	for loadavg, want := range map[string]time.Duration{
		"0.50 0.40 0.30 1/300 4711":  time.Second,
		"8.00 0.40 0.30 1/300 4711":  4 * time.Second,
		"0.50 0.40 0.30 12/300 4711": 6 * time.Second,
		"":                           time.Second,
	} {
		if got := extended(time.Second, loadavg, 2); got != want {
			t.Errorf("%q: %s, want %s", loadavg, got, want)
		}
	}
}

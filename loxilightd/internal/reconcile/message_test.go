// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// TestMessagesOnce: if two tables report the same message for a row, it appears once, on one
// line.
func TestMessagesOnce(t *testing.T) {
	nope := func() error { return fmt.Errorf("tunnel %q: %w", "nope", datapath.ErrAbsent) }
	for want, err := range map[string]error{
		`tunnel "nope": does not exist`:                     errors.Join(nope(), nope()),
		`peer: tunnel "nope": does not exist`:               fmt.Errorf("peer: %w", errors.Join(nope(), errors.Join(nil, nope()))),
		`tunnel "nope": does not exist; device "x" is down`: errors.Join(nope(), errors.New(`device "x" is down`), nope()),
		`one; two`:         errors.New("one\ntwo"),
		`not there; there`: errors.New("not there\nthere"),
	} {
		if s := statusOf(err, 1, 0); s.Message != want {
			t.Errorf("%q, want %q", s.Message, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// TestMemoryMayComeBack: a start that failed for lack of memory may be repeated.
func TestMemoryMayComeBack(t *testing.T) {
	for err, refused := range map[error]bool{unix.ENOMEM: false, unix.EAGAIN: false, unix.EINVAL: true, unix.E2BIG: true} {
		if got := refusedProgram("ll_x", Host, fmt.Errorf("load program: %w", err)); errors.Is(got, datapath.ErrRefused) != refused || !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
}

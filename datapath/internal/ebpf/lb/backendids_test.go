// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// TestBackendIDStaysFree: an id whose counters cannot be set to zero stays free.
func TestBackendIDStaysFree(t *testing.T) {
	all, _ := testtables.New(t, datapath.Tables{Backends: 16}, &testmap.Faults{Fail: func() error { return unix.EIO }})
	ids := newBackendIDs(all)
	ids.next, ids.free = 8, []uint32{7}
	for range 2 {
		if id, err := ids.take(); !errors.Is(err, unix.EIO) {
			t.Fatalf("id %d without its counters: %v", id, err)
		}
	}
	if len(ids.free) != 1 || ids.free[0] != 7 {
		t.Errorf("free ids %v, want 7", ids.free)
	}
}

// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

// TestBrieflyPending: CHECK and STATUS wait while objects are Pending, but not forever.
func TestBrieflyPending(t *testing.T) {
	n := newNode(t)
	n.starts = time.Now() // the daemon does not count as starting
	with := map[string]any{"prevResult": n.mustAdd("c1", nil)}
	for _, command := range []struct {
		name, container string
		conf            map[string]any
	}{{api.CNICheck, "c1", with}, {api.CNIStatus, "", nil}} {
		n.desired.set(func() { n.desired.brief = 5 })
		if err := n.command(command.name, command.container, command.conf); err != nil {
			t.Errorf("%s while an object is Pending for 100 ms: %v", command.name, err)
		}
		n.desired.set(func() { n.desired.brief = 1 << 20 })
		begin := time.Now()
		if err := n.command(command.name, command.container, command.conf); err == nil || !strings.Contains(err.Message, "being applied") {
			t.Errorf("%s while an object stays Pending: %v", command.name, err)
		}
		if took := time.Since(begin); took < pendingPatience || took > pendingPatience+5*time.Second {
			t.Errorf("%s answered after %s, want %s", command.name, took, pendingPatience)
		}
		n.desired.set(func() { n.desired.brief = 0 })
	}
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// TestHundredThousandObjects stages a transaction of 100,000 objects and commits it, which the
// memory limits must allow. A reader does a dry run that deletes all of them.
func TestHundredThousandObjects(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	tables := datapath.DefaultTables()
	tables.Services, tables.Backends = 1<<17, 1<<18
	h := newHarnessAt(t, t.TempDir(), tables)
	const all, each = 100_000, 2_500
	for from := 0; from < all; from += each {
		var b strings.Builder
		for i := from; i < from+each; i++ {
			fmt.Fprintf(&b, `,{"kind":"Service","name":"shop/web-%d","labels":{"team":"shop"},"spec":{"frontends":["10.%d.%d.%d:80/tcp"],"backends":[{"address":"10.0.1.2:8080"},{"address":"10.0.1.3:8080"}]}}`,
				i, 100+i>>16, i>>8&255, i&255)
		}
		more := from+each < all
		h.wants(admin, "apply", fmt.Sprintf(`{"transaction":"t","more":%t,"objects":[%s]}`, more, b.String()[1:]), `"revision"`)
	}
	if n := h.Store.Snapshot().Len(); n != all {
		t.Errorf("%d objects, want %d", n, all)
	}
	h.wants(reader, "replace", `{"dryRun":true,"owner":"cli","kinds":["Service"],"objects":[]}`, `"deleted":100000`)
}

// wants fails the test unless the answer contains the text want.
func (h *harness) wants(c Caller, method, params, want string) {
	h.t.Helper()
	if got := h.ask(c, method, params); !strings.Contains(got, want) {
		h.t.Fatalf("%s: %.300s; want %s in it", method, got, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testkube"
)

// TestPagesThatFail: a list with a failed page is not used. Objects from an earlier agent stay
// until a complete list arrives.
func TestPagesThatFail(t *testing.T) {
	for name, fault := range map[string]func(http.ResponseWriter){
		"gone":  func(w http.ResponseWriter) { w.WriteHeader(http.StatusGone) },
		"error": func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"slow": func(w http.ResponseWriter) {
			time.Sleep(300 * time.Millisecond) // slow, and then cut off
			panic(http.ErrAbortHandler)
		},
		"empty": func(w http.ResponseWriter) {
			_, _ = w.Write([]byte(`{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]`)) // not even complete JSON
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.leftover("old")
			const count = 700 // more than a page
			for i := range count {
				w.kube.Set(node(fmt.Sprintf("x%d", i), fmt.Sprintf("198.18.%d.%d", i/200, 1+i%200), fmt.Sprintf("10.%d.%d.0/24", 128+i/200, i%200)))
			}
			w.kube.NoStreams(true)
			var failed atomic.Int32
			const failures = 3
			w.kube.Fault(func(rw http.ResponseWriter, r *http.Request) bool {
				next := r.URL.Query().Get("continue") != "" || name == "gone" && r.URL.Query().Get("limit") == ""
				if !next || r.URL.Query().Get("watch") != "" || !strings.HasSuffix(r.URL.Path, "/"+testkube.Nodes) || failed.Load() >= failures {
					return false
				}
				if got := w.daemon.names(api.KindPeer); got != "old" {
					t.Errorf("the daemon has %q before there is a whole list", got)
				}
				failed.Add(1)
				fault(rw)
				return true
			})
			w.agent()
			eventually(t, "all nodes", func() bool {
				status, err := w.daemon.Status(t.Context())
				return err == nil && status.Objects[api.KindPeer] == count+1 && w.daemon.has()["Peer/old"] == ""
			})
			if failed.Load() != failures {
				t.Errorf("%d pages failed, want %d: the test shows less than it should", failed.Load(), failures)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestSoak changes objects at random, by every method that changes them, and checks that memory,
// goroutines and the size of the store do not grow after the first quarter. LOXILIGHT_SOAK=15m
// makes the test longer than a few seconds.
func TestSoak(t *testing.T) {
	length := 4 * time.Second
	if text := os.Getenv("LOXILIGHT_SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	h := newHarnessWith(t, state.Config{
		Dir: dir, Tables: datapath.DefaultTables(), History: state.HistoryLimits{Revisions: 50, Bytes: 1 << 20}, // the history is full before the warm-up ends
	})
	h.Publish = func(string, Event) error { return nil }
	h.run()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	const steps = 8 // the first quarter is a warm-up
	var heap, goroutines, file [steps]int
	refused, requests := 0, 0
	for i := range steps {
		for deadline := time.Now().Add(length / steps); time.Now().Before(deadline); requests++ {
			method, params := churn(r)
			if answer := h.ask(admin, method, params); strings.Contains(answer, `"code"`) {
				refused++
			}
		}
		heap[i], goroutines[i], file[i] = measure(t, filepath.Join(dir, "state.db"))
	}
	t.Logf("%d requests, %d refused; heap %v, goroutines %v, file %v", requests, refused, heap, goroutines, file)
	if requests < 100 || refused > requests/2 {
		t.Errorf("%d of %d requests were refused: no good test", refused, requests)
	}
	last, warm := steps-1, steps/4
	if heap[last] > heap[warm]+16<<20 || goroutines[last] > goroutines[warm]+2 || file[last] > 2*file[warm]+16<<20 {
		t.Errorf("something grows: heap %v, goroutines %v, file %v", heap, goroutines, file)
	}
}

func measure(t *testing.T, path string) (heap, goroutines, file int) {
	t.Helper()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(m.HeapAlloc), runtime.NumGoroutine(), int(info.Size())
}

// churn returns a random request.
func churn(r *rand.Rand) (method, params string) {
	list := func(write func(i int) string) string {
		items := make([]string, 1+r.IntN(40))
		first := r.IntN(500)
		for i := range items {
			items[i] = write(first + i)
		}
		return strings.Join(items, ",")
	}
	service := func(i int) string {
		backends := make([]string, r.IntN(30))
		for j := range backends {
			backends[j] = fmt.Sprintf(`{"address":"10.%d.%d.%d:%d"}`, 1+j, i>>8, i&255, 1+r.IntN(65535))
		}
		return fmt.Sprintf(`{"kind":"Service","name":"s%d","spec":{"frontends":["10.96.%d.%d:%d/tcp"],"backends":[%s]}}`,
			i, i>>8, i&255, 80+r.IntN(2), strings.Join(backends, ","))
	}
	ref := func(i int) string { return fmt.Sprintf(`{"kind":"Service","name":"s%d"}`, i) }
	id := fmt.Sprint(r.IntN(1 << 20))
	switch r.IntN(6) {
	case 0:
		return "delete", `{"requestID":"` + id + `","objects":[` + list(ref) + `]}`
	case 1:
		return "replace", `{"owner":"cli","kinds":["Service"],"objects":[` + list(service) + `]}`
	case 2:
		return "apply", `{"transaction":"t` + fmt.Sprint(r.IntN(8)) + `","more":true,"objects":[` + list(service) + `]}`
	case 3:
		return "apply", `{"transaction":"t` + fmt.Sprint(r.IntN(8)) + `","objects":[]}`
	default:
		return "apply", `{"requestID":"` + id + `","objects":[` + list(service) + `]}`
	}
}

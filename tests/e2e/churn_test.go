// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// entries counts the entries of the maps whose content depends on services and connections, by
// name.
func (s *site) entries(t *testing.T) map[string]int {
	t.Helper()
	counts := make(map[string]int)
	paths, err := filepath.Glob(s.PinDir + "/layout-*/ll_*")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no maps in %s: %v", s.PinDir, err)
	}
	for _, path := range paths {
		m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		switch m.Type() {
		case ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LPMTrie:
			n := 0
			var key []byte
			for next := []byte(nil); ; n++ {
				if key == nil {
					err = m.NextKey(nil, &next)
				} else {
					err = m.NextKey(key, &next)
				}
				if err != nil {
					break
				}
				key = next
			}
			counts[filepath.Base(path)] = n
		case ebpf.Array:
			if strings.HasSuffix(path, "ll_backend") {
				counts["ll_backend"] = usedBackends(t, m)
			}
		}
		m.Close()
	}
	return counts
}

// usedBackends counts the entries of an array that are not zero.
func usedBackends(t *testing.T, m *ebpf.Map) (n int) {
	t.Helper()
	var cursor ebpf.MapBatchCursor
	const batch = 4096
	keys, values := make([]uint32, batch), make([][32]byte, batch)
	for {
		got, err := m.BatchLookup(&cursor, keys, values, nil)
		for _, v := range values[:got] {
			if v != ([32]byte{}) {
				n++
			}
		}
		if err != nil {
			return n // the end
		}
	}
}

// weight returns the resources of a process: file descriptors, and memory of its own in MiB.
func weight(t *testing.T, pid int) (fds, mib int) {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			mib = kib >> 10
		}
	}
	return len(all), mib
}

// expectEntries waits until the maps have as many entries as before, except for connections.
func (s *site) expectEntries(t *testing.T, before map[string]int) {
	t.Helper()
	var more map[string]int
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		more = make(map[string]int)
		for name, n := range s.entries(t) {
			if n != before[name] && name != "ll_ct4" {
				more[name] = n - before[name]
			}
		}
		if len(more) == 0 {
			return
		}
	}
	t.Fatalf("the maps hold more than before: %v", more)
}

// TestChurn: ten thousand services are added and removed five times. Afterwards the maps
// have their original contents, and the daemon is no larger than after the second time.
func TestChurn(t *testing.T) {
	const owners, each, rounds = 10, 1000, 5
	t.Setenv("GOGC", "10") // so that the daemon's memory is close to its live data
	s := newSite(t)
	s.Configure("tables: {connections: 4096, services: 16384, backends: 16384, affinity: 1024, ranges: 1024}")
	s.start()
	s.serve(s.backends[0], "10.0.1.2:8080", "b1")
	s.Apply(serviceYAML("web", []string{vip4 + ":9000/tcp"}, []string{"10.0.1.2:8080"}))
	replace := func(count, generation int) {
		t.Helper()
		var wg sync.WaitGroup
		for w := range owners {
			wg.Go(func() {
				if err := s.replaceServices(t.Context(), fmt.Sprint("w", w), w+1, count, generation, 60*time.Second); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	before := s.entries(t)
	var fdsFirst, mibFirst int // the maximum of the first two rounds
	begin := time.Now()
	for round := range rounds {
		replace(each, round)
		if n := s.entries(t)["ll_service"]; n != owners*each+1 {
			t.Fatalf("round %d: %d frontends, want %d", round, n, owners*each+1)
		}
		replace(0, round)
		s.expectEntries(t, before)
		fds, mib := weight(t, s.Process().PID())
		t.Logf("round %d after %s: %d descriptors, %d MiB", round, time.Since(begin).Round(time.Millisecond), fds, mib)
		if round < 2 {
			fdsFirst, mibFirst = max(fds, fdsFirst), max(mib, mibFirst)
		} else if fds > fdsFirst+2 || mib > mibFirst+16 {
			t.Errorf("round %d: %d descriptors and %d MiB, after the second %d and %d", round, fds, mib, fdsFirst, mibFirst)
		}
	}
	t.Logf("all that took %s", time.Since(begin))
	if name, err := talkTCP(s.client, "", vip4+":9000", nil); name != "b1" || err != nil {
		t.Errorf("the service that stayed: %q, %v", name, err)
	}
}

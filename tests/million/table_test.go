// SPDX-License-Identifier: Apache-2.0

package million

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// hookPrograms returns the programs that run for packets which enter the node. The caller closes them.
func (s *site) hookPrograms(t *testing.T) (all []*ebpf.Program) {
	t.Helper()
	status, err := s.Client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[uint32]bool)
	for _, h := range status.Datapath.Hooks {
		if !strings.HasSuffix(h.Hook, "-ingress") || seen[h.ID] {
			continue
		}
		seen[h.ID] = true
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(h.ID))
		if err != nil {
			t.Fatalf("program %d on %s: %v", h.ID, h.Device, err)
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		t.Fatalf("no programs on the devices of the node: %v", status.Datapath.Hooks)
	}
	return all
}

// tableBytes returns the number and the memory of the segments of the IPv4 connection table.
func (s *site) tableBytes(t *testing.T) (segments int, bytes uint64) {
	t.Helper()
	const name = "ll_ct4"
	for _, p := range s.hookPrograms(t) {
		defer p.Close() // only closes a file descriptor
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		ids, _ := info.MapIDs()
		for _, id := range ids {
			m, err := ebpf.NewMapFromID(id)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close() // nothing was written
			if info, err := m.Info(); err != nil || info.Name != name {
				continue
			}
			return segmentBytes(t, m)
		}
	}
	t.Fatalf("no program has a map %s", name)
	return 0, 0
}

func segmentBytes(t *testing.T, table *ebpf.Map) (segments int, bytes uint64) {
	t.Helper()
	for i := range table.MaxEntries() {
		var segment *ebpf.Map
		if err := table.Lookup(i, &segment); errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		} else if err != nil {
			t.Fatalf("segment %d: %v", i, err)
		}
		info, err := segment.Info()
		if err != nil {
			t.Fatal(err)
		}
		segment.Close() // nothing was written
		memory, ok := info.Memlock()
		if !ok {
			t.Fatal("the kernel does not report the memory of maps")
		}
		segments, bytes = segments+1, bytes+memory
	}
	return segments, bytes
}

// packetCost runs fn and returns the number of packets that enter the node meanwhile, and the time
// that our programs take for each of them.
func (s *site) packetCost(t *testing.T, fn func()) (packets uint64, each time.Duration) {
	t.Helper()
	on, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		t.Fatal(err)
	}
	defer on.Close() // only closes a file descriptor
	all := s.hookPrograms(t)
	sum := func() (packets uint64, time time.Duration) {
		for _, p := range all {
			stats, err := p.Stats()
			if err != nil {
				t.Fatal(err)
			}
			packets, time = packets+stats.RunCount, time+stats.Runtime
		}
		return packets, time
	}
	packetsBefore, before := sum()
	fn()
	packets, took := sum()
	for _, p := range all {
		p.Close() // only closes a file descriptor
	}
	if packets -= packetsBefore; packets == 0 {
		t.Fatal("our programs have seen no packet")
	}
	return packets, (took - before) / time.Duration(packets)
}

// resizes returns the lines of a log that report a new size of the IPv4 connection table.
func resizes(log string) (lines []string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "table of connections") && !strings.Contains(line, "IPv6") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

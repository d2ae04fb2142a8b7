// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testreport"
)

const idleObjects = `
kind: Interface
name: eth0
spec: {device: eth0}
---
kind: PodNetwork
name: default
spec: {subnets: [10.73.3.0/24, "2001:db8:73::/64"], masquerade: {enabled: true}}
---
kind: Bridge
name: lan
spec: {device: br7}
---
kind: Service
name: web
spec: {frontends: ["198.51.100.10:80/tcp"], backends: [{address: "10.73.3.3:8080"}, {address: "10.73.3.4:8080"}]}
---
kind: Tier
name: main
spec: {order: 200, always: [self, node]}
---
kind: Policy
name: db
spec:
  tier: main
  isolate: [ingress]
  appliedTo: [{entities: {matchLabels: {app: pod1}}}]
  ingress:
    - action: allow
      from: [{entities: {matchLabels: {app: pod2}}}]
      ports: [{protocol: tcp, port: 8080}]
`

// idleSite is a node with a machine outside, and a daemon with tables of default sizes.
//
//	outside 192.0.2.77 ── 192.0.2.1 eth0 [node] loxi_test ══ hs_host ┐
//	                       pods 10.73.3.3, 10.73.3.4 ── hs1, hs2 ────┴ hsvlan110 [switch]
type idleSite struct {
	*testdaemon.Daemon
	name string // of the switch's namespace
}

func newIdleSite(b *testing.B) *idleSite {
	s := &idleSite{name: testnet.UniqueName("switch")}
	node, outside := testnet.New(b, "node"), testnet.New(b, "outside")
	testnet.Veth(b, testnet.Port{NS: node, Name: "eth0", Addrs: []string{"192.0.2.1/24"}},
		testnet.Port{NS: outside, Name: "eth0", Addrs: []string{"192.0.2.77/24"}})
	node.Forward(b)
	s.Daemon = testdaemon.New(b, node, programs, "switch: {namespace: "+s.name+"}")
	s.Start()
	return s
}

// configure applies the objects, with two pods.
func (s *idleSite) configure(b *testing.B) {
	objects := idleObjects
	for i := 1; i <= 2; i++ {
		objects += fmt.Sprintf(`---
kind: Endpoint
name: shop/pod%[1]d
spec: {device: hs%[1]d, addresses: [10.73.3.%[2]d, "2001:db8:73::%[2]d"], mac: "02:00:5e:72:00:0%[2]d", network: default, namespace: shop, pod: pod%[1]d, labels: {app: pod%[1]d}}
`, i, i+2)
	}
	s.LLCLI("apply", "-f", s.File(objects))
	b.Cleanup(func() { testnet.DeleteNamed(b, s.name) })
	testnet.Eventually(b, patience, "the switch exists", func() bool {
		return strings.Contains(s.LLCLI("kernel", "bridges"), "hsvlan110")
	})
	sw := testnet.Named(b, s.name)
	for i := 1; i <= 2; i++ {
		device := fmt.Sprintf("hs%d", i)
		testnet.Veth(b, testnet.Port{NS: sw, Name: device}, testnet.Port{
			NS: testnet.New(b, "pod"), Name: "eth0", MAC: fmt.Sprintf("02:00:5e:72:00:0%d", i+2),
			Addrs: []string{fmt.Sprintf("10.73.3.%d/24", i+2), fmt.Sprintf("2001:db8:73::%d/64", i+2)},
		})
	}
	s.Apply(objects)
}

// usage is what an idle daemon uses.
type usage struct {
	share    float64 // of a processor
	switches float64 // voluntary context switches a second
	tables   uint64  // bytes
}

// measure waits until the daemon is idle, and returns its usage in a minute.
func (s *idleSite) measure(b *testing.B) usage {
	time.Sleep(15 * time.Second)
	pid := s.Process().PID()
	begin, cpu, switches := time.Now(), processorClock(b, pid), switchesOf(b, pid)
	time.Sleep(time.Minute)
	span := time.Since(begin)
	return usage{
		share:    float64(processorClock(b, pid)-cpu) / float64(span),
		switches: float64(switchesOf(b, pid)-switches) / span.Seconds(),
		tables:   pinnedBytes(b, s.PinDir),
	}
}

// processorClock returns the processor time that a process has used.
func processorClock(b *testing.B, pid int) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &now); err != nil { // CPUCLOCK_SCHED
		b.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// switchesOf returns the number of voluntary context switches of the threads of a process.
func switchesOf(b *testing.B, pid int) (sum int) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // a thread may have ended
		_, rest, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
		n := 0
		_, _ = fmt.Sscan(rest, &n)
		sum += n
	}
	return sum
}

// pinnedBytes returns the memory of the maps that are pinned below dir, with the maps in them.
func pinnedBytes(b *testing.B, dir string) (sum uint64) {
	files, err := filepath.Glob(filepath.Join(dir, "layout-*", "ll_*"))
	if err != nil {
		b.Fatal(err)
	}
	add := func(m *ebpf.Map) {
		info, err := m.Info()
		if err != nil {
			b.Fatal(err)
		}
		bytes, _ := info.Memlock()
		sum += bytes
	}
	for _, file := range files {
		m, err := ebpf.LoadPinnedMap(file, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer m.Close()
		add(m)
		if m.Type() != ebpf.ArrayOfMaps {
			continue
		}
		for i := range m.MaxEntries() {
			var inner *ebpf.Map
			if err := m.Lookup(i, &inner); errors.Is(err, ebpf.ErrKeyNotExist) {
				continue
			} else if err != nil {
				b.Fatal(err)
			}
			add(inner)
			inner.Close()
		}
	}
	return sum
}

// BenchmarkIdle measures the daemon with tables of default sizes while nothing happens. The environment
// variable LOXILIGHT_REPORT is the file whose part it replaces.
func BenchmarkIdle(b *testing.B) {
	testnet.RequireRoot(b)
	machine, err := testreport.Machine()
	if err != nil {
		b.Fatal(err)
	}
	var rows []string
	row := func(name string, u usage) {
		rows = append(rows, fmt.Sprintf("| %s | %.2f %% | %.0f | %.1f MiB |", name, 100*u.share, u.switches, float64(u.tables)/(1<<20)))
	}
	for b.Loop() {
		rows = nil
		s := newIdleSite(b)
		row("none", s.measure(b))
		s.configure(b)
		row("8, of 7 kinds, with 2 pods", s.measure(b))
	}
	part := fmt.Sprintf(`## The idle daemon
Written by %[1]smake bench-idle%[1]s on %[2]s: %[3]s; loxilight %[4]s. Do not edit; run it again.

What the daemon uses in a minute without packets and changes, with tables of default sizes. At most
0.1 %% of a processor and 100 MiB are asked without objects. Other load on the machine adds to it.

| objects | of a processor | context switches a second | all tables |
|---|---|---|---|
%[5]s
`, "`", time.Now().Format(time.DateOnly), machine, os.Getenv("LOXILIGHT_VERSION"), strings.Join(rows, "\n"))
	b.Log("\n" + part)
	if path := os.Getenv("LOXILIGHT_REPORT"); path != "" {
		if err := testreport.Write(path, testreport.Idle, part); err != nil {
			b.Fatal(err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testdaemon"
)

// TestRun: every part of a run works with our own daemon, reports all its rows, and leaves nothing
// behind.
func TestRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_BPF")
	}
	temp := t.TempDir()
	programs, err := testdaemon.Build(temp)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", temp)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // on a busy machine
	defer cancel()
	b := &bench{
		daemon: programs.Daemon, paths: []string{pathKernel, pathOurs}, report: &report{}, rounds: 1, packetCount: 2000,
		connectionsMax: 1024, tableSize: 1 << 14, serviceCount: 20, rulesMax: 1000, policyScale: policyScale{pods: 100, local: 5, policies: 1000 + 3, ofServer: 3}, tcpConnections: 200, tcpRequests: 200, bulkTime: 20 * time.Millisecond,
		sharedRigs: true, otherTables: "services: 256, backends: 4096, affinity: 64, ranges: 64",
		bulkOffloads: []bool{true, false}, bulkStreams: []int{1, 4},
	}
	if err := b.all(ctx, nil); err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, s := range b.report.sections {
		for _, row := range s.rows {
			rows++
			if len(row) != len(s.columns) {
				t.Errorf("%s: row %q does not fit columns %q", s.title, row, s.columns)
			}
		}
	}
	const plain = 2 + 2 + 8 // packets, requests, bulk
	// run, routed and bridged, rules, udp, new flows, one-way UDP, memory, services, packets through them, tcp, bulk, pods, NAT, between nodes, pod to pod, policies
	want := 13 + 2*plain + 3 + 5 + 1 + 2 + 2 + 1 + 2 + 4 + 8 + 6 + 4 + 4 + 3 + 2 + 3 + 4
	if len(b.report.failures) != 0 {
		t.Errorf("failures: %q", b.report.failures)
	}
	if rows != want {
		var text strings.Builder
		if err := b.report.write(&text); err != nil {
			t.Fatal(err)
		}
		t.Errorf("%d rows, want %d:\n%s", rows, want, text.String())
	}
	left, err := os.ReadDir(temp)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		if strings.HasPrefix(entry.Name(), tempPrefix) {
			t.Errorf("%s is left behind", entry.Name())
		}
	}
}

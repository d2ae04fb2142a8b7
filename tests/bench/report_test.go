// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSpreadIsTheQuartiles(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   spread
	}{
		{[]float64{7}, spread{7, 7, 7}},
		{[]float64{5, 1, 4, 2, 3}, spread{2, 3, 4}},
		{[]float64{40, 10, 30, 20}, spread{17.5, 25, 32.5}},
	} {
		if got := spreadOf(tt.values); got != tt.want {
			t.Errorf("spreadOf(%v) = %+v, want %+v", tt.values, got, tt.want)
		}
	}
}

// TestRatiosAreTakenWithinARound: a machine that becomes ten times slower halfway does not change
// the ratios.
func TestRatiosAreTakenWithinARound(t *testing.T) {
	rigs := []*rig{{name: pathKernel}, {name: pathOurs}}
	calls := 0
	c, err := compare(context.Background(), rigs, 6, func(r *rig) (float64, error) {
		figure := 100.0
		if calls/2 >= 4 { // the first round does not count
			figure = 10
		}
		calls++
		if r.name == pathOurs {
			figure *= 1.5
		}
		return figure, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls != 14 || len(c.rounds) != 6 {
		t.Errorf("%d measurements, %d rounds, want 14 and 6", calls, len(c.rounds))
	}
	if got, ok := c.ratio(pathOurs, pathKernel); !ok || got != (spread{1.5, 1.5, 1.5}) {
		t.Errorf("ratio %+v, %v, want 1.5 throughout", got, ok)
	}
	if _, ok := c.ratio(pathOurs, pathNftables); ok {
		t.Error("a ratio to a path that was not measured")
	}
}

func TestReport(t *testing.T) {
	r := &report{machine: "Linux 6.1, 2 CPUs (some)", version: "1.2", rounds: 7, at: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)}
	c := comparison{rounds: []map[string]float64{
		{pathKernel: 2e6, pathNftables: 1e6, pathOurs: 3e6},
		{pathKernel: 4e6, pathNftables: 2e6, pathOurs: 6e6},
	}}
	s := r.section("Packets", "Millions.", append([]string{"connections"}, pathKernel, pathNftables, pathOurs, "to nftables")...)
	s.row(append([]string{grouped(1234567)}, c.cells(1e6, "%.2f")...)...)
	r.section("Nothing", "was measured here", "a")
	r.atLeast("packets", c, pathOurs, pathKernel, 1.4)
	r.atLeast("packets", c, pathOurs, pathNftables, 3.1)
	r.atMost("one change", 51, 50, "ms")
	r.failures = []string{"udp: gone"}
	var b strings.Builder
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"on 2026-11-21: Linux 6.1, 2 CPUs (some); loxilight 1.2.",
		"the median of 7 rounds",
		"\n| connections | kernel routing | nftables | loxilight | to nftables |\n|---|---|---|---|---|\n" +
			"| 1,234,567 | 3.00 | 0.50 (0.50–0.50) | 1.50 (1.50–1.50) | 3.00 (3.00–3.00) |\n",
		"| packets, to kernel routing | at least 1.4 | 1.50 (1.50–1.50) | yes |",
		"| packets, to nftables | at least 3.1 | 3.00 (3.00–3.00) | **no** |",
		"| one change | at most 50 ms | 51 ms | **no** |",
		"**Not measured:** udp: gone",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "Nothing") {
		t.Error("the report has a table without rows")
	}
	if r.missed != 2 {
		t.Errorf("%d targets missed, want 2", r.missed)
	}
}

// TestReportCarriesParts: the part from make scale-k8s is kept when the rest is rewritten.
func TestReportCarriesParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "benchmarks.md")
	const part = "<!-- part kubernetes -->\n## Kubernetes at scale\n| 37 ms |\n<!-- end of part kubernetes -->\n"
	b := &bench{report: &report{machine: "here", at: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)}}
	for _, old := range []string{"", "# Benchmarks\n\n## Gone\n\n" + part + "\n## Review notes\n"} {
		if old != "" {
			if err := os.WriteFile(path, []byte(old), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.write(path); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "on 2026-11-21: here") || strings.Contains(string(text), "Gone") {
			t.Errorf("%v:\n%s", err, text)
		}
		if strings.Contains(string(text), part+reportTail) != (old != "") {
			t.Errorf("the part is not carried along:\n%s", text)
		}
	}
	if err := os.WriteFile(path, []byte("<!-- part kubernetes -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := b.write(path); err == nil || !strings.Contains(err.Error(), "is unchanged") {
		t.Errorf("a part that was damaged is overwritten: %v", err)
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 65536: "65,536", 1000000: "1,000,000"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %s, want %s", n, got, want)
		}
	}
}

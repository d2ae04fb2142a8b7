// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testreport"
)

const partHead = `## Kubernetes at scale
Written by ` + "`make scale-k8s`" + ` on %s: %s, which carried API server, etcd and both nodes; loxilight %s.
Do not edit; run ` + "`make scale-k8s`" + ` again.

A real API server with %s Services of %d endpoints and %d Nodes. Daemon and agent start from nothing
on one node, then kube-proxy (nftables) on another. Then EndpointSlices change %d times, and on both
nodes at once, a client connects to the Service until it is served.

`

// part returns the results of a run, for docs/benchmarks.md.
func part(machine string, services, nodes int, took time.Duration, all []*contestant) string {
	version := os.Getenv("LOXILIGHT_VERSION")
	if version == "" {
		version = "of unknown version"
	}
	var b strings.Builder
	fmt.Fprintf(&b, partHead, time.Now().UTC().Format(time.DateOnly), machine, version, grouped(services), endpoints, nodes, 2*samples)
	row := func(what string, cell func(*contestant) string) {
		b.WriteString("| " + what + " |")
		for _, one := range all {
			b.WriteString(" " + cell(one) + " |")
		}
		b.WriteString("\n")
	}
	row("", func(one *contestant) string { return one.name })
	b.WriteString("|---|" + strings.Repeat("---|", len(all)) + "\n")
	row("from its start until all is served", func(one *contestant) string { return rounded(one.inStep) })
	row("from the change of an EndpointSlice to the first connection: half within, 99 % within", func(one *contestant) string {
		return rounded(one.waits[len(one.waits)/2]) + ", " + rounded(one.waits[len(one.waits)*99/100])
	})
	row("resident memory after that", func(one *contestant) string {
		var texts []string
		for _, c := range one.after {
			texts = append(texts, fmt.Sprintf("%d MB %s", c.resident, c.name))
		}
		return strings.Join(texts, ", ")
	})
	row(fmt.Sprintf("processor time for the %d changes in %s", 2*samples, took.Round(time.Second)), func(one *contestant) string {
		return fmt.Sprintf("%.0f s", seconds(one.after)-seconds(one.before))
	})
	return b.String()
}

// grouped writes a number below a million with a comma between thousands.
func grouped(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

func seconds(all []cost) (sum float64) {
	for _, c := range all {
		sum += c.seconds
	}
	return sum
}

// rounded writes a time in milliseconds, or in seconds if it is long.
func rounded(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// TestPart: the results of a run replace the earlier ones in the document.
func TestPart(t *testing.T) {
	t.Setenv("LOXILIGHT_VERSION", "1.2")
	all := []*contestant{
		{
			name: "loxilight", inStep: 3041 * time.Millisecond, waits: []time.Duration{11 * time.Millisecond, 37 * time.Millisecond},
			before: []cost{{"loxilight-agent", 30, 1.5}, {"loxilightd", 70, 2}}, after: []cost{{"loxilight-agent", 40, 11.5}, {"loxilightd", 80, 14}},
		},
		{
			name: "kube-proxy (nftables)", inStep: 4100 * time.Millisecond, waits: []time.Duration{time.Second, 9600 * time.Millisecond},
			before: []cost{{"kube-proxy", 380, 3}}, after: []cost{{"kube-proxy", 384, 253}},
		},
	}
	text := part("Linux 6.1", 5000, 500, 11*time.Minute, all)
	path := t.TempDir() + "/benchmarks.md"
	if err := os.WriteFile(path, []byte("# Benchmarks\n\n## Review notes\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := testreport.Write(path, testreport.Kubernetes, text); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := "|  | loxilight | kube-proxy (nftables) |\n|---|---|---|\n" +
		"| from its start until all is served | 3.0 s | 4.1 s |\n" +
		"| from the change of an EndpointSlice to the first connection: half within, 99 % within | 37 ms, 37 ms | 9.6 s, 9.6 s |\n" +
		"| resident memory after that | 40 MB loxilight-agent, 80 MB loxilightd | 384 MB kube-proxy |\n" +
		"| processor time for the 200 changes in 11m0s | 22 s | 250 s |\n"
	if strings.Count(string(got), want) != 1 || !strings.Contains(string(got), ": Linux 6.1, which carried") || !strings.Contains(string(got), "loxilight 1.2.") || !strings.Contains(string(got), "5,000 Services") {
		t.Errorf("the document is\n%s", got)
	}
}

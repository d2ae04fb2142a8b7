// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// report is the result of a run, for docs/benchmarks.md.
type report struct {
	machine  string
	mu       sync.Mutex // of version
	version  string
	at       time.Time
	rounds   int
	emulated bool // the machine is emulated by QEMU: docs/benchmarks-qemu.md
	sections []*section
	targets  []string
	missed   int
	failures []string
}

// note takes over the version of a daemon. It is safe for concurrent use.
func (r *report) note(ctx context.Context, d *loxilight) error {
	version, err := d.version(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version = version
	return err
}

// section is one table of the report.
type section struct {
	title, text string
	columns     []string
	rows        [][]string
}

// section begins a table.
func (r *report) section(title, text string, columns ...string) *section {
	s := &section{title: title, text: text, columns: columns}
	r.sections = append(r.sections, s)
	return s
}

func (s *section) row(cells ...string) { s.rows = append(s.rows, cells) }

// atLeast records the ratio of path a to b with its target.
func (r *report) atLeast(what string, c comparison, a, b string, want float64) {
	if got, ok := c.ratio(a, b); ok {
		r.target(what+", to "+b, got.String(), fmt.Sprintf("at least %g", want), got.median >= want)
	}
}

// atMost records a measured value with its target.
func (r *report) atMost(what string, got, want float64, unit string) {
	r.target(what, fmt.Sprintf("%.4g %s", got, unit), fmt.Sprintf("at most %g %s", want, unit), got <= want)
}

func (r *report) target(what, got, want string, met bool) {
	if r.emulated {
		return // targets apply to real time only
	}
	verdict := "yes"
	if !met {
		verdict = "**no**"
		r.missed++
	}
	r.targets = append(r.targets, fmt.Sprintf("| %s | %s | %s | %s |\n", what, want, got, verdict))
}

// cells returns the columns of a comparison of services: the value of kernel routing, divided by
// unit, and the others as ratios.
func (c comparison) cells(unit float64, format string) []string {
	return append(c.cellsTo(pathKernel, unit, format, pathNftables, pathOurs), c.cell(pathOurs, pathNftables))
}

// cellsTo returns the value of base, divided by unit, and the others as their ratios to it.
func (c comparison) cellsTo(base string, unit float64, format string, others ...string) []string {
	cells := []string{fmt.Sprintf(format, c.of(base).median/unit)}
	for _, other := range others {
		cells = append(cells, c.cell(other, base))
	}
	return cells
}

// cell returns the ratio of a to b, if both were measured.
func (c comparison) cell(a, b string) string {
	if ratio, ok := c.ratio(a, b); ok {
		return ratio.String()
	}
	return "–"
}

const reportHead = `# Benchmarks

Written by ` + "`make bench`" + ` on %s: %s%s.
Do not edit; run ` + "`make bench`" + ` again.

Each row compares paths in one run: the same traffic over each path in turn, in an order that is
shuffled in each round. The paths are plain **kernel routing** (no connection tracking; the client
connects directly to the backends), **nftables** with the rules that kube-proxy writes for the same
Services, and **loxilight**. The first path has its measured value, the others their ratio to it in
the same round: the median of %d rounds, with the quartiles in brackets. Ratios from 0.9 to 1.1
count as equal. Values from different machines, or from different days, are not comparable.

The node, its client and the backends are network namespaces. Backends are *on the node*, in a
namespace behind one of its ports, or *behind another port*, on another machine like the client. For
ports to other machines, packets cannot be redirected directly into a namespace
(` + "`bpf_redirect_peer`" + `): these ports behave like NICs.

[benchmarks-qemu.md](benchmarks-qemu.md) compares with a flowtable of nftables, the kernel's own
fast path.
`

const emulatedHead = `# Benchmarks on an emulated machine

Written by ` + "`make bench-kernels`" + ` on %s: %s%s.
Do not edit; run ` + "`make bench-kernels`" + ` again.

**This machine is emulated**: Debian's kernel under QEMU without KVM, because the kernel of the
machine used for [benchmarks.md](benchmarks.md) has no flowtables. The emulated machine has a single
CPU. Every instruction takes one nanosecond; caches and memory latency are not modelled. A rate is
therefore a count of instructions, and **only the ratios within this run are meaningful**, as ratios
of instructions: time spent waiting for memory, locks or other CPUs is not included. The ratios
hardly change from run to run, whatever else runs on the real machine. benchmarks.md has the same
rows, measured in time.

Each row compares paths: the same traffic over each path in turn, in an order that is shuffled in
each round. The first path has its measured value, the others their ratio to it in the same round:
the median of %d rounds, with the quartiles in brackets. The network is the same as in
benchmarks.md. A run fails unless the packets take the measured fast path: at least 90 %% of them
with **loxilight** (its counter ` + "`fast`" + `), all of them with a flowtable. The results of bulk transfers
also depend on when the single CPU switches from the sender to the receiver: see their quartiles.
`

const reportTail = `
## Review notes
- Is the generator the bottleneck? The row of packets without a node shows its limit; ratios of paths near this limit are understated.
- Did packets really arrive? A run fails if more than one in a hundred is lost.
- What changed besides the code: kernel, CPU, other load? The quartiles show the variation.
`

// write renders the report as Markdown.
func (r *report) write(w io.Writer) error {
	var b strings.Builder
	version := ""
	if r.version != "" {
		version = "; loxilight " + r.version
	}
	head := reportHead
	if r.emulated {
		head = emulatedHead
	}
	fmt.Fprintf(&b, head, r.at.Format(time.DateOnly), r.machine, version, r.rounds)
	for _, failure := range r.failures {
		fmt.Fprintf(&b, "\n**Not measured:** %s\n", failure)
	}
	if len(r.targets) > 0 {
		b.WriteString("\n## Targets\n| what | asked | measured | met |\n|---|---|---|---|\n" + strings.Join(r.targets, ""))
	}
	for _, s := range r.sections {
		s.write(&b)
	}
	b.WriteString(reportTail)
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *section) write(b *strings.Builder) {
	if len(s.rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n%s\n\n", s.title, s.text)
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(s.columns, " | "), strings.Repeat("---|", len(s.columns)))
	for _, row := range s.rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
}

// grouped writes n with commas between thousands.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

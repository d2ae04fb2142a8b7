// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// report is the result of a run, for docs/benchmarks.md.
type report struct {
	machine, version string
	at               time.Time
	rounds           int
	emulated         bool // the machine is emulated by QEMU: docs/benchmarks-qemu.md
	sections         []*section
	targets          []string
	missed           int
	failures         []string
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
	r.target(what, fmt.Sprintf("%.3g %s", got, unit), fmt.Sprintf("at most %g %s", want, unit), got <= want)
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

Each row compares paths side by side in one run: the same traffic, in turn and in an order shuffled
each round, over plain **kernel routing** (no connection tracking, the client talks to the backends
themselves), over **nftables** with the rules that kube-proxy writes for the same services, and over
**loxilight**. The first path is given as it is, the others as their ratio to it in the same round:
the median of %d rounds, and in brackets the quartiles. Ratios from 0.9 to 1.1 count as equal; figures
of different machines, or of different days, do not compare.

The node, its client and the backends are network namespaces. Backends are *on the node*, in a namespace
that one of its ports leads to, or *behind another port*, on another machine as the client is. Ports that
lead to other machines have no peer in another namespace to which packets could be redirected without a
device: they are like NICs.

How the kernel's own fast path, a flowtable of nftables, compares is in [benchmarks-qemu.md](benchmarks-qemu.md).
`

const emulatedHead = `# Benchmarks on an emulated machine

Written by ` + "`make bench-kernels`" + ` on %s: %s%s.
Do not edit; run ` + "`make bench-kernels`" + ` again.

**This machine is emulated**: Debian's kernel under QEMU, without KVM, since the machine that
[benchmarks.md](benchmarks.md) is measured on has no flowtables in its kernel. The emulated one has a single CPU:
every instruction takes one nanosecond, and caches and memory latency are not modelled. A rate is thus a count of instructions,
and **only the ratios within this run mean something**, as ratios of instructions: that a path waits for memory, for a lock or
for another CPU does not show. They hardly change from run to run, whatever else the real machine does; benchmarks.md has the
same rows in time.

Each row compares paths side by side: the same traffic, in turn and in an order shuffled each round. The first path is
given as it is, the others as their ratio to it in the same round: the median of %d rounds, and in brackets the quartiles.
The network is that of benchmarks.md. A run fails unless the packets take the measured fast path: at least 90 %% with
**loxilight** (its counter ` + "`fast`" + `), all with a flowtable. What bulk transfers get depends on when the one
CPU turns from the sender to the receiver as well: see their quartiles.
`

const reportTail = `
## Review notes
- Is the generator the bottleneck? The row of packets without a node tells what it takes; ratios of paths near it hide a part.
- Did packets really arrive? A run fails where more than one in a hundred is lost.
- What changed besides the code: kernel, CPU, what else ran? The quartiles tell.
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

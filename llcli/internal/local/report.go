// SPDX-License-Identifier: Apache-2.0

package local

import (
	"fmt"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

var severityColor = map[string]string{api.SeverityError: output.Red, api.SeverityWarning: output.Yellow}

// printReport shows the findings, repaired ones last.
func printReport(a *command.App, r *api.DoctorReport) {
	repaired := 0
	counts := map[string]uint64{}
	for i := range r.Findings {
		if f := &r.Findings[i]; f.Left() {
			printFinding(a, f)
			counts[f.Severity]++
		} else {
			repaired++
		}
	}
	for i := range r.Findings {
		if f := &r.Findings[i]; !f.Left() {
			a.Printf("%s  %s %s\n", a.Painter().Paint(output.Green, "repaired"), output.Clean(f.Object), output.Clean(f.What))
			wrapped(a, "did", f.Fixed)
		}
	}
	if len(r.Unseen) > 0 {
		t := a.Table(output.Column{Title: "NOT SEEN"}, output.Column{Title: "WHY", Flexible: true})
		for _, u := range r.Unseen {
			t.Add(output.Cell{Text: u.What}, output.Cell{Text: u.Why})
		}
		t.Flush()
	}
	if len(r.Findings) > 0 || len(r.Unseen) > 0 {
		a.Printf("\n")
	}
	if counts[api.SeverityError]+counts[api.SeverityWarning]+counts[api.SeverityNote] == 0 {
		a.Printf("nothing is wrong with instance %s; checked: %s\n", output.Clean(r.Instance), strings.Join(r.Checked, ", "))
		return
	}
	if r.Daemon != "" {
		a.Printf("loxilightd %s\n", output.Clean(r.Daemon))
	}
	a.Printf("%s, %s, %s\n", output.Plural(counts[api.SeverityError], "error"), output.Plural(counts[api.SeverityWarning], "warning"),
		output.Plural(counts[api.SeverityNote], "note"))
}

func printFinding(a *command.App, f *api.Finding) {
	a.Printf("%s  %s\n", a.Painter().Paint(severityColor[f.Severity], f.Severity), a.Painter().Paint(output.Bold, output.Clean(f.Object)))
	wrapped(a, "what", f.What)
	wrapped(a, "why", f.Why)
	do := f.Do
	if f.Fixable && f.FixError == "" {
		do += " (llcli doctor --fix does it)"
	}
	wrapped(a, "do", do)
	if f.FixError != "" {
		wrapped(a, "left", "not repaired: "+f.FixError)
	}
}

// wrapped writes text below its title so that it fits the terminal.
func wrapped(a *command.App, title, text string) {
	width := a.Width()
	if width == 0 {
		width = 1 << 20
	}
	const indent = 6
	line := fmt.Sprintf("  %-4s", title)
	used := 0
	for _, word := range strings.Fields(output.Clean(text)) {
		if used > 0 && len([]rune(line))+1+len([]rune(word)) > width {
			a.Printf("%s\n", line)
			line, used = strings.Repeat(" ", indent), 0
		}
		line += " " + word
		used++
	}
	a.Printf("%s\n", line)
}

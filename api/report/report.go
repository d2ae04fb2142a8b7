// SPDX-License-Identifier: Apache-2.0

// Package report writes findings as text, for terminals and files.
package report

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/loxilight/loxilight/api"
)

// Style is how findings are written.
type Style struct {
	Width int // columns of the terminal; 0: lines are not wrapped
	Color bool
}

const repaired, red, green, yellow, bold = "repaired", "31", "32", "33", "1"

var colors = map[string]string{api.SeverityError: red, api.SeverityWarning: yellow, repaired: green}

// Text returns a report as text: the findings, what was not seen, and a summary.
func (s Style) Text(r *api.DoctorReport) string {
	text := s.Findings(r.Findings)
	for _, u := range r.Unseen {
		text += s.heading("not seen", s.paint(bold, clean(u.What))) + s.field("why", u.Why)
	}
	if text != "" {
		text += "\n"
	}
	counts := map[string]int{}
	for i := range r.Findings {
		if f := &r.Findings[i]; f.Left() {
			counts[f.Severity]++
		}
	}
	if len(counts) == 0 {
		return text + fmt.Sprintf("nothing is wrong with instance %s; checked: %s\n", clean(r.Instance), strings.Join(r.Checked, ", "))
	}
	if r.Daemon != "" {
		text += "loxilightd " + clean(r.Daemon) + "\n"
	}
	return text + strings.Join([]string{plural(counts, api.SeverityError), plural(counts, api.SeverityWarning), plural(counts, api.SeverityNote)}, ", ") + "\n"
}

func plural(counts map[string]int, severity string) string {
	if counts[severity] == 1 {
		return "1 " + severity
	}
	return fmt.Sprintf("%d %ss", counts[severity], severity)
}

// Findings returns findings as text, repaired ones last.
func (s Style) Findings(all []api.Finding) string {
	left, others := "", ""
	for i := range all {
		if f := &all[i]; f.Left() {
			left += s.finding(f)
		} else {
			others += s.heading(repaired, clean(f.Object+" "+f.What)) + s.field("did", f.Fixed)
		}
	}
	return left + others
}

func (s Style) finding(f *api.Finding) string {
	do := f.Do
	if f.Fixable && f.FixError == "" {
		do += " (llcli doctor --fix does it)"
	}
	text := s.heading(f.Severity, s.paint(bold, clean(f.Object))) +
		s.field("what", f.What) + s.field("why", f.Why) + s.field("do", do)
	if f.FixError != "" {
		text += s.field("left", "not repaired: "+f.FixError)
	}
	return text
}

func (s Style) heading(word, rest string) string {
	return s.paint(colors[word], word) + "  " + rest + "\n"
}

func (s Style) paint(color, text string) string {
	if !s.Color || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// field returns text below its title. It keeps the lines of the text, and wraps the lines that are
// longer than the terminal is wide.
func (s Style) field(title, text string) (field string) {
	const indent = "      "
	start := fmt.Sprintf("  %-4s", title)
	for part := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		line, first := start, true
		for _, word := range words(part) {
			if !first && s.Width > 0 && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > s.Width {
				field += line + "\n"
				line = indent
			}
			line += " " + word
			first = false
		}
		field += line + "\n"
		start = indent
	}
	return field
}

// words splits text at white space and at the characters that control a terminal.
func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
}

// clean returns text in one line, without characters that control a terminal.
func clean(text string) string { return strings.Join(words(text), " ") }

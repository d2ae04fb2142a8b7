// SPDX-License-Identifier: Apache-2.0

// Package output writes what llcli prints: tables, descriptions, JSON and YAML, and numbers, times
// and states as people read them. It knows neither the daemon nor the kinds of objects.
package output

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/loxilight/loxilight/api/document"
)

// The output formats.
const (
	FormatTable = "table"
	FormatWide  = "wide" // a table with more columns
	FormatJSON  = "json"
	FormatYAML  = "yaml"
	FormatName  = "name" // KIND/NAME of each object, one per line
)

// Formats are the output formats.
var Formats = []string{FormatTable, FormatWide, FormatJSON, FormatYAML, FormatName}

// Printer writes the output of a run, and notes for the user beside it.
type Printer struct {
	Format   string // of the output
	Repeated bool   // the output is repeated

	out    *bufio.Writer
	notes  io.Writer
	width  func() int // columns of the terminal; 0: the output is not a terminal
	getenv func(string) string
}

// New returns a printer that writes tables to out and notes to notes.
func New(out, notes io.Writer, width func() int, getenv func(string) string) *Printer {
	return &Printer{Format: FormatTable, out: bufio.NewWriterSize(out, 64<<10), notes: notes, width: width, getenv: getenv}
}

// Write implements [io.Writer].
func (p *Printer) Write(text []byte) (int, error) { return p.out.Write(text) }

// Flush writes the buffered output, and returns the first error of all writes.
func (p *Printer) Flush() error { return p.out.Flush() }

// IsTable reports whether the output is for users, not programs.
func (p *Printer) IsTable() bool { return p.Format == FormatTable || p.Format == FormatWide }

// Printf writes to the output; its errors are reported when it is flushed.
func (p *Printer) Printf(format string, args ...any) { _, _ = fmt.Fprintf(p.out, format, args...) }

// Note prints a message for the user that is not part of the output.
func (p *Printer) Note(format string, args ...any) {
	_, _ = fmt.Fprintf(p.notes, "llcli: "+format+"\n", args...) // an error here cannot be reported
}

// NoneFound reports that there is nothing to show; what is a noun in the plural.
func (p *Printer) NoneFound(what string) { p.Note("no %s found", what) }

// PrintValue writes v, which must be valid as JSON, as one document.
func (p *Printer) PrintValue(v any) error {
	if p.Format == FormatYAML {
		text, err := document.ToYAML(v)
		if err != nil {
			return err
		}
		_, err = p.out.Write(text)
		return err
	}
	text, err := indentJSON(v, "")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "%s\n", text)
	return err
}

// indentJSON writes v as indented JSON.
func indentJSON(v any, prefix string) ([]byte, error) {
	data, err := document.Marshal(v)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	err = json.Indent(&buf, data, prefix, "  ")
	return buf.Bytes(), err
}

// ListWriter writes values one by one: as a JSON list, or as YAML documents.
type ListWriter struct {
	printer *Printer
	count   int
}

// NewList returns a list without values.
func (p *Printer) NewList() *ListWriter { return &ListWriter{printer: p} }

// Add writes a value.
func (l *ListWriter) Add(v any) error {
	l.count++
	if l.printer.Format == FormatYAML {
		if l.count > 1 {
			l.printer.Printf("---\n")
		}
		return l.printer.PrintValue(v)
	}
	separator := ",\n  "
	if l.count == 1 {
		separator = "[\n  "
	}
	text, err := indentJSON(v, "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.printer.out, "%s%s", separator, text)
	return err
}

// End writes the end of the list.
func (l *ListWriter) End() {
	switch {
	case l.printer.Format == FormatYAML:
	case l.count == 0:
		l.printer.Printf("[]\n")
	default:
		l.printer.Printf("\n]\n")
	}
}

// PrintLine writes v as JSON in one line, or as a YAML document of its own, so that readers of a
// stream can separate the values.
func (p *Printer) PrintLine(v any) error {
	if p.Format == FormatYAML {
		p.Printf("---\n")
		return p.PrintValue(v)
	}
	text, err := document.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "%s\n", text)
	return err
}

// PrintSample writes a value that is shown once, or repeatedly.
func (p *Printer) PrintSample(v any) error {
	if p.Repeated {
		return p.PrintLine(v)
	}
	return p.PrintValue(v)
}

const (
	Green  = "32"
	Yellow = "33"
	Red    = "31"
	Bold   = "1"
)

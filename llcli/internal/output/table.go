// SPDX-License-Identifier: Apache-2.0

package output

import (
	"strings"
	"unicode/utf8"
)

// gap separates two columns.
const gap = "  "

// minFlexible is how narrow a flexible column can get, in characters.
const minFlexible = 8

// Column is one column of a table.
type Column struct {
	Title    string
	Flexible bool // may be cut to fit the terminal
	Right    bool // numbers: right-aligned
	// Optional columns are left out of a table that does not fit the terminal,
	// those with the highest number first. 0: never.
	Optional int
}

// Cell is one value.
type Cell struct {
	Text  string
	Color string
}

// Table lays out rows in columns. A block of rows is written as a whole; later blocks keep the
// columns in place if their values fit.
type Table struct {
	printer *Printer
	columns []Column
	widths  []int
	rows    [][]Cell
	hidden  []bool // set with the titles, by column
	begun   bool
}

// Table returns an empty table.
func (p *Printer) Table(columns ...Column) *Table {
	return &Table{printer: p, columns: columns, widths: make([]int, len(columns))}
}

// Empty reports whether no row was added since the last Flush.
func (t *Table) Empty() bool { return len(t.rows) == 0 }

// Reserve makes a column at least width characters wide.
func (t *Table) Reserve(column, width int) { t.widths[column] = max(t.widths[column], width) }

// Add adds a row.
func (t *Table) Add(cells ...Cell) { t.rows = append(t.rows, cells) }

// ShowPages shows pages as they arrive, because there may be many items. next returns the page
// after a position, and the position at its end. In a table, each item is a row. what names the
// items, in the plural.
func ShowPages[T any](p *Printer, what string, t *Table, next func(after string) (items []T, more string, err error), row func(*T) []Cell) error {
	list := p.NewList()
	shown := 0
	for after := ""; ; {
		items, more, err := next(after)
		if err != nil {
			return err
		}
		shown += len(items)
		for i := range items {
			if p.IsTable() {
				t.Add(row(&items[i])...)
			} else if err := list.Add(&items[i]); err != nil {
				return err
			}
		}
		if p.IsTable() && len(items) > 0 {
			t.Flush()
		}
		if more == "" {
			break
		}
		if err := p.Flush(); err != nil {
			return err
		}
		after = more
	}
	switch {
	case !p.IsTable():
		list.End()
	case shown == 0:
		p.NoneFound(what)
	}
	return nil
}

// Flush writes the rows that were added, and the titles before the first ones.
func (t *Table) Flush() {
	if !t.begun {
		header := make([]Cell, len(t.columns))
		for i, c := range t.columns {
			header[i] = Cell{Text: c.Title, Color: Bold}
		}
		t.rows = append([][]Cell{header}, t.rows...)
	}
	for _, row := range t.rows {
		for i, c := range row {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(c.Text))
		}
	}
	if !t.begun {
		t.hide(t.printer.width())
		t.begun = true
	}
	widths := t.fit(t.printer.width())
	paint := t.printer.Painter()
	for _, row := range t.rows {
		t.writeRow(row, widths, paint)
	}
	t.rows = nil
}

func (t *Table) writeRow(row []Cell, widths []int, paint Painter) {
	var line strings.Builder
	for i, c := range row {
		if t.hidden[i] {
			continue
		}
		if line.Len() > 0 {
			line.WriteString(gap)
		}
		text := cut(Clean(c.Text), widths[i])
		padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
		switch {
		case t.columns[i].Right:
			line.WriteString(padding + paint.Paint(c.Color, text))
		default:
			line.WriteString(paint.Paint(c.Color, text) + padding)
		}
	}
	t.printer.Printf("%s\n", strings.TrimRight(line.String(), " "))
}

// hide removes optional columns until the table fits the terminal, and reports which.
func (t *Table) hide(terminal int) {
	t.hidden = make([]bool, len(t.columns))
	var left []string
	for terminal > 0 && t.least() > terminal {
		most := -1
		for i, c := range t.columns {
			if c.Optional > 0 && !t.hidden[i] && (most < 0 || c.Optional >= t.columns[most].Optional) {
				most = i
			}
		}
		if most < 0 {
			break // it will not fit; the terminal wraps
		}
		t.hidden[most] = true
		left = append(left, t.columns[most].Title)
	}
	if len(left) > 0 && !t.printer.Repeated {
		t.printer.Note("the terminal is too narrow for %s; -o json shows all", strings.Join(left, ", "))
	}
}

// least returns how narrow the table can get without leaving out more columns.
func (t *Table) least() int {
	total := -len(gap)
	for i, w := range t.widths {
		switch {
		case t.hidden[i]:
			continue
		case t.columns[i].Flexible:
			w = min(w, minFlexible)
		}
		total += w + len(gap)
	}
	return total
}

// fit returns the widths of the columns for a terminal of this width: the widest flexible columns
// shrink first. Without a terminal nothing is cut.
func (t *Table) fit(terminal int) []int {
	widths := append([]int(nil), t.widths...)
	total := -len(gap)
	for i, w := range widths {
		if !t.hidden[i] {
			total += w + len(gap)
		}
	}
	for terminal > 0 && total > terminal {
		widest := -1
		for i, c := range t.columns {
			if c.Flexible && !t.hidden[i] && widths[i] > minFlexible && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break // it will not fit; the terminal wraps
		}
		widths[widest]--
		total--
	}
	return widths
}

// cut shortens text to width characters, and marks the cut.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// Clean replaces characters that would break the table or command the terminal.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) {
			return ' '
		}
		return r
	}, text)
}

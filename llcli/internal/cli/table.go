// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"unicode/utf8"
)

// gap separates two columns.
const gap = "  "

// minFlexible is how narrow a flexible column can get, in characters.
const minFlexible = 8

// column is one column of a table.
type column struct {
	title    string
	flexible bool // may be cut to fit the terminal
	right    bool // numbers: aligned at the right
	// optional columns are left out of a table that does not fit the terminal,
	// those with the highest number first. 0: never.
	optional int
}

// cell is one value.
type cell struct {
	text  string
	color string
}

// table lays out rows in columns. A block of rows is written as a whole; later blocks keep the
// columns in place if their values fit.
type table struct {
	app     *app
	columns []column
	widths  []int
	rows    [][]cell
	hidden  []bool // set with the titles, by column
	begun   bool
}

func (a *app) table(columns ...column) *table {
	return &table{app: a, columns: columns, widths: make([]int, len(columns))}
}

func (t *table) add(cells ...cell) { t.rows = append(t.rows, cells) }

// showPages shows the pages that next returns for the position after, with the next position, as
// they arrive: there may be many items. In a table each item is a row. what names the items, in
// the plural.
func showPages[T any](a *app, what string, t *table, next func(after string) (items []T, more string, err error), row func(*T) []cell) error {
	list := listWriter{app: a}
	shown := 0
	for after := ""; ; {
		items, more, err := next(after)
		if err != nil {
			return err
		}
		shown += len(items)
		for i := range items {
			if a.isTable() {
				t.add(row(&items[i])...)
			} else if err := list.add(&items[i]); err != nil {
				return err
			}
		}
		if a.isTable() && len(items) > 0 {
			t.flush()
		}
		if more == "" {
			break
		}
		if err := a.out.Flush(); err != nil {
			return err
		}
		after = more
	}
	switch {
	case !a.isTable():
		list.end()
	case shown == 0:
		a.noneFound(what)
	}
	return nil
}

// flush writes the rows that were added, and the titles before the first ones.
func (t *table) flush() {
	if !t.begun {
		header := make([]cell, len(t.columns))
		for i, c := range t.columns {
			header[i] = cell{text: c.title, color: bold}
		}
		t.rows = append([][]cell{header}, t.rows...)
	}
	for _, row := range t.rows {
		for i, c := range row {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(c.text))
		}
	}
	if !t.begun {
		t.hide(t.app.Width())
		t.begun = true
	}
	widths := t.fit(t.app.Width())
	paint := t.app.painter()
	for _, row := range t.rows {
		t.writeRow(row, widths, paint)
	}
	t.rows = nil
}

func (t *table) writeRow(row []cell, widths []int, paint painter) {
	var line strings.Builder
	for i, c := range row {
		if t.hidden[i] {
			continue
		}
		if line.Len() > 0 {
			line.WriteString(gap)
		}
		text := cut(clean(c.text), widths[i])
		padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
		switch {
		case t.columns[i].right:
			line.WriteString(padding + paint.paint(c.color, text))
		default:
			line.WriteString(paint.paint(c.color, text) + padding)
		}
	}
	t.app.printf("%s\n", strings.TrimRight(line.String(), " "))
}

// hide removes optional columns until the table fits the terminal, and reports which.
func (t *table) hide(terminal int) {
	t.hidden = make([]bool, len(t.columns))
	var left []string
	for terminal > 0 && t.least() > terminal {
		most := -1
		for i, c := range t.columns {
			if c.optional > 0 && !t.hidden[i] && (most < 0 || c.optional >= t.columns[most].optional) {
				most = i
			}
		}
		if most < 0 {
			break // it will not fit; the terminal wraps
		}
		t.hidden[most] = true
		left = append(left, t.columns[most].title)
	}
	if len(left) > 0 && !t.app.watch {
		t.app.note("the terminal is too narrow for %s; -o json shows all", strings.Join(left, ", "))
	}
}

// least returns how narrow the table can get without leaving out more.
func (t *table) least() int {
	total := -len(gap)
	for i, w := range t.widths {
		switch {
		case t.hidden[i]:
			continue
		case t.columns[i].flexible:
			w = min(w, minFlexible)
		}
		total += w + len(gap)
	}
	return total
}

// fit returns the widths of the columns on a terminal of so many columns: the
// widest flexible ones give way first. Without a terminal nothing is cut.
func (t *table) fit(terminal int) []int {
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
			if c.flexible && !t.hidden[i] && widths[i] > minFlexible && (widest < 0 || widths[i] > widths[widest]) {
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

// cut shortens text to width characters, and shows that it did.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// clean replaces characters that would break the table or command the terminal.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) {
			return ' '
		}
		return r
	}, text)
}

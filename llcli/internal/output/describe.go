// SPDX-License-Identifier: Apache-2.0

package output

// Field writes one line of a description, unless its text is empty.
func (p *Printer) Field(title, text string) {
	if text != "" && text != "-" {
		p.Printf("%-14s%s\n", title, Clean(text))
	}
}

// Lines writes a field of several values, one per line.
func (p *Printer) Lines(title string, values []string) {
	for _, value := range values {
		p.Field(title, value)
		title = ""
	}
}

// Section writes a table after an empty line, unless it has no rows.
func (p *Printer) Section(t *Table) {
	if !t.Empty() {
		p.Printf("\n")
		t.Flush()
	}
}

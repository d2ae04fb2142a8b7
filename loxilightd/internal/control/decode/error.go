// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/loxilight/loxilight/api"
)

// Error describes an error in a document, and its position.
type Error struct {
	Path   string // such as spec.backends[3].address; empty: the document itself
	Text   string
	Syntax bool // not valid JSON
	Full   bool // the budget is spent
}

// Error returns the path and the text.
func (e *Error) Error() string {
	if e.Path == "" {
		return e.Text
	}
	return e.Path + ": " + e.Text
}

// Reason returns the API's reason for e.
func (e *Error) Reason() api.Reason {
	if e.Full {
		return api.ReasonCapacity
	}
	return api.ReasonInvalid
}

func fieldErrorf(path, format string, args ...any) *Error {
	return &Error{Path: path, Text: fmt.Sprintf(format, args...)}
}

// under returns e with step prepended to its path. A long step is truncated: clients choose the
// names of fields, and an error contains a path of such names.
func (e *Error) under(step string) *Error {
	step = Shorten(step)
	switch {
	case e.Path == "":
		e.Path = step
	case e.Path[0] == '[':
		e.Path = step + e.Path
	default:
		e.Path = step + "." + e.Path
	}
	return e
}

// elementError converts an error from a type's own decoder. An error text that begins with [INDEX]
// concerns one element of a list.
func elementError(text string) *Error {
	index, rest, ok := strings.Cut(text, "]: ")
	if !ok || len(index) < 2 || index[0] != '[' || strings.Trim(index[1:], "0123456789") != "" {
		return &Error{Text: text}
	}
	return &Error{Path: index + "]", Text: rest}
}

// Shorten shortens a value for use in a message.
func Shorten(s string) string { return ShortenTo(s, 60) }

// ShortenTo truncates s to at most most bytes.
func ShortenTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

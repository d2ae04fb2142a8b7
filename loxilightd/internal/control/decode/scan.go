// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/json"
	"unicode/utf8"
)

// raw checks the syntax of the next value and returns its verbatim text.
func (d *decoder) raw() ([]byte, *Error) {
	first := d.peek()
	start := d.pos
	var err *Error
	switch first {
	case '{':
		err = d.object(func(string, *uint64) *Error {
			_, err := d.raw()
			return err
		})
	case '[':
		err = d.members(']', func(int) *Error {
			_, err := d.raw()
			return err
		})
	case '"':
		_, err = d.quoted()
	case 't':
		err = d.word("true")
	case 'f':
		err = d.word("false")
	case 'n':
		err = d.word("null")
	default:
		err = d.number()
	}
	return d.data[start:d.pos], err
}

func (d *decoder) word(w string) *Error {
	if len(d.data)-d.pos < len(w) || string(d.data[d.pos:d.pos+len(w)]) != w {
		return d.syntax("want a value")
	}
	d.pos += len(w)
	return nil
}

// number skips a number: -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?
func (d *decoder) number() *Error {
	at := func() byte {
		if d.pos < len(d.data) {
			return d.data[d.pos]
		}
		return 0
	}
	digits := func() bool {
		start := d.pos
		for c := at(); c >= '0' && c <= '9'; c = at() {
			d.pos++
		}
		return d.pos > start
	}
	if at() == 0 {
		return d.syntax("unexpected end: want a value")
	}
	if at() == '-' {
		d.pos++
	}
	if at() == '0' {
		d.pos++
	} else if !digits() {
		return d.syntax("want a value")
	}
	if at() == '.' {
		d.pos++
		if !digits() {
			return d.syntax("want a digit")
		}
	}
	if c := at(); c == 'e' || c == 'E' {
		d.pos++
		if c := at(); c == '-' || c == '+' {
			d.pos++
		}
		if !digits() {
			return d.syntax("want a digit")
		}
	}
	return nil
}

// quoted skips a string and reports whether it contains a backslash.
func (d *decoder) quoted() (escaped bool, err *Error) {
	start := d.pos
	for d.pos++; d.pos < len(d.data); d.pos++ {
		switch c := d.data[d.pos]; {
		case c == '"':
			d.pos++
			if !utf8.Valid(d.data[start:d.pos]) {
				return false, d.syntax("a string that is not UTF-8")
			}
			if escaped && !json.Valid(d.data[start:d.pos]) {
				return false, d.syntax("invalid escape in a string")
			}
			return escaped, nil
		case c == '\\':
			escaped = true
			d.pos++
		case c < ' ':
			return false, d.syntax("a control character in a string")
		}
	}
	d.pos = len(d.data)
	return false, d.syntax("a string without an end")
}

// text decodes a string.
func (d *decoder) text() (string, *Error) {
	start := d.pos
	escaped, err := d.quoted()
	if err != nil {
		return "", err
	}
	if !escaped {
		return string(d.data[start+1 : d.pos-1]), nil
	}
	var s string
	if err := json.Unmarshal(d.data[start:d.pos], &s); err != nil {
		return "", d.syntax("%v", err)
	}
	return s, nil
}

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Word is one value that may be written as a string or as a whole number: 80,
// "8000-8100", "echo-request".
type Word string

// MarshalJSON implements [json.Marshaler]: a number is written as a number.
func (w Word) MarshalJSON() ([]byte, error) {
	if n, err := strconv.ParseUint(string(w), 10, 32); err == nil && strconv.FormatUint(n, 10) == string(w) {
		return []byte(w), nil
	}
	return json.Marshal(string(w))
}

// UnmarshalJSON implements [json.Unmarshaler].
func (w *Word) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil && b[0] == '"' {
		*w = Word(s)
		return nil
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return fmt.Errorf("%.60s is neither a string nor a whole number", b)
	}
	*w = Word(strconv.FormatInt(n, 10))
	return nil
}

// Words is a list of words. A single word may be written without the brackets.
type Words []Word

// UnmarshalJSON implements [json.Unmarshaler].
func (w *Words) UnmarshalJSON(b []byte) error {
	if b = bytes.TrimSpace(b); len(b) == 0 || b[0] != '[' {
		*w = make(Words, 1)
		return (*w)[0].UnmarshalJSON(b)
	}
	var items []json.RawMessage
	if err := json.Unmarshal(b, &items); err != nil {
		return err
	}
	*w = make(Words, len(items))
	for i, item := range items {
		if err := (*w)[i].UnmarshalJSON(item); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	return nil
}

// Strings returns the words as strings.
func (w Words) Strings() []string {
	s := make([]string, len(w))
	for i := range w {
		s[i] = string(w[i])
	}
	return s
}

// Member is a member of an AddressGroup: an address, a prefix, a range of addresses, or group:NAME
// for another group. A selection of Endpoints by their labels is an object, {"labels": {…}}, which
// Text contains verbatim.
type Member struct{ Text string }

// MarshalJSON implements [json.Marshaler].
func (m Member) MarshalJSON() ([]byte, error) {
	if m.ByLabels() {
		return []byte(m.Text), nil
	}
	return json.Marshal(m.Text)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (m *Member) UnmarshalJSON(b []byte) error {
	switch b = bytes.TrimSpace(b); {
	case len(b) > 0 && b[0] == '{':
		m.Text = string(b)
		return nil
	case len(b) > 0 && b[0] == '"':
		if plain(b) {
			m.Text = string(b[1 : len(b)-1])
		} else if err := json.Unmarshal(b, &m.Text); err != nil {
			return err
		}
		if m.ByLabels() {
			return fmt.Errorf("%.60s is not a valid member", b)
		}
		return nil
	}
	return fmt.Errorf("%.60s is not a valid member: want an address, a prefix or group:NAME in quotes", b)
}

// plain reports whether a string in JSON consists of printable ASCII characters without escapes, as
// addresses do: decoding 50,000 of them with [json.Unmarshal] costs 10 MB of garbage.
func plain(b []byte) bool {
	if len(b) < 2 || b[len(b)-1] != '"' {
		return false
	}
	for _, c := range b[1 : len(b)-1] {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// ByLabels reports whether m selects endpoints.
func (m Member) ByLabels() bool { return len(m.Text) > 0 && m.Text[0] == '{' }

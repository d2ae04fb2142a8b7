// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"

	"gopkg.in/yaml.v3"
)

// maxAliased bounds how many nodes the aliases of one document may expand to: a
// few lines of YAML can otherwise name billions.
const maxAliased = 100_000

// lineError is a mistake in a document at a line.
type lineError struct {
	line int
	text string
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.text) }

// parseJSON reads one JSON value of dec as a YAML node, with the order and lines of the text.
// lineAt returns the line of an offset.
func parseJSON(dec *json.Decoder, lineAt func(int64) int) (*yaml.Node, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	node := &yaml.Node{Kind: yaml.ScalarNode, Line: lineAt(dec.InputOffset())}
	switch v := token.(type) {
	case json.Delim:
		return node, parseJSONChildren(dec, lineAt, node, v)
	case string:
		node.Tag, node.Value = "!!str", v
	case json.Number:
		node.Tag, node.Value = "!!int", v.String()
		if _, err := strconv.ParseInt(node.Value, 10, 64); err != nil {
			node.Tag = "!!float"
		}
	case bool:
		node.Tag, node.Value = "!!bool", strconv.FormatBool(v)
	case nil:
		node.Tag, node.Value = "!!null", "null"
	}
	return node, nil
}

func parseJSONChildren(dec *json.Decoder, lineAt func(int64) int, node *yaml.Node, open json.Delim) error {
	node.Kind, node.Tag = yaml.SequenceNode, "!!seq"
	if open == '{' {
		node.Kind, node.Tag = yaml.MappingNode, "!!map"
	}
	for dec.More() {
		child, err := parseJSON(dec, lineAt)
		if err != nil {
			return cutOff(err)
		}
		node.Content = append(node.Content, child)
	}
	_, err := dec.Token() // the closing bracket
	return cutOff(err)
}

// cutOff converts the end of the text within a value to [io.ErrUnexpectedEOF].
func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// lineIndex returns a function that returns the line, from 1, of an offset in data.
func lineIndex(data []byte) func(int64) int {
	var starts []int
	for i, c := range data {
		if c == '\n' {
			starts = append(starts, i+1)
		}
	}
	return func(offset int64) int { return 1 + sort.SearchInts(starts, int(offset)) }
}

// toJSON writes node as JSON, in the document's own order.
func toJSON(node *yaml.Node) (json.RawMessage, error) {
	w := jsonWriter{}
	if err := w.write(node); err != nil {
		return nil, err
	}
	return w.buf.Bytes(), nil
}

type jsonWriter struct {
	buf     bytes.Buffer
	inAlias int
	aliased int // nodes written on behalf of aliases
}

func (w *jsonWriter) write(node *yaml.Node) error {
	if w.inAlias > 0 {
		if w.aliased++; w.aliased > maxAliased {
			return &lineError{node.Line, "the aliases expand to too much; write it out"}
		}
	}
	switch node.Kind {
	case yaml.DocumentNode:
		return w.write(node.Content[0])
	case yaml.AliasNode:
		w.inAlias++
		defer func() { w.inAlias-- }()
		return w.write(node.Alias)
	case yaml.SequenceNode:
		w.buf.WriteByte('[')
		for i, item := range node.Content {
			if i > 0 {
				w.buf.WriteByte(',')
			}
			if err := w.write(item); err != nil {
				return err
			}
		}
		w.buf.WriteByte(']')
		return nil
	case yaml.MappingNode:
		return w.writeMapping(node)
	case yaml.ScalarNode:
		return w.writeScalar(node)
	default:
		return &lineError{node.Line, "an empty document"}
	}
}

func (w *jsonWriter) writeMapping(node *yaml.Node) error {
	lines := make(map[string]int, len(node.Content)/2)
	w.buf.WriteByte('{')
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
			return &lineError{key.Line, fmt.Sprintf("the key %q must be a plain string (quote it)", key.Value)}
		}
		if line, twice := lines[key.Value]; twice {
			return &lineError{key.Line, fmt.Sprintf("%q is already set on line %d", key.Value, line)}
		}
		lines[key.Value] = key.Line
		if i > 0 {
			w.buf.WriteByte(',')
		}
		w.writeString(key.Value)
		w.buf.WriteByte(':')
		if err := w.write(node.Content[i+1]); err != nil {
			return err
		}
	}
	w.buf.WriteByte('}')
	return nil
}

func (w *jsonWriter) writeScalar(node *yaml.Node) error {
	bad := func() error {
		return &lineError{node.Line, fmt.Sprintf("%q cannot be said in JSON; quote it if it is a text", node.Value)}
	}
	switch node.ShortTag() {
	case "!!null":
		w.buf.WriteString("null")
	case "!!bool":
		var v bool
		if node.Decode(&v) != nil {
			return bad()
		}
		w.buf.WriteString(strconv.FormatBool(v))
	case "!!int", "!!float":
		number, ok := jsonNumber(node)
		if !ok {
			return bad()
		}
		w.buf.WriteString(number)
	case "!!str", "!!timestamp":
		w.writeString(node.Value)
	default:
		return bad()
	}
	return nil
}

// jsonNumber returns the number as JSON: unchanged if it is valid.
func jsonNumber(node *yaml.Node) (string, bool) {
	if json.Valid([]byte(node.Value)) {
		return node.Value, true
	}
	var i int64
	if node.Decode(&i) == nil {
		return strconv.FormatInt(i, 10), true
	}
	var f float64
	if node.Decode(&f) != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return "", false
	}
	return strconv.FormatFloat(f, 'g', -1, 64), true
}

func (w *jsonWriter) writeString(s string) {
	b, _ := marshal(s) // a string can always be marshalled
	w.buf.Write(b)
}

// marshal is json.Marshal that leaves <, > and & as they are.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// toYAML writes v, which must be valid as JSON, as one YAML document with the fields in JSON's
// order.
func toYAML(v any) ([]byte, error) {
	data, err := marshal(v)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	node, err := parseJSON(dec, func(int64) int { return 0 })
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	if err := enc.Encode(node); err != nil {
		return nil, err
	}
	return buf.Bytes(), enc.Close()
}

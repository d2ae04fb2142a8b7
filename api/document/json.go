// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"sort"
	"strconv"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

const (
	// maxAliased limits how many nodes the aliases of one spec may expand to: otherwise, a few
	// lines of YAML could expand to billions.
	maxAliased = 100_000
	// maxNesting limits the depth of a document, as the daemon does.
	maxNesting = 64
)

// errNoJSON means that the text must be parsed as YAML.
var errNoJSON = errors.New("not JSON")

// parseJSONValues parses text as JSON values. It returns [errNoJSON] if the text is not JSON and
// the name of the file does not end in .json.
func parseJSONValues(file string, text []byte) ([]*yaml.Node, error) {
	start := bytes.TrimLeft(text, " \t\r\n")
	isNamed := filepath.Ext(file) == ".json"
	if len(start) == 0 && isNamed {
		return nil, nil
	}
	if !isNamed && (len(start) == 0 || start[0] != '{' && start[0] != '[') || !isNamed && !utf8.Valid(text) {
		return nil, errNoJSON
	}
	r := newJSONReader(text)
	var nodes []*yaml.Node
	for {
		node, err := r.value()
		switch {
		case errors.Is(err, io.EOF):
			return nodes, nil
		case err != nil && !isNamed:
			return nil, errNoJSON
		case err != nil:
			return nil, &Error{File: file, Line: r.line(), Text: fmt.Sprintf("not valid JSON: %v", err)}
		case !utf8.Valid(text):
			return nil, &Error{File: file, Line: 1, Text: "not valid JSON: the text is not UTF-8"}
		case node.Tag != "!!null":
			nodes = append(nodes, node)
		}
	}
}

// jsonReader reads JSON values as YAML nodes, preserving the order and line numbers of the text.
type jsonReader struct {
	*json.Decoder
	starts []int // offsets of the lines after the first
	depth  int
}

func newJSONReader(text []byte) *jsonReader {
	r := &jsonReader{Decoder: json.NewDecoder(bytes.NewReader(text))}
	r.UseNumber()
	for i, c := range text {
		if c == '\n' {
			r.starts = append(r.starts, i+1)
		}
	}
	return r
}

// line returns the number of the line that was read last, from 1.
func (r *jsonReader) line() int { return 1 + sort.SearchInts(r.starts, int(r.InputOffset())) }

// value reads one value. It returns [io.EOF] at the end of the text.
func (r *jsonReader) value() (*yaml.Node, error) {
	token, err := r.Token()
	if err != nil {
		return nil, err
	}
	node := &yaml.Node{Kind: yaml.ScalarNode, Line: r.line()}
	switch v := token.(type) {
	case json.Delim:
		return node, r.children(node, v)
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

func (r *jsonReader) children(node *yaml.Node, open json.Delim) error {
	if r.depth++; r.depth > maxNesting {
		return fmt.Errorf("nested more than %d levels deep", maxNesting)
	}
	defer func() { r.depth-- }()
	node.Kind, node.Tag = yaml.SequenceNode, "!!seq"
	if open == '{' {
		node.Kind, node.Tag = yaml.MappingNode, "!!map"
	}
	for r.More() {
		child, err := r.value()
		if err != nil {
			return cutOff(err)
		}
		node.Content = append(node.Content, child)
	}
	_, err := r.Token() // the closing bracket
	return cutOff(err)
}

// cutOff converts [io.EOF] to [io.ErrUnexpectedEOF], for a text that ends within a value.
func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// nodeError is a mistake in a node.
type nodeError struct {
	line  int
	field string // path from the node that was converted
	text  string
	whole bool // the mistake concerns the whole value
}

// under prepends a step to the path of an error.
func (e *nodeError) under(step string) *nodeError {
	if e.whole {
		return e
	}
	if e.field != "" && e.field[0] != '[' {
		step += "."
	}
	e.field = step + e.field
	return e
}

// toJSON returns a node as JSON, in the document's own order.
func toJSON(node *yaml.Node) (json.RawMessage, *nodeError) {
	w := writer{}
	if err := w.write(node, 0); err != nil {
		return nil, err
	}
	return w.buf.Bytes(), nil
}

type writer struct {
	buf     bytes.Buffer
	inAlias int
	aliased int // nodes written for aliases
}

func (w *writer) write(node *yaml.Node, depth int) *nodeError {
	if depth > maxNesting {
		return &nodeError{line: node.Line, whole: true, text: fmt.Sprintf("nested more than %d levels deep", maxNesting)}
	}
	if w.inAlias > 0 {
		if w.aliased++; w.aliased > maxAliased {
			return &nodeError{line: node.Line, whole: true, text: fmt.Sprintf("the aliases expand to more than %d values; write them out", maxAliased)}
		}
	}
	switch node.Kind {
	case yaml.AliasNode:
		w.inAlias++
		defer func() { w.inAlias-- }()
		return w.write(node.Alias, depth+1)
	case yaml.SequenceNode:
		w.buf.WriteByte('[')
		for i, item := range node.Content {
			if i > 0 {
				w.buf.WriteByte(',')
			}
			if err := w.write(item, depth+1); err != nil {
				return err.under("[" + strconv.Itoa(i) + "]")
			}
		}
		w.buf.WriteByte(']')
		return nil
	case yaml.MappingNode:
		return w.writeMapping(node, depth)
	default:
		return w.writeScalar(node)
	}
}

func (w *writer) writeMapping(node *yaml.Node, depth int) *nodeError {
	lines := make(map[string]int, len(node.Content)/2)
	w.buf.WriteByte('{')
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
			return &nodeError{line: key.Line, text: fmt.Sprintf("the key %q must be a plain string (quote it)", key.Value)}
		}
		if line, twice := lines[key.Value]; twice {
			return &nodeError{line: key.Line, field: key.Value, text: fmt.Sprintf("%q is already set on line %d", key.Value, line)}
		}
		lines[key.Value] = key.Line
		if i > 0 {
			w.buf.WriteByte(',')
		}
		w.writeString(key.Value)
		w.buf.WriteByte(':')
		if err := w.write(node.Content[i+1], depth+1); err != nil {
			return err.under(key.Value)
		}
	}
	w.buf.WriteByte('}')
	return nil
}

func (w *writer) writeScalar(node *yaml.Node) *nodeError {
	bad := &nodeError{line: node.Line, text: fmt.Sprintf("%q has no equivalent in JSON; quote it if it is a string", node.Value)}
	switch node.ShortTag() {
	case "!!null":
		w.buf.WriteString("null")
	case "!!bool":
		var v bool
		if node.Decode(&v) != nil {
			return bad
		}
		w.buf.WriteString(strconv.FormatBool(v))
	case "!!int", "!!float":
		number, ok := jsonNumber(node)
		if !ok {
			return bad
		}
		w.buf.WriteString(number)
	case "!!str", "!!timestamp":
		w.writeString(node.Value)
	default:
		return bad
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
	var u uint64
	if node.Decode(&u) == nil {
		return strconv.FormatUint(u, 10), true
	}
	var f float64
	if node.Decode(&f) != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return "", false
	}
	return strconv.FormatFloat(f, 'g', -1, 64), true
}

func (w *writer) writeString(s string) {
	b, _ := Marshal(s) // a string can always be marshalled
	w.buf.Write(b)
}

// Marshal is like json.Marshal, but does not escape <, > and &.
func Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// ToYAML returns v, which must be valid as JSON, as one YAML document with the fields in JSON's
// order.
func ToYAML(v any) ([]byte, error) {
	data, err := Marshal(v)
	if err != nil {
		return nil, err
	}
	node, err := newJSONReader(data).value()
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

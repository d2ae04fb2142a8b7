// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/loxilight/loxilight/api"
)

// document is one YAML document of a file.
type document struct {
	path string
	root *yaml.Node
}

// yamlLine matches a line number in an error of the YAML library.
var yamlLine = regexp.MustCompile(`^yaml: line ([0-9]+): `)

// splitYAML returns the documents of a file that are not empty.
func splitYAML(path string, text []byte) ([]*document, *api.Error) {
	var list []*document
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			message, line := yamlFault(err)
			if strings.HasPrefix(message, "did not find expected") {
				line = firstBadLine(text, message)
			}
			if lines := bytes.Split(text, []byte("\n")); line <= len(lines) && strings.HasPrefix(message, "found character that cannot start any token") &&
				bytes.HasPrefix(bytes.TrimLeft(lines[line-1], " "), []byte("\t")) {
				message = "the line begins with a tab; YAML wants spaces"
			}
			return nil, api.Errorf(api.ReasonInvalid, "%s:%d: no YAML: %s", path, line, message)
		}
		if node.Kind != yaml.DocumentNode || len(node.Content) != 1 {
			continue
		}
		if root := node.Content[0]; root.Tag != "!!null" {
			list = append(list, &document{path, root})
		}
	}
}

func yamlFault(err error) (message string, line int) {
	message, line = err.Error(), 1
	if m := yamlLine.FindStringSubmatch(message); m != nil {
		line, _ = strconv.Atoi(m[1]) // digits
		message = message[len(m[0]):]
	}
	return strings.TrimPrefix(message, "yaml: "), line
}

// firstBadLine returns the line at which text becomes invalid. For errors of structure the
// library reports only the line before the beginning of the list or mapping, however far away
// that is.
func firstBadLine(text []byte, message string) int {
	lines := bytes.SplitAfter(text, []byte("\n"))
	ends := make([]int, len(lines))
	for i, end := 0, 0; i < len(lines); i++ {
		end += len(lines[i])
		ends[i] = end
	}
	return 1 + sort.Search(len(ends)-1, func(i int) bool {
		decoder := yaml.NewDecoder(bytes.NewReader(text[:ends[i]]))
		for {
			var node yaml.Node
			if err := decoder.Decode(&node); errors.Is(err, io.EOF) {
				return false
			} else if err != nil {
				found, _ := yamlFault(err)
				return found == message
			}
		}
	})
}

// maxNodes limits to how many nodes aliases can expand a document.
const maxNodes = 4 << 20

// json returns the document as JSON. Duplicate names are kept.
func (d *document) json() ([]byte, *api.Error) {
	w := jsonWriter{left: maxNodes}
	if err := w.node(d.root, 0); err != nil {
		return nil, err
	}
	return w.Bytes(), nil
}

type jsonWriter struct {
	bytes.Buffer
	left int // nodes that may still follow
}

func (w *jsonWriter) node(n *yaml.Node, depth int) *api.Error {
	if w.left--; w.left < 0 || depth > maxNesting {
		return api.Errorf(api.ReasonInvalid, "line %d: nested too deep, or too large by its aliases", n.Line)
	}
	switch n.Kind {
	case yaml.AliasNode:
		return w.node(n.Alias, depth+1)
	case yaml.SequenceNode:
		return w.all('[', n.Content, ']', func(i int, item *yaml.Node) *api.Error { return w.node(item, depth+1) })
	case yaml.MappingNode:
		return w.mapping(n, depth)
	default:
		return w.scalar(n)
	}
}

func (w *jsonWriter) all(begin byte, list []*yaml.Node, end byte, each func(int, *yaml.Node) *api.Error) *api.Error {
	w.WriteByte(begin)
	for i, item := range list {
		if i > 0 {
			w.WriteByte(',')
		}
		if err := each(i, item); err != nil {
			return err
		}
	}
	w.WriteByte(end)
	return nil
}

func (w *jsonWriter) mapping(n *yaml.Node, depth int) *api.Error {
	keys := make([]*yaml.Node, 0, len(n.Content)/2)
	for i := 0; i < len(n.Content); i += 2 {
		keys = append(keys, n.Content[i])
	}
	return w.all('{', keys, '}', func(i int, key *yaml.Node) *api.Error {
		if key.Kind != yaml.ScalarNode {
			return api.Errorf(api.ReasonInvalid, "line %d: a name that is no word", key.Line)
		}
		w.text(key.Value)
		w.WriteByte(':')
		return w.node(n.Content[2*i+1], depth+1)
	})
}

func (w *jsonWriter) text(s string) {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string
	}
	w.Write(text)
}

func (w *jsonWriter) scalar(n *yaml.Node) *api.Error {
	switch n.ShortTag() {
	case "!!null":
		w.WriteString("null")
	case "!!bool":
		w.WriteString(strings.ToLower(n.Value))
	case "!!int":
		var i int64
		var u uint64
		if n.Decode(&i) == nil {
			w.WriteString(strconv.FormatInt(i, 10))
		} else if n.Decode(&u) == nil {
			w.WriteString(strconv.FormatUint(u, 10))
		} else {
			return api.Errorf(api.ReasonInvalid, "line %d: %s is no number that fits", n.Line, shorten(n.Value))
		}
	case "!!float":
		var f float64
		if err := n.Decode(&f); err != nil {
			return api.Errorf(api.ReasonInvalid, "line %d: %v", n.Line, err)
		}
		text, err := json.Marshal(f)
		if err != nil { // infinite, or not a number
			return api.Errorf(api.ReasonInvalid, "line %d: %s is no number", n.Line, shorten(n.Value))
		}
		w.Write(text)
	default: // strings, and values that are written like strings
		w.text(n.Value)
	}
	return nil
}

// ref returns Kind/name if both can be read; else the empty string.
func (d *document) ref() string {
	_, kind := child(d.root, "kind")
	_, name := child(d.root, "name")
	if kind == nil || name == nil || kind.Value == "" || name.Value == "" {
		return ""
	}
	return shorten(kind.Value + "/" + name.Value)
}

// step is one step of a path: a name, or an index in brackets.
var step = regexp.MustCompile(`\[([0-9]+)\]|[^.\[]+`)

// line returns the line of a field such as spec.backends[3].address, or of its nearest existing
// parent. If a name occurs several times, the last one counts, because that is the faulty one.
func (d *document) line(field string) int {
	at, line := d.root, d.root.Line
	for _, s := range step.FindAllStringSubmatch(field, -1) {
		for at.Kind == yaml.AliasNode {
			at = at.Alias
		}
		if s[1] != "" {
			i, _ := strconv.Atoi(s[1]) // digits
			if at.Kind != yaml.SequenceNode || i >= len(at.Content) {
				return line
			}
			at = at.Content[i]
			line = at.Line
			continue
		}
		key, value := child(at, s[0])
		if value == nil {
			return line
		}
		at, line = value, key.Line
	}
	return line
}

// child returns name and its value in a mapping; nil if name does not exist.
func child(n *yaml.Node, name string) (key, value *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			key, value = n.Content[i], n.Content[i+1]
		}
	}
	return key, value
}

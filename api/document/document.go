// SPDX-License-Identifier: Apache-2.0

// Package document reads objects from files, for the daemon and for llcli: YAML documents, JSON
// values one after another, or lists of objects in either. It knows the fields of an object and the
// line numbers in a file; the daemon decides what a spec may contain.
package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/loxilight/loxilight/api"
)

// Document is one object in a file.
type Document struct {
	File string
	root *yaml.Node
}

// Error is a mistake in a file.
type Error struct {
	File   string
	Line   int    // starts at 1
	Object string // Kind/name; empty: unknown
	Field  string // such as spec.backends[3].address; empty: the object itself, or unknown
	Text   string // contains the field if it is not obvious
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Text) }

// Parse returns the non-empty documents of a file. The error is an [*Error].
func Parse(file string, text []byte) ([]*Document, error) {
	roots, err := parseJSONValues(file, text)
	if errors.Is(err, errNoJSON) {
		roots, err = parseYAML(file, text)
	}
	if err != nil {
		return nil, err
	}
	var list []*Document
	for _, root := range roots {
		if root.Kind != yaml.SequenceNode {
			list = append(list, &Document{file, root})
			continue
		}
		for _, item := range root.Content {
			list = append(list, &Document{file, item})
		}
	}
	return list, nil
}

// yamlLine matches a line number in an error of the YAML library.
var yamlLine = regexp.MustCompile(`^yaml: line ([0-9]+): `)

// parseYAML returns the content of each non-empty YAML document.
func parseYAML(file string, text []byte) (roots []*yaml.Node, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			return roots, nil
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
			return nil, &Error{File: file, Line: line, Text: "not valid YAML: " + message}
		}
		if node.Kind != yaml.DocumentNode || len(node.Content) != 1 {
			continue
		}
		if root := node.Content[0]; root.ShortTag() != "!!null" {
			roots = append(roots, root)
		}
	}
}

func yamlFault(err error) (message string, line int) {
	message, line = err.Error(), 1
	if m := yamlLine.FindStringSubmatch(message); m != nil {
		line, _ = strconv.Atoi(m[1]) // digits
		message = message[len(m[0]):]
	}
	return strings.TrimPrefix(message, "yaml: "), max(1, line)
}

// firstBadLine returns the line at which text becomes invalid. For structural errors the library
// reports only the line before the beginning of the list or mapping, however far away that is.
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

// At returns FILE:LINE of the document's first line.
func (d *Document) At() string { return d.File + ":" + strconv.Itoa(d.mapping().Line) }

// mapping returns the object's own node.
func (d *Document) mapping() *yaml.Node {
	if d.root.Kind == yaml.AliasNode {
		return d.root.Alias
	}
	return d.root
}

// Ref returns Kind/name if both can be read; else the empty string.
func (d *Document) Ref() string {
	_, kind := child(d.mapping(), "kind")
	_, name := child(d.mapping(), "name")
	if kind == nil || name == nil || kind.Value == "" || name.Value == "" {
		return ""
	}
	return kind.Value + "/" + name.Value
}

// step is one step of a path: a name, or an index in brackets.
var step = regexp.MustCompile(`\[([0-9]+)\]|[^.\[]+`)

// Line returns the line of a field such as spec.backends[3].address, or of its nearest existing
// parent. If a name occurs several times, the last occurrence counts, because it is the faulty one.
func (d *Document) Line(field string) int {
	at, line := d.root, d.root.Line
	for _, s := range step.FindAllStringSubmatch(field, -1) {
		if at.Kind == yaml.AliasNode {
			at = at.Alias
		}
		if s[1] != "" {
			i, err := strconv.Atoi(s[1])
			if err != nil || at.Kind != yaml.SequenceNode || i >= len(at.Content) {
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

// child returns the name and its value in a mapping; nil if the name does not exist.
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

// Object returns the object with its spec as JSON, or all mistakes in it that do not depend on its
// kind. The fields status and revision, which the daemon writes, are ignored.
func (d *Document) Object() (o api.Object, mistakes []*Error) {
	wrong := func(line int, field, format string, args ...any) {
		mistakes = append(mistakes, &Error{d.File, line, d.Ref(), field, fmt.Sprintf(format, args...)})
	}
	root := d.mapping()
	if root.Kind != yaml.MappingNode {
		wrong(d.root.Line, "", "not an object: want kind, name and spec")
		return o, mistakes
	}
	texts := map[string]*string{"kind": &o.Kind, "name": &o.Name, "owner": &o.Owner}
	lines := make(map[string]int, len(root.Content)/2)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if line, twice := lines[key.Value]; twice {
			wrong(key.Line, key.Value, "%q is already set on line %d", key.Value, line)
		}
		lines[key.Value] = key.Line
		switch text := texts[key.Value]; {
		case text != nil && (value.Kind != yaml.ScalarNode || value.ShortTag() != "!!str"):
			wrong(value.Line, key.Value, "%s: want a string (quote it if it looks like a number)", key.Value)
		case text != nil:
			*text = value.Value
		case key.Value == "labels":
			o.Labels = d.labels(value, wrong)
		case key.Value == "spec":
			spec, err := toJSON(value)
			if err != nil {
				wrong(err.line, strings.TrimSuffix("spec."+err.field, "."), "%s", err.text)
			}
			o.Spec = spec
		case key.Value == "status", key.Value == "revision":
		default:
			wrong(key.Line, key.Value, "unknown field %q: an object has kind, name, owner, labels and spec", key.Value)
		}
	}
	if len(mistakes) > 0 {
		return o, mistakes
	}
	for _, field := range []string{"kind", "name"} {
		if *texts[field] == "" {
			wrong(d.Line(field), field, "the object has no %s", field)
		}
	}
	return o, mistakes
}

func (d *Document) labels(value *yaml.Node, wrong func(line int, field, format string, args ...any)) map[string]string {
	switch {
	case value.ShortTag() == "!!null":
		return nil
	case value.Kind != yaml.MappingNode:
		wrong(value.Line, "labels", "labels: want a mapping of strings to strings")
		return nil
	}
	labels := make(map[string]string, len(value.Content)/2)
	for i := 0; i+1 < len(value.Content); i += 2 {
		key, label := value.Content[i], value.Content[i+1]
		if label.Kind == yaml.AliasNode {
			label = label.Alias
		}
		field := "labels." + key.Value
		_, twice := labels[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
			wrong(key.Line, "labels", "labels: the key %q must be a string (quote it)", key.Value)
		case label.Kind != yaml.ScalarNode || label.ShortTag() != "!!str":
			wrong(label.Line, field, "%s: %q is not a string (quote it)", field, label.Value)
		case twice:
			wrong(key.Line, field, "%s is already set", field)
		}
		labels[key.Value] = label.Value
	}
	return labels
}

// Extensions are the file name extensions of object files.
var Extensions = []string{".yaml", ".yml", ".json"}

// isObjectFile reports whether a file in a directory is an object file: not hidden, and with a
// known extension.
func isObjectFile(name string) bool {
	ending := filepath.Ext(name)
	for _, e := range Extensions {
		if ending == e && name[0] != '.' {
			return true
		}
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"gopkg.in/yaml.v3"
)

// maxFile bounds a file of objects, in bytes.
const maxFile = 64 << 20

// stdinTitle is the file name of the standard input.
const stdinTitle = "standard input"

// document is one object as it stands in a file.
type document struct {
	object api.Object
	file   string
	node   *yaml.Node // the object's mapping
}

// at returns FILE:LINE of the document's first line.
func (d *document) at() string { return d.file + ":" + strconv.Itoa(d.node.Line) }

// ref names the document's object.
func (d *document) ref() api.ObjectRef {
	return api.ObjectRef{Kind: d.object.Kind, Name: d.object.Name}
}

// lineOf returns the line of a field such as spec.backends[3].address, or of
// the nearest of its parents that is in the document.
func (d *document) lineOf(field string) int {
	node, line := d.node, d.node.Line
	for field != "" {
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		var next *yaml.Node
		next, line, field = descend(node, line, field)
		if next == nil {
			return line
		}
		node = next
	}
	return line
}

// descend follows the first step of field, and returns the node it leads to
// with its line, and the steps that are left.
func descend(node *yaml.Node, line int, field string) (*yaml.Node, int, string) {
	field = strings.TrimPrefix(field, ".")
	if rest, ok := strings.CutPrefix(field, "["); ok {
		number, rest, _ := strings.Cut(rest, "]")
		index, err := strconv.Atoi(number)
		if err != nil || node.Kind != yaml.SequenceNode || index < 0 || index >= len(node.Content) {
			return nil, line, ""
		}
		return node.Content[index], node.Content[index].Line, rest
	}
	if node.Kind != yaml.MappingNode {
		return nil, line, ""
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		rest, ok := strings.CutPrefix(field, key.Value)
		if ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return node.Content[i+1], key.Line, rest
		}
	}
	return nil, line, ""
}

// readManifests reads the objects of files, of all .yaml, .yml and .json files of folders, and of
// stdin if the name is "-". It reports every mistake that it finds, with its file and line.
func readManifests(stdin io.Reader, names []string) ([]document, error) {
	var docs []document
	var errs []error
	for _, name := range names {
		files, err := expand(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, file := range files {
			found, err := readFile(stdin, file)
			docs = append(docs, found...)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	seen := make(map[api.ObjectRef]*document, len(docs))
	for i := range docs {
		d := &docs[i]
		if first, twice := seen[d.ref()]; twice {
			errs = append(errs, fmt.Errorf("%s: %s is already defined at %s", d.at(), d.ref(), first.at()))
		}
		seen[d.ref()] = d
	}
	return docs, errors.Join(errs...)
}

// expand returns the files that a name given with -f stands for, in order.
func expand(name string) ([]string, error) {
	if name == "-" {
		return []string{name}, nil
	}
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		return []string{name}, err
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		ext := filepath.Ext(entry.Name())
		if !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, ext) && entry.Name()[0] != '.' {
			files = append(files, filepath.Join(name, entry.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no .yaml, .yml or .json file in this folder", name)
	}
	return files, nil
}

func readFile(stdin io.Reader, name string) ([]document, error) {
	r, title := stdin, stdinTitle
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close() // only read: nothing can be lost
		r, title = f, name
	}
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", title, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: more than %d MiB; split it", title, maxFile>>20)
	}
	return parseManifest(title, data)
}

// parseManifest reads the documents of one file: YAML documents, JSON values
// one after another, or lists of objects in either.
func parseManifest(title string, data []byte) ([]document, error) {
	nodes, err := parseNodes(data)
	if err != nil {
		return nil, fmt.Errorf("%s:%w", title, err)
	}
	var docs []document
	var errs []error
	for _, node := range nodes {
		objects := []*yaml.Node{node}
		if node.Kind == yaml.SequenceNode {
			objects = node.Content
		}
		for _, n := range objects {
			d, mistakes := parseDocument(title, n)
			for _, err := range mistakes {
				errs = append(errs, atLine(title, n.Line, err))
			}
			if len(mistakes) == 0 {
				docs = append(docs, d)
			}
		}
	}
	return docs, errors.Join(errs...)
}

// atLine prefixes an error with the file and line of the mistake, or with the line of the document
// if the mistake has no line.
func atLine(title string, line int, err error) error {
	if e, ok := errors.AsType[*lineError](err); ok {
		return fmt.Errorf("%s:%d: %s", title, e.line, e.text)
	}
	return fmt.Errorf("%s:%d: %w", title, line, err)
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// yamlHint explains an error of the YAML library about a tab.
func yamlHint(data []byte, line int, text string) string {
	lines := bytes.Split(data, []byte("\n"))
	if line >= 1 && line <= len(lines) && strings.HasPrefix(text, "found character that cannot start any token") &&
		bytes.HasPrefix(bytes.TrimLeft(lines[line-1], " "), []byte("\t")) {
		return "the line begins with a tab; YAML wants spaces"
	}
	return text
}

// parseNodes returns the content of each document that is not empty.
func parseNodes(data []byte) ([]*yaml.Node, error) {
	if nodes, ok := parseJSONValues(data); ok {
		return nodes, nil
	}
	var nodes []*yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var node yaml.Node
		err := dec.Decode(&node)
		if errors.Is(err, io.EOF) {
			return nodes, nil
		}
		if err != nil {
			text := err.Error()
			line := 1
			if m := yamlLine.FindStringSubmatch(text); m != nil {
				text = text[len(m[0]):]
				if n, err := strconv.Atoi(m[1]); err == nil {
					line = n
				}
				// yaml.v3 counts lines from 0 in errors of its parser, and from 1 in errors of its
				// scanner.
				if m[1] != "" && strings.HasPrefix(text, "did not find expected") {
					line++
				}
			}
			return nil, fmt.Errorf("%d: %s", line, yamlHint(data, line, text))
		}
		content := node.Content[0]
		if content.ShortTag() != "!!null" {
			nodes = append(nodes, content)
		}
	}
}

// parseJSONValues reads data as JSON values; false: it is no JSON.
func parseJSONValues(data []byte) ([]*yaml.Node, bool) {
	start := bytes.TrimLeft(data, " \t\r\n")
	if len(start) == 0 || (start[0] != '{' && start[0] != '[') {
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	lineAt := lineIndex(data)
	var nodes []*yaml.Node
	for {
		node, err := parseJSON(dec, lineAt)
		if errors.Is(err, io.EOF) {
			return nodes, true
		}
		if err != nil {
			return nil, false
		}
		nodes = append(nodes, node)
	}
}

// parseDocument reads one object, and returns all of its mistakes.
func parseDocument(title string, node *yaml.Node) (document, []error) {
	d := document{file: title, node: node}
	if node.Kind == yaml.AliasNode {
		d.node = node.Alias
	}
	if d.node.Kind != yaml.MappingNode {
		return d, []error{errors.New("want an object with kind, name and spec")}
	}
	var errs []error
	for i := 0; i+1 < len(d.node.Content); i += 2 {
		if err := d.setField(d.node.Content[i], d.node.Content[i+1]); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return d, errs
	}
	// Twice the same key, at any depth.
	if _, err := toJSON(d.node); err != nil {
		errs = append(errs, err)
	}
	if d.object.Kind == "" {
		errs = append(errs, errors.New("the object has no kind"))
	}
	if d.object.Name == "" {
		errs = append(errs, errors.New("the object has no name"))
	}
	return d, errs
}

func (d *document) setField(key, value *yaml.Node) error {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	var text *string
	switch key.Value {
	case "kind":
		text = &d.object.Kind
	case "name":
		text = &d.object.Name
	case "owner":
		text = &d.object.Owner
	case "labels":
		if value.Decode(&d.object.Labels) != nil {
			return &lineError{value.Line, "labels: want a mapping of strings to strings"}
		}
		return nil
	case "spec":
		spec, err := toJSON(value)
		d.object.Spec = spec
		return err
	case "status", "revision":
		return nil // written by the daemon, ignored in requests
	default:
		return &lineError{key.Line, fmt.Sprintf("unknown field %q: an object has kind, name, owner, labels and spec", key.Value)}
	}
	if value.Kind != yaml.ScalarNode || value.ShortTag() != "!!str" {
		return &lineError{value.Line, fmt.Sprintf("%s: want a string (quote it if it looks like a number)", key.Value)}
	}
	*text = value.Value
	return nil
}

// titles names files for people.
func titles(files []string) string {
	named := slices.Clone(files)
	for i, file := range named {
		if file == "-" {
			named[i] = stdinTitle
		}
	}
	return strings.Join(named, ", ")
}

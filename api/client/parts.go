// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/loxilight/loxilight/api"
)

// partSize is the maximum size of a part of an object, in bytes: with its envelope it fits a
// request.
const partSize = api.MaxRequest - 64<<10

// splitObjects returns objects as runs, each of which begins a request: an object that is
// larger than a request becomes several parts.
func splitObjects(objects []api.Object) ([][]api.Object, error) {
	runs := [][]api.Object{{}}
	for _, o := range objects {
		parts, err := splitObject(o)
		if err != nil {
			return nil, fmt.Errorf("%s/%s: %w", o.Kind, o.Name, err)
		}
		runs[len(runs)-1] = append(runs[len(runs)-1], parts[0])
		for _, part := range parts[1:] {
			runs = append(runs, []api.Object{part})
		}
	}
	return runs, nil
}

// splitObject takes from the longest list of an object as much as does not fit, until the
// rest does.
func splitObject(o api.Object) (parts []api.Object, err error) {
	for len(o.Spec) > partSize {
		var spec map[string]any
		dec := json.NewDecoder(bytes.NewReader(o.Spec))
		dec.UseNumber()
		if err := dec.Decode(&spec); err != nil {
			return nil, err
		}
		path, list := longestList(spec)
		if len(list) < 2 {
			break // the daemon reports that it is too long
		}
		first, chunks, err := chunk(list, partSize/2)
		if err != nil {
			return nil, err
		}
		if len(chunks) == 0 {
			break
		}
		setList(spec, path, first)
		if o.Spec, err = json.Marshal(spec); err != nil {
			return nil, err
		}
		for _, c := range chunks {
			rest := map[string]any{}
			setList(rest, path, c)
			raw, err := json.Marshal(rest)
			if err != nil {
				return nil, err
			}
			parts = append(parts, api.Object{Kind: o.Kind, Name: o.Name, Append: true, Spec: raw})
		}
	}
	return append([]api.Object{o}, parts...), nil
}

// longestList returns the list with the most elements, in the spec or in objects within.
func longestList(spec map[string]any) (path []string, list []any) {
	for name, value := range spec {
		switch v := value.(type) {
		case []any:
			if len(v) > len(list) {
				path, list = []string{name}, v
			}
		case map[string]any:
			if inner, l := longestList(v); len(l) > len(list) {
				path, list = append([]string{name}, inner...), l
			}
		}
	}
	return path, list
}

func setList(spec map[string]any, path []string, list []any) {
	if len(path) == 1 {
		spec[path[0]] = list
		return
	}
	inner, ok := spec[path[0]].(map[string]any)
	if !ok {
		inner = map[string]any{}
		spec[path[0]] = inner
	}
	setList(inner, path[1:], list)
}

// chunk cuts a list into pieces of at most so many bytes, encoded.
func chunk(list []any, size int) (first []any, rest [][]any, err error) {
	var pieces [][]any
	begin, used := 0, 0
	for i, item := range list {
		raw, err := json.Marshal(item)
		if err != nil {
			return nil, nil, err
		}
		if used += len(raw) + 1; used > size && i > begin {
			pieces = append(pieces, list[begin:i])
			begin, used = i, len(raw)+1
		}
	}
	pieces = append(pieces, list[begin:])
	return pieces[0], pieces[1:], nil
}

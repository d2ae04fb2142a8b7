// SPDX-License-Identifier: Apache-2.0

package kinds

import "fmt"

// listAt returns the elements of the list at a path. A single value counts as a list.
func listAt(spec map[string]any, path []string) []any {
	switch value := find(spec, path).(type) {
	case []any:
		return value
	case nil:
		return nil
	default:
		return []any{value}
	}
}

// find returns the field at a path, or nil if it does not exist.
func find(spec map[string]any, path []string) any {
	for _, name := range path[:len(path)-1] {
		inner, ok := spec[name].(map[string]any)
		if !ok {
			return nil
		}
		spec = inner
	}
	return spec[path[len(path)-1]]
}

// put sets the field at a path.
func put(spec map[string]any, path []string, value any) error {
	for _, name := range path[:len(path)-1] {
		if spec[name] == nil {
			spec[name] = map[string]any{}
		}
		inner, ok := spec[name].(map[string]any)
		if !ok {
			return fmt.Errorf("%s has a form unknown to this llcli; change it with llcli edit", name)
		}
		spec = inner
	}
	spec[path[len(path)-1]] = value
	return nil
}

// removePath removes the field at a path, and parents that become empty.
func removePath(spec map[string]any, path []string) {
	if len(path) > 1 {
		inner, ok := spec[path[0]].(map[string]any)
		if !ok {
			return
		}
		if removePath(inner, path[1:]); len(inner) > 0 {
			return
		}
	}
	delete(spec, path[0])
}

// textOf returns value if it is a string, else the empty string.
func textOf(value any) string {
	text, _ := value.(string)
	return text
}

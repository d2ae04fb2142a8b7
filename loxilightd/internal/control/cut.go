// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"strconv"

	"github.com/loxilight/loxilight/api"
)

// parts is a JSON object whose lists, including the lists of objects within it, can be sent in
// parts. Elements of lists are not split.
type parts struct {
	fields map[string]json.RawMessage
	lists  map[string][]json.RawMessage
	inner  map[string]*parts
}

func partsOf(text json.RawMessage) (*parts, error) {
	p := &parts{lists: map[string][]json.RawMessage{}, inner: map[string]*parts{}}
	if err := json.Unmarshal(text, &p.fields); err != nil {
		return nil, err
	}
	for name, value := range p.fields {
		var err error
		switch value[0] {
		case '[':
			var list []json.RawMessage
			err = json.Unmarshal(value, &list)
			p.lists[name] = list
		case '{':
			p.inner[name], err = partsOf(value)
		default:
			continue
		}
		if err != nil {
			return nil, err
		}
		delete(p.fields, name)
	}
	return p, nil
}

// longest returns the length of the longest list.
func (p *parts) longest() int {
	n := 0
	for _, list := range p.lists {
		n = max(n, len(list))
	}
	for _, inner := range p.inner {
		n = max(n, inner.longest())
	}
	return n
}

// part returns the object with at most size elements of each list, starting at element from.
func (p *parts) part(from, size int) map[string]any {
	m := make(map[string]any, len(p.fields)+len(p.lists)+len(p.inner))
	for name, value := range p.fields {
		m[name] = value
	}
	for name, list := range p.lists {
		if list = cut(list, from, size); len(list) > 0 || from == 0 {
			m[name] = list
		}
	}
	for name, inner := range p.inner {
		m[name] = inner.part(from, size)
	}
	return m
}

// cutObject encodes a part of an object that is too large for one reply: of each list the
// elements from from, as many as fit.
func cutObject(o *api.Object, from, limit int) (json.RawMessage, *api.Error) {
	spec, err := partsOf(o.Spec)
	if err != nil {
		return nil, api.FromError(err)
	}
	status := &parts{}
	if o.Status != nil {
		if status, err = partsOf(o.Status); err != nil {
			return nil, api.FromError(err)
		}
	}
	longest := max(spec.longest(), status.longest())
	if from > 0 && from >= longest {
		return nil, invalid("continue", "%d is behind the end: the object was changed meanwhile, get it again", from)
	}
	for size := longest - from; ; size = size * 3 / 4 {
		c := *o
		if c.Continue = ""; from+size < longest {
			c.Continue = strconv.Itoa(from + size)
		}
		if c.Spec, err = json.Marshal(spec.part(from, size)); err != nil {
			return nil, api.FromError(err)
		}
		if o.Status != nil {
			if c.Status, err = json.Marshal(status.part(from, size)); err != nil {
				return nil, api.FromError(err)
			}
		}
		text, err := json.Marshal(&c)
		if err != nil {
			return nil, api.FromError(err)
		}
		if len(text) <= limit || size <= 1 {
			return text, nil
		}
	}
}

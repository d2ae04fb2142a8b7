// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"

	"github.com/loxilight/loxilight/api"
)

// maxSpec is the largest total size of the parts of one object, in bytes.
const maxSpec = 16 << 20

// misplaced refuses a part of an object if no object precedes it.
func misplaced(part *api.Object) *api.Error {
	return invalid("", "nothing came before in this transaction that it could be a part of").At(shorten(part.Kind+"/"+part.Name), "append")
}

// extend adds a part to the last object of a transaction. b is the budget of the request with
// that part.
func (r *request) extend(part *api.Object, b *budget) *api.Error {
	if len(r.puts) == 0 {
		return misplaced(part)
	}
	last := r.puts[len(r.puts)-1]
	at := func(format string, args ...any) *api.Error {
		return api.Errorf(api.ReasonInvalid, format, args...).At(shorten(part.Kind+"/"+part.Name), "append")
	}
	switch {
	case part.Kind != last.Kind || part.Name != last.Name:
		return at("the object before is %s, and no part of this one", last.Key)
	case len(last.Spec)+len(part.Spec) > maxSpec:
		return at("all parts of it have more than %d bytes", maxSpec)
	}
	spec, err := joinParts(json.RawMessage(last.Spec), part.Spec)
	if err != nil {
		return at("%v", err)
	}
	whole, aerr := parseObject(&api.Object{Kind: last.Kind, Name: last.Name, Owner: last.Owner, Labels: last.Labels, Spec: spec}, last.Owner, 0, b)
	if aerr != nil {
		return aerr
	}
	r.puts[len(r.puts)-1] = whole
	return nil
}

// joinParts appends the lists of b to the lists of a.
func joinParts(a, b json.RawMessage) (json.RawMessage, error) {
	whole, err := partsOf(a)
	if err != nil {
		return nil, err
	}
	part, err := partsOf(b)
	if err != nil {
		return nil, err
	}
	whole.join(part)
	return json.Marshal(whole.part(0, whole.longest()))
}

func (p *parts) join(q *parts) {
	for name, list := range q.lists {
		p.lists[name] = append(p.lists[name], list...)
	}
	for name, inner := range q.inner {
		if p.inner[name] == nil {
			p.inner[name] = inner
			continue
		}
		p.inner[name].join(inner)
	}
}

// SPDX-License-Identifier: Apache-2.0

package policy

import "slices"

// Selector selects Entities of one set. The zero values of its fields match everything.
type Selector struct {
	Set        string
	Namespaces *NamespaceSelector // nil: all, and Entities without a namespace
	Labels     Requirements
}

// NamespaceSelector selects namespaces by name or by their labels: both must match, if set.
type NamespaceSelector struct {
	Names  []string // empty: all
	Labels Requirements
}

// Requirements are conditions on labels, all of which must hold.
type Requirements []Requirement

// Requirement is a condition on one label.
type Requirement struct {
	Key      string
	Operator Operator
	Values   []string // for In and NotIn
}

// Operator is the kind of a [Requirement].
type Operator uint8

// The operators. NotIn also holds for Entities without the label, as in Kubernetes.
const (
	In Operator = iota
	NotIn
	Exists
	DoesNotExist
)

// Match reports whether all requirements hold for labels.
func (r Requirements) Match(labels map[string]string) bool {
	for i := range r {
		value, found := labels[r[i].Key]
		holds := found
		switch r[i].Operator {
		case In:
			holds = found && slices.Contains(r[i].Values, value)
		case NotIn:
			holds = !found || !slices.Contains(r[i].Values, value)
		case DoesNotExist:
			holds = !found
		}
		if !holds {
			return false
		}
	}
	return true
}

// Selects reports whether the selector matches an Entity.
func (s *State) Selects(sel *Selector, e *Entity) bool {
	if e.Set != sel.Set || !sel.Labels.Match(e.Labels) {
		return false
	}
	n := sel.Namespaces
	if n == nil {
		return true
	}
	namespace := s.Namespaces[e.Namespace]
	return namespace != nil && (len(n.Names) == 0 || slices.Contains(n.Names, e.Namespace)) && n.Labels.Match(namespace.Labels)
}

// isApplied reports whether a policy is applied to an Entity.
func (s *State) isApplied(p *Policy, e *Entity) bool {
	return e.isLocal() && (p.Here && e.Here || s.IsAppliedTo(p, e))
}

// IsAppliedTo reports whether a selector of the policy matches an Entity.
func (s *State) IsAppliedTo(p *Policy, e *Entity) bool {
	return slices.ContainsFunc(p.AppliedTo, func(sel Selector) bool { return s.Selects(&sel, e) })
}

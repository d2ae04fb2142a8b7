// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
)

// Limits on a selector.
const (
	mostExpressions = 64
	mostValues      = 256
)

func parseSelector(field, set string, namespaces *api.NamespaceSelector, entities *api.LabelSelector) (s policy.Selector, err *api.Error) {
	if s.Set, err = parseSet(field+".set", set); err != nil {
		return s, err
	}
	if entities != nil {
		if s.Labels, err = parseRequirements(field+".entities", entities.MatchLabels, entities.MatchExpressions); err != nil {
			return s, err
		}
	}
	if namespaces == nil {
		return s, nil
	}
	s.Namespaces = &policy.NamespaceSelector{Names: namespaces.Names}
	for i, name := range namespaces.Names {
		at := fmt.Sprintf("%s.namespaces.names[%d]", field, i)
		if name == "" {
			return s, invalid(at, "is empty: name a namespace")
		}
		if err := checkText(at, name); err != nil {
			return s, err
		}
	}
	s.Namespaces.Labels, err = parseRequirements(field+".namespaces", namespaces.MatchLabels, namespaces.MatchExpressions)
	return s, err
}

// parseRequirements converts labels, in the order of their names, and expressions.
func parseRequirements(field string, labels map[string]string, expressions []api.LabelExpression) (list policy.Requirements, err *api.Error) {
	if err := checkLabelMap(field+".matchLabels", labels); err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, policy.Requirement{Key: key, Operator: policy.In, Values: []string{labels[key]}})
	}
	if len(expressions) > mostExpressions {
		return nil, invalid(field+".matchExpressions", "%d of them: at most %d", len(expressions), mostExpressions)
	}
	for i := range expressions {
		r, err := parseExpression(fmt.Sprintf("%s.matchExpressions[%d]", field, i), &expressions[i])
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

func parseExpression(field string, e *api.LabelExpression) (r policy.Requirement, err *api.Error) {
	if e.Key == "" || len(e.Key) > MaxLabelLen {
		return r, invalid(field+".key", "%q is not the name of a label: want 1 to %d bytes", decode.Shorten(e.Key), MaxLabelLen)
	}
	n, err := chooseOne(field+".operator", e.Operator, api.LabelOperators)
	if err != nil {
		return r, err
	}
	r = policy.Requirement{Key: e.Key, Operator: policy.Operator(n), Values: e.Values}
	takesValues := r.Operator == policy.In || r.Operator == policy.NotIn
	switch {
	case takesValues && len(e.Values) == 0:
		return r, invalid(field+".values", "is missing: %s needs at least one value", e.Operator)
	case !takesValues && len(e.Values) > 0:
		return r, invalid(field+".values", "%s takes no values: omit them, or use In or NotIn", e.Operator)
	case len(e.Values) > mostValues:
		return r, invalid(field+".values", "%d of them: at most %d", len(e.Values), mostValues)
	}
	for i, value := range e.Values {
		if len(value) > MaxLabelLen {
			return r, invalid(fmt.Sprintf("%s.values[%d]", field, i), "%q has more than %d bytes", decode.Shorten(value), MaxLabelLen)
		}
	}
	return r, nil
}

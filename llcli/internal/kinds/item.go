// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
)

// orNone lists the existing items, for a message.
func orNone(list []any, key func(any) string) string {
	const few = 10
	var names []string
	for i, item := range list {
		if i == few {
			names = append(names, "…")
			break
		}
		names = append(names, key(item))
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// itemOf reads NAME,KEY=VALUE,KEY… with these keys; a key without a value is true.
func itemOf(nameKey string, keys map[string]form) func(string) (any, error) {
	return func(text string) (any, error) {
		item := map[string]any{}
		for i, part := range strings.Split(text, ",") {
			key, value, hasValue := strings.Cut(part, "=")
			if i == 0 && !hasValue {
				key, value = nameKey, part
			}
			form, known := keys[key]
			if !known {
				return nil, fmt.Errorf("%q: want %s", part, strings.Join(sortedKeys(keys), ", "))
			}
			switch form {
			case formTruth:
				item[key] = !hasValue || value == "true"
			case formNumber:
				item[key] = json.Number(value)
			case formWords:
				item[key] = strings.Split(value, "+")
			default:
				item[key] = value
			}
			if form == formNumber && !isNumber(value) {
				return nil, fmt.Errorf("%s=%s: want a number", key, value)
			}
		}
		return item, nil
	}
}

func isNumber(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool { return r < '0' || r > '9' })
}

func sortedKeys(keys map[string]form) []string {
	var list []string
	for key, form := range keys {
		if form != formTruth {
			key += "="
		}
		list = append(list, key)
	}
	slices.Sort(list)
	return list
}

// AnyOf joins words for the user: a, b or c.
func AnyOf(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// withDefault returns words with a note that the first is the default.
func withDefault(words []string) []string {
	words = slices.Clone(words)
	words[0] += " (default)"
	return words
}

// fillSchema replaces {…} in a schema with the words of fields.
var fillSchema = strings.NewReplacer(
	"{algorithms}", strings.Join(api.Algorithms[1:], ", "),
	"{healthTypes}", AnyOf(api.HealthTypes),
	"{roles}", strings.Join(api.Roles[1:], ", "),
	"{serviceProtocols}", AnyOf(api.ServiceProtocols),
	"{tunnelTypes}", strings.Join(api.TunnelTypes[1:], ", "),
	"{xdpModes}", strings.Join(api.XDPModes[1:], ", "),
).Replace

// nameWord begins a DNS name in a peer.
const nameWord = "name:"

// peerItem reads a selector, or a list of addresses, prefixes and groups, or a list of names.
func peerItem(text string) (any, error) {
	words := strings.Split(text, ",")
	if strings.HasPrefix(text, nameWord) {
		names := []any{}
		for _, word := range words {
			name, ok := strings.CutPrefix(word, nameWord)
			if !ok {
				return nil, fmt.Errorf("%q: a peer is a list of names, or anything else: write two peers", text)
			}
			names = append(names, name)
		}
		return map[string]any{"names": names}, nil
	}
	if strings.HasPrefix(text, "group:") || !strings.Contains(words[0], "=") && strings.ContainsAny(words[0], "./") && !strings.HasPrefix(text, "namespace:") || strings.Contains(words[0], "::") {
		return map[string]any{"prefixes": words}, nil
	}
	selector, err := selectorItem(text)
	if peer, ok := selector.(map[string]any); ok && len(peer) == 0 {
		peer["entities"] = map[string]any{}
	}
	return selector, err
}

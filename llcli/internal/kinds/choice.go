// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
)

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

// SPDX-License-Identifier: Apache-2.0

// Package listing formats lists in messages.
package listing

import (
	"fmt"
	"strings"
)

// First returns the first most items of a list, and how many more there are: "a, b and 3 more".
func First(all []string, most int) string {
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}

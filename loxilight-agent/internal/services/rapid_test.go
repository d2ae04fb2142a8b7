// SPDX-License-Identifier: Apache-2.0

package services

import (
	"testing"

	"pgregory.net/rapid"
)

// drawer draws the input of a randomised test; a failure shows it, minimized.
type drawer struct{ *rapid.T }

func rapidCheck(t *testing.T, property func(drawer)) {
	rapid.Check(t, func(r *rapid.T) { property(drawer{r}) })
}

// count draws a number from 0 to most.
func (d drawer) count(label string, most int) int { return rapid.IntRange(0, most).Draw(d.T, label) }

func (d drawer) yes(label string) bool { return rapid.Bool().Draw(d.T, label) }

func (d drawer) pick(label string, of ...string) string {
	return rapid.SampledFrom(of).Draw(d.T, label)
}

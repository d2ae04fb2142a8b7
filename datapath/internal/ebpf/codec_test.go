// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// TestNumbersAreThoseOfTheHeaders compares constants that have no type in the programs' BTF.
func TestNumbersAreThoseOfTheHeaders(t *testing.T) {
	if brief(0, 1) == 1 {
		t.Skip("the headers are not on an emulated machine")
	}
	files, err := filepath.Glob("../../../ebpf-src/types*.h")
	if err != nil {
		t.Fatal(err)
	}
	var headers []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		headers = append(headers, text...)
	}
	for name, got := range map[string]int64{
		"LAYOUT_VERSION":  layoutVersion,
		"TICK_SHIFT":      tickShift,
		"SLOTS_PER_CHUNK": slotsPerChunk,
		"NEXTHOP_COUNT":   nexthopCount,
		"CROWD_COUNT":     crowdCount,
		"CROWD_SLOTS":     crowdSlots,
	} {
		found := regexp.MustCompile(`(?m)^#define\s+` + name + `\s+(\w+)`).FindSubmatch(headers)
		if found == nil {
			t.Errorf("types*.h have no %s", name)
			continue
		}
		if want, err := strconv.ParseInt(string(found[1]), 0, 64); err != nil || got != want {
			t.Errorf("%s is %d here and %s in types*.h (%v)", name, got, found[1], err)
		}
	}
}

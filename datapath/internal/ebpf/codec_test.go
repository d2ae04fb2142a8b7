// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/nat"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// TestNumbersAreThoseOfTheHeaders compares constants with #defines, which are not in BTF.
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
		"LAYOUT_VERSION":   pin.LayoutVersion,
		"TICK_SHIFT":       kernel.TickShift,
		"WORDS_PER_CHUNK":  kernel.WordsPerChunk,
		"MEMBERS_PER_BYTE": kernel.MembersPerByte,
		"NEXTHOP_COUNT":    kernel.NexthopCount,
		"CT_BLOCK":         kernel.ConnBlock,
		"NAT_VARIANTS":     nat.Variants,
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

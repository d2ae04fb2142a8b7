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
		"LAYOUT_VERSION":      layoutVersion,
		"TICK_SHIFT":          tickShift,
		"SLOTS_PER_CHUNK":     slotsPerChunk,
		"NEXTHOP_COUNT":       nexthopCount,
		"CROWD_COUNT":         crowdCount,
		"CROWD_SLOTS":         crowdSlots,
		"CT_F_REPLY":          ctReply,
		"CT_F_DNAT":           ctDNAT,
		"CT_F_SNAT":           ctSNAT,
		"CT_F_DEVICE":         ctDevice,
		"CT_F_SNAT_LATE":      ctSNATLate,
		"DEVICE_F_LENT4":      deviceLent4,
		"DEVICE_F_LENT6":      deviceLent6,
		"NAT_F_ONE_TO_ONE":    natOneToOne,
		"NAT_F_MAPPING":       natMapping,
		"NAT_F_OPEN":          natOpen,
		"NAT_F_EACH_PORT":     natEachPort,
		"NAT_F_REPLACED":      natReplaced,
		"DEVICE_F_PEER":       devicePeer,
		"DEVICE_F_UPLINK":     deviceUplink,
		"DEVICE_F_PORT":       devicePort,
		"DEVICE_F_PART":       devicePart,
		"BACKEND_F_USABLE":    backendUsable,
		"NETFILTER_F_ROUTED":  netfilterRouted,
		"NETFILTER_F_BRIDGED": netfilterBridged,
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

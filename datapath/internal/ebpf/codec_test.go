// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// TestNumbersAreThoseOfTheHeader compares what has no type in the programs' BTF.
func TestNumbersAreThoseOfTheHeader(t *testing.T) {
	header, err := os.ReadFile("../../../ebpf-src/types.h")
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]int64{
		"LAYOUT_VERSION":      layoutVersion,
		"TICK_SHIFT":          tickShift,
		"SLOTS_PER_CHUNK":     slotsPerChunk,
		"NEXTHOP_COUNT":       nexthopCount,
		"CT_F_REPLY":          ctReply,
		"CT_F_DNAT":           ctDNAT,
		"CT_F_SNAT":           ctSNAT,
		"CT_F_DEVICE":         ctDevice,
		"DEVICE_F_LENT4":      deviceLent4,
		"DEVICE_F_LENT6":      deviceLent6,
		"NAT_F_ONE_TO_ONE":    natOneToOne,
		"NAT_F_MAPPING":       natMapping,
		"NAT_F_OPEN":          natOpen,
		"NAT_F_EACH_PORT":     natEachPort,
		"DEVICE_F_PEER":       devicePeer,
		"DEVICE_F_PORT":       devicePort,
		"DEVICE_F_PART":       devicePart,
		"BACKEND_F_USABLE":    backendUsable,
		"NETFILTER_F_ROUTED":  netfilterRouted,
		"NETFILTER_F_BRIDGED": netfilterBridged,
	} {
		found := regexp.MustCompile(`(?m)^#define\s+` + name + `\s+(\w+)`).FindSubmatch(header)
		if found == nil {
			t.Errorf("types.h has no %s", name)
			continue
		}
		if want, err := strconv.ParseInt(string(found[1]), 0, 64); err != nil || got != want {
			t.Errorf("%s is %d here and %s in types.h (%v)", name, got, found[1], err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
)

// short writes a length of time in at most two units: 3d4h, 2h5m, 1m30s, 250ms.
func short(d api.Duration) string {
	t := time.Duration(d)
	switch {
	case t < 0:
		return "-" + short(-d)
	case t == 0:
		return "0s"
	case t < time.Millisecond:
		return t.String()
	case t < time.Second:
		return t.Round(time.Millisecond).String()
	case t < 10*time.Second:
		return t.Round(100 * time.Millisecond).String()
	}
	t = t.Round(time.Second)
	units := []struct {
		name string
		size time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}
	text, parts := "", 0
	for _, u := range units {
		n := t / u.size
		t -= n * u.size
		if n > 0 {
			text += strconv.FormatInt(int64(n), 10) + u.name
		}
		if text != "" {
			parts++
		}
		if parts == 2 {
			break
		}
	}
	return text
}

// size writes a count of bytes with a binary unit: 512, 1.5K, 20M.
func size(n uint64) string {
	if n < 1024 {
		return strconv.FormatUint(n, 10)
	}
	value, unit := float64(n)/1024, 0
	for value >= 1023.5 && unit < len("KMGTPE")-1 {
		value /= 1024
		unit++
	}
	if value < 9.95 {
		return fmt.Sprintf("%.1f%c", value, "KMGTPE"[unit])
	}
	return fmt.Sprintf("%.0f%c", value, "KMGTPE"[unit])
}

// count writes a number with its thousands apart: 1,048,576.
func count(n uint64) string {
	digits := strconv.FormatUint(n, 10)
	var out strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			out.WriteByte(',')
		}
		out.WriteRune(d)
	}
	return out.String()
}

// room writes a capacity: 65,536, and for sizes beyond counting a power of two (2^48), with a + if
// the capacity may exceed the reported number.
func room(n uint64) string {
	switch {
	case n >= 1<<53:
		return "2^53+"
	case n >= 1<<40:
		return "2^" + strconv.Itoa(int(math.Round(math.Log2(float64(n)))))
	default:
		return count(n)
	}
}

// labels writes labels in order: a=1,b=2.
func labels(l map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(l)) {
		out = append(out, key+"="+l[key])
	}
	return join(out)
}

// percent writes the share of used in size.
func percent(used, size uint64) string {
	if size == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(used)/float64(size))
}

// plural writes a number of things: 1 packet, 2,000 packets.
func plural(n uint64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return count(n) + " " + thing
}

// noneFound reports that there is nothing to show of a kind, or of something else in the plural.
func (a *app) noneFound(what string) {
	switch k := findKind(what); {
	case k == nil:
	case k.name == api.KindNAT:
		what = "NAT objects"
	default:
		what = k.name + "s"
	}
	a.note("no %s found", what)
}

// SPDX-License-Identifier: Apache-2.0

package output

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
)

// Prefixed returns prefix and text, or nothing if text is empty.
func Prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// Short writes a duration in at most two units: 3d4h, 2h5m, 1m30s, 250ms.
func Short(d api.Duration) string {
	t := time.Duration(d)
	switch {
	case t < 0:
		return "-" + Short(-d)
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

// Size writes a count of bytes with a binary unit: 512, 1.5K, 20M.
func Size(n uint64) string {
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

// Bytes is Size with its unit, for text without a title: 1 byte, 512 bytes, 1.5K bytes.
func Bytes(n uint64) string {
	if n == 1 {
		return "1 byte"
	}
	return Size(n) + " bytes"
}

// Count writes a number with thousands separators: 1,048,576.
func Count(n uint64) string {
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

// Room writes a capacity: 65,536, and for very large sizes a power of two (2^48), with a + if the
// capacity may exceed the reported number.
func Room(n uint64) string {
	switch {
	case n >= 1<<53:
		return "2^53+"
	case n >= 1<<40:
		return "2^" + strconv.Itoa(int(math.Round(math.Log2(float64(n)))))
	default:
		return Count(n)
	}
}

// Labels writes labels in order: a=1,b=2.
func Labels(l map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(l)) {
		out = append(out, key+"="+l[key])
	}
	return Join(out)
}

// Percent writes the share of used in size.
func Percent(used, size uint64) string {
	if size == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(used)/float64(size))
}

// Plural writes a number of things: 1 packet, 2,000 packets.
func Plural(n uint64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return Count(n) + " " + thing
}

// Revisions returns the revisions of a pending change for a sentence, oldest first.
func Revisions(p *api.PendingConfirm) string {
	if len(p.Joined) == 0 {
		return fmt.Sprintf("revision %d", p.Revision)
	}
	list := make([]string, 0, len(p.Joined)+1)
	for _, revision := range append(slices.Clone(p.Joined), p.Revision) {
		list = append(list, strconv.FormatUint(revision, 10))
	}
	return "revisions " + strings.Join(list, ", ")
}

// UserOf returns the name of the user who made a change, or its number.
func UserOf(author api.Author) string { return cmp.Or(author.User, strconv.Itoa(author.UID)) }

// Join writes a list: a,b, and - if it is empty.
func Join(texts []string) string { return cmp.Or(strings.Join(texts, ","), "-") }

// Number writes a number, and - for 0.
func Number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// YesNo writes a truth value.
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// PerSecond writes a rate: 0, 0.5, 12, 1,234.
func PerSecond(r float64) string {
	if r > 0 && r < 9.95 {
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return Count(uint64(r + 0.5))
}

// Bits formats a bit rate with a decimal (SI) prefix: 512, 1.5k, 20M, 9.8G.
func Bits(r float64) string {
	unit := 0
	for r >= 999.5 && unit < len(" kMGTPE")-1 {
		r /= 1000
		unit++
	}
	digits := 0
	if unit > 0 && r < 9.95 {
		digits = 1
	}
	text := strconv.FormatFloat(r, 'f', digits, 64)
	if unit > 0 {
		text += string(" kMGTPE"[unit])
	}
	return text
}

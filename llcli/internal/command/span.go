// SPDX-License-Identifier: Apache-2.0

package command

import (
	"strconv"
	"strings"
	"time"
)

// Days reads a number of days, such as 30d.
func Days(text string) (days int, ok bool) {
	number, ok := strings.CutSuffix(text, "d")
	n, err := strconv.ParseUint(number, 10, 16)
	return int(n), ok && err == nil
}

// Span reads a length of time, such as 30d or 1h30m, that is not negative.
func Span(flag, text string) (time.Duration, error) {
	if days, ok := Days(text); ok {
		return time.Duration(days) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, Usagef("--%s %q: want a length of time, such as 30d, 12h or 90m", flag, text)
	}
	return d, nil
}

// SPDX-License-Identifier: Apache-2.0

package output

import (
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                                     "0s",
		1500 * time.Nanosecond:                "1.5µs",
		250 * time.Millisecond:                "250ms",
		1240 * time.Millisecond:               "1.2s",
		59600 * time.Millisecond:              "1m",
		90 * time.Second:                      "1m30s",
		time.Hour:                             "1h",
		time.Hour + 5*time.Second:             "1h",
		26*time.Hour + 3*time.Minute:          "1d2h",
		-90 * time.Second:                     "-1m30s",
		400*24*time.Hour + 59*time.Minute + 1: "400d",
	} {
		if got := Short(api.Duration(d)); got != want {
			t.Errorf("short(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[uint64][3]string{
		0:                    {"0", "0", "0"},
		999:                  {"999", "999", "999"},
		1023:                 {"1023", "1,023", "1.0k"},
		1024:                 {"1.0K", "1,024", "1.0k"},
		10189:                {"10K", "10,189", "10k"},
		1048575:              {"1.0M", "1,048,575", "1.0M"},
		987654321:            {"942M", "987,654,321", "988M"},
		18446744073709551615: {"16E", "18,446,744,073,709,551,615", "18E"},
	} {
		if got := [3]string{Size(n), Count(n), Bits(float64(n))}; got != want {
			t.Errorf("%d: size, count, bits = %q, want %q", n, got, want)
		}
	}
}

// TestRoom: large numbers are written as a power of two.
func TestRoom(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 253: "253", 1048576: "1,048,576", 1<<32 - 3: "4,294,967,293", 1<<48 - 3: "2^48", 1 << 53: "2^53+"} {
		if got := Room(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"time"
)

// Duration is a length of time, written as in Go: "1h30m", "250ms".
type Duration time.Duration

// String writes d as in a document.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON implements [json.Marshaler].
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON implements [json.Unmarshaler].
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("duration %s: want a string such as \"30s\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration %q: want a number and a unit, such as \"30s\" or \"1h30m\"", s)
	}
	*d = Duration(v)
	return nil
}

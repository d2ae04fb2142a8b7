// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"slices"
	"testing"
	"time"

	"github.com/loxilight/loxilight/loxilightd/internal/state/record"
)

// TestPendingFormat: records of version 1, without joined revisions, are still read.
func TestPendingFormat(t *testing.T) {
	clock := Clock{Now: time.Now, Boot: func() (string, time.Duration) { return "first", time.Hour }}
	p := clock.Begin(7, time.Minute, Author{User: "root"})
	p.Joined = []uint64{4, 6}
	got, ok := DecodePending(p.Encode())
	if !ok || got.Revision != 7 || !slices.Equal(got.Joined, p.Joined) || !got.Until.Equal(p.Until) || got.bootID != "first" || got.bootAt != time.Hour {
		t.Errorf("%+v, %t, want %+v", got, ok, p)
	}
	p.Joined = nil
	first := p.Encode()
	first[4] = 1 // the version
	first = first[:len(first)-1]
	record.Seal(PendingKey, first)
	if got, ok := DecodePending(first); !ok || got.Revision != 7 || got.Joined != nil || got.bootID != "first" {
		t.Errorf("version 1: %+v, %t", got, ok)
	}
	first[4] = 9
	record.Seal(PendingKey, first)
	if _, ok := DecodePending(first); ok {
		t.Error("a version of the future is read")
	}
}

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
)

func TestErrorOnTheWire(t *testing.T) {
	err := Errorf(ReasonInvalid, "%q is no address", "10.0.1").At("Service/web", "spec.backends[3].address")
	got, _ := json.Marshal(FromError(fmt.Errorf("apply: %w", err)))
	want := `{"code":1,"message":"Service/web: spec.backends[3].address: \"10.0.1\" is no address",` +
		`"data":{"reason":"invalid","object":"Service/web","field":"spec.backends[3].address"}}`
	if string(got) != want {
		t.Errorf("error:\n got %s\nwant %s", got, want)
	}
}

func TestFromErrorOfOtherType(t *testing.T) {
	e := FromError(errors.New("boom"))
	if e.Code != 9 || e.Reason() != ReasonInternal || e.Message != "boom" {
		t.Errorf("FromError = %+v, want internal (9) boom", e)
	}
}

func TestDuration(t *testing.T) {
	var d Duration
	for _, bad := range []string{`5`, `"5"`, `"five"`, `null5`} {
		if err := d.UnmarshalJSON([]byte(bad)); err == nil {
			t.Errorf("duration %s was taken as %s", bad, d)
		}
	}
	if err := json.Unmarshal([]byte(`"90s"`), &d); err != nil || d.String() != "1m30s" {
		t.Errorf("duration = %s, %v; want 1m30s", d, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	"github.com/loxilight/loxilight/api/client"
)

// TestConcerns: an event is of the objects that it names.
func TestConcerns(t *testing.T) {
	for _, tt := range []struct {
		data, of string
		want     bool
	}{
		{`{"kind":"Service","name":"web"}`, "service/web", true},
		{`{"kind":"Service","name":"web"}`, "service/api", false},
		{`{"kind":"Endpoint","name":"shop/web-1"}`, "endpoint/shop/web-1", true},
		{`{"reason":"spoofed","endpoint":"shop/web-1"}`, "endpoint/shop/web-1", true},
		{`{"reason":"spoofed","endpoint":"shop/web-1"}`, "ep/shop/web-2", false},
		{`{"reason":"no_backend","endpoint":"shop/web-1","service":"web"}`, "service/web", true},
		{`{"reason":"no_backend","endpoint":"shop/web-1","service":"web"}`, "endpoint/shop/web-1", true},
		{`{"action":"opened","from":{"endpoint":"shop/web-1"}}`, "endpoint/shop/web-1", true},
		{`{"action":"opened","to":{"endpoint":"shop/web-1"}}`, "endpoint/shop/web-1", true},
		{`{"action":"opened","service":"web"}`, "endpoint/shop/web-1", false},
	} {
		if got := concerns(&client.Event{Topic: "any", Data: []byte(tt.data)}, tt.of); got != tt.want {
			t.Errorf("%s of %s: %t", tt.data, tt.of, got)
		}
	}
}

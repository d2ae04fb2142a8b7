// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"strings"
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
		{`{"reason":"spoofed","endpoint":"4f1d0c.eth0"}`, "pod/shop/web-1", true},
		{`{"reason":"spoofed","endpoint":"4f1d0c.eth0"}`, "endpoint/shop/web-1", true},
		{`{"reason":"spoofed","endpoint":"4f1d0c.eth0"}`, "endpoint/4f1d0c.eth0", true},
		{`{"reason":"spoofed","endpoint":"4f1d0c.eth0"}`, "pod/shop/web-2", false},
		{`{"reason":"spoofed","endpoint":"5a2e1b.eth0"}`, "pod/shop/web-2", true},
		{`{"kind":"Endpoint","name":"5a2e1b.eth0"}`, "pod/shop/web-2", true},
		{`{"action":"opened","to":{"endpoint":"5a2e1b.eth0"}}`, "pod/shop/web-2", true},
	} {
		word, name, _ := strings.Cut(tt.of, "/")
		f := &eventsOf{kind: kindOf(word), name: name, ours: map[string]bool{name: true}}
		f.podOf = func(_ context.Context, endpoint string) (string, error) {
			return map[string]string{"4f1d0c.eth0": "shop/web-1", "5a2e1b.eth0": "shop/web-2"}[endpoint], nil
		}
		if got := f.concerns(t.Context(), &client.Event{Topic: "any", Data: []byte(tt.data)}); got != tt.want {
			t.Errorf("%s of %s: %t", tt.data, tt.of, got)
		}
	}
}

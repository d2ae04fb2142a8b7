// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
)

// TestConcerns: an event concerns the objects that it names.
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
		{`{"kind":"FirewallRule","name":"rest"}`, "firewall/rest", true},
		{`{"kind":"NAT","name":"rest"}`, "firewall/rest", false},
		{`{"reason":"firewall","device":"wan0","rule":"rest"}`, "firewall/rest", true},
		{`{"reason":"firewall","device":"wan0","rule":"rest"}`, "fw/other", false},
		{`{"rule":"ssh","action":"allow","device":"wan0"}`, "firewall/ssh", true},
		{`{"reason":"firewall","device":"wan0","rule":"rest"}`, "interface/wan0", true},
		{`{"reason":"firewall","device":"wan1","rule":"rest"}`, "interface/wan0", false},
		{`{"reason":"no_backend","device":"wan0","service":"web"}`, "interface/wan0", true},
		{`{"action":"opened","service":"web","forth":{"device":"wan0"}}`, "interface/wan0", true},
		{`{"reason":"spoofed","device":"vx100"}`, "tunnel/vx100", true},
		{`{"action":"opened","forth":{"tunnel":"vx100","peer":"node2"}}`, "tunnel/vx100", true},
		{`{"action":"opened","forth":{"tunnel":"vx100","peer":"node2"}}`, "peer/node2", true},
		{`{"action":"opened","back":{"tunnel":"vx100","peer":"node2"}}`, "peer/node3", false},
		{`{"reason":"no_port","nat":"out"}`, "nat/out", true},
		{`{"reason":"no_port","nat":"out"}`, "nat/in", false},
		{`{"action":"opened","nat":"snat","translatedBy":["out"]}`, "nat/out", true},
		{`{"action":"opened","nat":"snat"}`, "nat/snat", false},
		{`{"action":"opened","to":{"endpoint":"5a2e1b.eth0"}}`, "pod/shop/web-2", true},
	} {
		word, name, _ := strings.Cut(tt.of, "/")
		f := &eventsOf{kind: kinds.NameOf(word), name: name, ours: map[string]bool{name: true}, devices: map[string]bool{name: true}}
		f.podOf = func(_ context.Context, endpoint string) (string, error) {
			return map[string]string{"4f1d0c.eth0": "shop/web-1", "5a2e1b.eth0": "shop/web-2"}[endpoint], nil
		}
		if got := f.concerns(t.Context(), &client.Event{Topic: topicOf(tt.data), Data: []byte(tt.data)}); got != tt.want {
			t.Errorf("%s of %s: %t", tt.data, tt.of, got)
		}
	}
}

// TestConcernsDeleted: events of a deleted object are found by its name, and events of a deleted
// pod or Kubernetes service by the names of the objects that it consisted of.
func TestConcernsDeleted(t *testing.T) {
	for _, tt := range []struct {
		data, of string
		want     bool
	}{
		{`{"kind":"Service","name":"web"}`, "service/web", true},
		{`{"kind":"Service","name":"web/inside"}`, "service/web", false},
		{`{"kind":"Service","name":"shop/web:http"}`, "service/shop/web", true},
		{`{"kind":"Service","name":"shop/web/nodeport"}`, "service/shop/web", true},
		{`{"kind":"Service","name":"shop/webshop"}`, "service/shop/web", false},
		{`{"kind":"Service","name":"shop/web:http/inside"}`, "service/shop/web:http", false},
		{`{"reason":"no_backend","service":"shop/web:http"}`, "service/shop/web", true},
		{`{"kind":"Endpoint","name":"shop/web-1/0a1b2c3d4e"}`, "pod/shop/web-1", true},
		{`{"kind":"Endpoint","name":"shop/web-12/0a1b2c3d4e"}`, "pod/shop/web-1", false},
		{`{"reason":"spoofed","endpoint":"shop/web-1/0a1b2c3d4e"}`, "pod/shop/web-1", true},
		{`{"kind":"Interface","name":"wan0"}`, "interface/wan0", true},
	} {
		word, name, _ := strings.Cut(tt.of, "/")
		f := &eventsOf{kind: kinds.NameOf(word), name: name, ours: map[string]bool{name: true}, gone: true}
		f.podOf = func(context.Context, string) (string, error) {
			return "/", api.Errorf(api.ReasonNotFound, "no such pod")
		}
		if got := f.concerns(t.Context(), &client.Event{Topic: topicOf(tt.data), Data: []byte(tt.data)}); got != tt.want {
			t.Errorf("%s of %s: %t", tt.data, tt.of, got)
		}
	}
}

// topicOf returns the topic of an event.
func topicOf(data string) string {
	switch {
	case strings.Contains(data, `"reason"`):
		return api.TopicDrops
	case strings.Contains(data, `"opened"`):
		return api.TopicConnections
	default:
		return "any"
	}
}

// TestTopicsAbout: a topic whose events cannot name the object is rejected, and for a kind that
// only a newer daemon has, changes and status are shown.
func TestTopicsAbout(t *testing.T) {
	for _, tt := range []struct{ of, topics, want, refused string }{
		{"service/web", "", "changes status drops connections", ""},
		{"interface/wan0", "", "changes status drops connections firewall policy", ""},
		{"interface/wan0", "drops", "drops", ""},
		{"policy/db", "", "changes status drops policy", ""},
		{"fw/rest", "drops firewall", "drops firewall", ""},
		{"route/default", "drops", "", "do not name objects of kind Route"},
		{"group/admins", "drops", "", "AddressGroup"},
		{"peer/node2", "drops", "", "changes, status, connections"},
		{"Shield/x", "", "changes status", ""},
	} {
		got, err := topicsAbout(tt.of, strings.Fields(tt.topics))
		if strings.Join(got, " ") != tt.want || (err != nil) != (tt.refused != "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("%s of %s: %q, %v", tt.topics, tt.of, got, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"encoding/json"
	"testing"
)

// TestPolicyItems: rules and selectors as flags become objects.
func TestPolicyItems(t *testing.T) {
	for _, tt := range []struct {
		read       func(string) (any, error)
		text, want string // empty: rejected
	}{
		{selectorItem, "all", `{}`},
		{selectorItem, "set:vms,namespace:a,namespace:b,app=db,x=", `{"entities":{"matchLabels":{"app":"db","x":""}},"namespaces":{"names":["a","b"]},"set":"vms"}`},
		{selectorItem, "all,app=db", ""},
		{selectorItem, "namespace:", ""},
		{selectorItem, "=db", ""},
		{ruleItem("from"), "allow", `{"action":"allow"}`},
		{ruleItem("from"), "deny from all from 10.0.0.0/8,group:a from ::1 from app=x.y/z", `{"action":"deny","from":[{"entities":{}},{"prefixes":["10.0.0.0/8","group:a"]},{"prefixes":["::1"]},{"entities":{"matchLabels":{"app":"x.y/z"}}}]}`},
		{ruleItem("to"), "pass to example.org/app=db", `{"action":"pass","to":[{"entities":{"matchLabels":{"example.org/app":"db"}}}]}`},
		{ruleItem("to"), "pass to namespace:a.b", `{"action":"pass","to":[{"namespaces":{"names":["a.b"]}}]}`},
		{ruleItem("to"), "reject name x port UDP port sctp/9 port tcp/80-90 port web port udp/dns", `{"action":"reject","name":"x","ports":[{"protocol":"udp"},{"port":9,"protocol":"sctp"},{"end":90,"port":80,"protocol":"tcp"},{"name":"web"},{"name":"dns","protocol":"udp"}]}`},
		{ruleItem("to"), "allow to", ""},
		{ruleItem("to"), "", ""},
		{ruleItem("to"), "allow from app=x", ""},
		{ruleItem("to"), "allow port tcp/8x", ""},
		{ruleItem("to"), "allow port tcp/80-", ""},
	} {
		item, err := tt.read(tt.text)
		text, _ := json.Marshal(item)
		if err != nil {
			text = nil
		}
		if string(text) != tt.want {
			t.Errorf("%s: %s (%v), want %s", tt.text, text, err, tt.want)
		}
	}
}

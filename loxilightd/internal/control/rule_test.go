// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func TestGroupsThatAreReferredTo(t *testing.T) {
	h := newHarness(t)
	h.wantError("apply", `{"objects":[{"kind":"FirewallRule","name":"r","spec":{"action":"deny","match":{"destination":["group:g"]}}}]}`,
		1, "FirewallRule/r", "spec.match.destination", "there is no AddressGroup/g")
	h.wantError("apply", `{"objects":[{"kind":"AddressGroup","name":"a","spec":{"members":["group:b"]}},{"kind":"AddressGroup","name":"b","spec":{"members":["group:a"]}}]}`,
		1, "AddressGroup/a", "spec.members", "form a cycle")
	h.wantError("apply", `{"objects":[{"kind":"AddressGroup","name":"a","spec":{"members":["group:a"]}}]}`, 1, "AddressGroup/a", "spec.members", "form a cycle")
	h.want("apply", `{"objects":[{"kind":"FirewallRule","name":"r","spec":{"action":"deny","match":{"source":"group:g"}}},
		{"kind":"AddressGroup","name":"g","spec":{"members":["group:in"]}},{"kind":"AddressGroup","name":"in","spec":{"members":["10.0.0.0/8"]}}]}`,
		`{"revision":1,"changes":[{"kind":"FirewallRule","name":"r","action":"created"},{"kind":"AddressGroup","name":"g","action":"created"},{"kind":"AddressGroup","name":"in","action":"created"}],"summary":{"created":3}}`)
	h.wantError("delete", `{"objects":[{"kind":"AddressGroup","name":"g"}]}`, 3, "AddressGroup/g", "", "FirewallRule/r refers to it in spec.match.source")
	h.wantError("delete", `{"objects":[{"kind":"AddressGroup","name":"in"}]}`, 3, "AddressGroup/in", "", "AddressGroup/g refers to it in spec.members")
	h.wantError("replace", `{"owner":"cli","kinds":["AddressGroup"],"objects":[{"kind":"AddressGroup","name":"in","spec":{}}]}`,
		3, "AddressGroup/g", "", "FirewallRule/r refers")
	h.want("replace", `{"owner":"cli","kinds":["AddressGroup","FirewallRule"],"objects":[]}`,
		`{"revision":2,"changes":[{"kind":"AddressGroup","name":"g","action":"deleted"},{"kind":"AddressGroup","name":"in","action":"deleted"},{"kind":"FirewallRule","name":"r","action":"deleted"}],"summary":{"deleted":3}}`)
}

// TestOneNamespace: if host and switch are the same namespace, two objects cannot have the same
// claim even if they name different namespaces.
func TestOneNamespace(t *testing.T) {
	route := func(name, rest string) string {
		return `{"kind":"Route","name":"` + name + `","spec":{"prefix":"10.9.0.0/16","via":"10.1.0.254"` + rest + `}}`
	}
	port := func(name, rest string) string {
		return `{"kind":"Interface","name":"` + name + `","spec":{` + rest + `}}`
	}
	apply := func(objects ...string) string { return `{"objects":[` + strings.Join(objects, ",") + `]}` }
	for _, tt := range []struct{ first, second, object, field, text string }{
		{route("a", ``), route("b", `,"netns":"switch"`), "Route/b", "spec.prefix", "the route to 10.9.0.0/16 in the switch with metric 0 belongs to Route/a already, which has netns host"},
		{route("a", `,"netns":"switch"`), route("b", ``), "Route/b", "spec.prefix", "the route to 10.9.0.0/16 with metric 0 belongs to Route/a already, which has netns switch"},
		{port("a", `"device":"eth0"`), port("b", `"device":"eth0","netns":"switch"`), "Interface/b", "spec.device", "device eth0 in the switch belongs to Interface/a already"},
		{port("a", `"address":"192.0.2.1","netns":"switch"`), port("b", `"address":"192.0.2.1"`), "Interface/b", "spec.address", "the device of address 192.0.2.1 belongs to Interface/a already"},
	} {
		h := newHarnessWith(t, state.Config{Dir: t.TempDir(), Tables: datapath.DefaultTables(), OneNamespace: true})
		h.wantError("apply", apply(tt.first, tt.second), 3, tt.object, tt.field, tt.text)
		h.ask(admin, "apply", apply(tt.first))
		h.wantError("apply", apply(tt.second), 3, tt.object, tt.field, "with switch.namespace: host both are one network namespace: ")
		if got := h.ask(admin, "apply", apply(tt.first)); !strings.Contains(got, `"unchanged":1`) {
			t.Errorf("reported once more: %s", got)
		}
		instead := `{"owner":"cli","kinds":["Route","Interface"],"objects":[` + tt.second + `]}`
		if got := h.ask(admin, "replace", instead); !strings.Contains(got, `"summary":{"created":1,"deleted":1}`) {
			t.Errorf("one instead of the other: %s", got)
		}
		h.ask(admin, "replace", `{"owner":"cli","kinds":["Route","Interface"],"objects":[],"confirm":"1h"}`)
		h.wantError("apply", apply(strings.Replace(tt.first, `"spec"`, `"owner":"k8s","spec"`, 1)), 3, strings.Replace(tt.object, "/b", "/a", 1), tt.field, " belongs to "+tt.object+" already, which has netns ")
		two := newHarness(t)
		if got := two.ask(admin, "apply", apply(tt.first, tt.second)); !strings.Contains(got, `"summary":{"created":2}`) {
			t.Errorf("two namespaces: %s", got)
		}
	}
}

// TestOneNamespaceSince: if host and switch became the same namespace later, a store may contain
// two objects with the same claim. Other objects can still be changed; one of the two can be
// deleted, and restored by a rollback.
func TestOneNamespaceSince(t *testing.T) {
	dir := t.TempDir()
	two := newHarnessAt(t, dir, datapath.DefaultTables())
	two.ask(admin, "apply", `{"objects":[{"kind":"Route","name":"a","spec":{"prefix":"10.9.0.0/16","device":"e"}},
		{"kind":"Route","name":"b","spec":{"prefix":"10.9.0.0/16","device":"e","netns":"switch"}}]}`)
	if err := two.Store.Close(); err != nil {
		t.Fatal(err)
	}
	h := newHarnessWith(t, state.Config{Dir: dir, Tables: datapath.DefaultTables(), OneNamespace: true})
	for _, step := range []struct{ method, params, want string }{
		{"apply", `{"objects":[{"kind":"Route","name":"c","spec":{"prefix":"10.8.0.0/16","device":"e"}}]}`, `"created":1`},
		{"delete", `{"objects":[{"kind":"Route","name":"b"}]}`, `"deleted":1`},
		{"rollback", `{"revision":2}`, `"created":1`},
	} {
		if got := h.ask(admin, step.method, step.params); !strings.Contains(got, step.want) {
			t.Errorf("%s: %s", step.method, got)
		}
	}
}

func TestNetworkConflicts(t *testing.T) {
	h := newHarness(t)
	h.ask(admin, "apply", `{"objects":[{"kind":"Bridge","name":"a","spec":{"device":"br0","ports":[{"device":"p1"}]}},
		{"kind":"Route","name":"r","spec":{"prefix":"2001:db8::/32","device":"e"}},{"kind":"Interface","name":"p1","spec":{"device":"p1","netns":"switch"}}]}`)
	h.wantError("apply", `{"objects":[{"kind":"Bridge","name":"b","spec":{"device":"br1","ports":[{"device":"p2"},{"device":"p1"}]}}]}`,
		3, "Bridge/b", "spec.ports[1].device", "device p1 in the switch belongs to Bridge/a already")
	h.wantError("apply", `{"objects":[{"kind":"Bridge","name":"b","spec":{"device":"p1"}}]}`, 3, "Bridge/b", "spec.device", "belongs to Bridge/a")
	h.wantError("apply", `{"objects":[{"kind":"Route","name":"s","spec":{"prefix":"2001:db8::/32","device":"f","metric":1024}}]}`,
		3, "Route/s", "spec.prefix", "the route to 2001:db8::/32 with metric 1024 belongs to Route/r")
	got := h.ask(admin, "apply", `{"objects":[{"kind":"Route","name":"s","spec":{"prefix":"2001:db8::/32","device":"f","netns":"switch"}},
		{"kind":"Bridge","name":"a","spec":{"device":"br0"}},{"kind":"Bridge","name":"b","spec":{"device":"br1","ports":[{"device":"p1"}]}}]}`)
	if !strings.Contains(got, `"summary":{"created":2,"updated":1}`) {
		t.Errorf("a port that moves, and a route elsewhere: %s", got)
	}
}

// TestRoutesOfPeers: the route to the prefixes behind a Peer is an ordinary entry in a routing
// table, the switch's if the Peer has a tunnel.
func TestRoutesOfPeers(t *testing.T) {
	h := newHarness(t)
	h.ask(admin, "apply", `{"objects":[{"kind":"Peer","name":"a","spec":{"underlay":["192.0.2.2","2001:db8::2"],"prefixes":["10.9.0.0/16","fd09::/64"],"tunnel":"t"}},
		{"kind":"Peer","name":"b","spec":{"underlay":"192.0.2.3","prefixes":"10.8.0.0/16"}},{"kind":"Route","name":"r","spec":{"prefix":"10.7.0.0/16","peer":"a"}}]}`)
	route := func(name, prefix, netns string) string {
		return `{"objects":[{"kind":"Route","name":"` + name + `","spec":{"prefix":"` + prefix + `","device":"e","netns":"` + netns + `"}}]}`
	}
	h.wantError("apply", route("s", "10.9.0.0/16", "switch"), 3, "Route/s", "spec.prefix", "the route to 10.9.0.0/16 in the switch with metric 0 belongs to Peer/a")
	h.wantError("apply", route("s", "fd09::/64", "switch"), 3, "Route/s", "spec.prefix", "with metric 1024 belongs to Peer/a")
	h.wantError("apply", route("s", "10.8.0.0/16", "host"), 3, "Route/s", "spec.prefix", "the route to 10.8.0.0/16 with metric 0 belongs to Peer/b")
	h.wantError("apply", route("s", "10.7.0.0/16", "switch"), 3, "Route/s", "spec.prefix", "belongs to Route/r")
	for _, elsewhere := range []string{route("s", "10.9.0.0/16", "host"), route("t", "10.8.0.0/16", "switch")} {
		if got := h.ask(admin, "apply", elsewhere); !strings.Contains(got, `"summary":{"created":1}`) {
			t.Errorf("in the other namespace: %s", got)
		}
	}
	h.wantError("apply", `{"objects":[{"kind":"Peer","name":"b","spec":{"underlay":"192.0.2.3","prefixes":"10.8.0.0/16","tunnel":"t"}}]}`,
		3, "Peer/b", "spec.prefixes[0]", "belongs to Route/t")
}

func TestRulesNeedRoom(t *testing.T) {
	tables := datapath.DefaultTables()
	tables.Rules, tables.Prefixes = 2, 5
	h := newHarnessAt(t, t.TempDir(), tables)
	h.ask(admin, "apply", `{"objects":[{"kind":"NAT","name":"n","spec":{"type":"masquerade"}},{"kind":"FirewallRule","name":"r","spec":{"action":"deny","match":{"source":["10.0.0.1","10.0.0.3"]}}}]}`)
	h.wantError("apply", `{"objects":[{"kind":"FirewallRule","name":"s","spec":{"action":"deny"}}]}`, 4, "FirewallRule/s", "", "table rules is full: 2 of 2 entries used, 3 with this change")
	h.wantError("apply", `{"objects":[{"kind":"AddressGroup","name":"g","spec":{"members":["10.0.0.0-10.0.0.6","10.1.0.0/16"]}}]}`,
		4, "AddressGroup/g", "", "table prefixes is full: 2 of 5 entries used, 6 with this change; delete something, or raise tables.prefixes")
	status := result[api.StatusResult](h, "status", `{}`)
	if c := status.Capacity; c["rules"] != (api.Usage{Used: 2, Size: 2}) || c["prefixes"] != (api.Usage{Used: 2, Size: 5}) {
		t.Errorf("capacity %+v", c)
	}
}

func TestCountersOfRules(t *testing.T) {
	h := newHarness(t)
	h.ask(admin, "apply", `{"objects":[{"kind":"NAT","name":"n","spec":{"type":"masquerade"}},{"kind":"FirewallRule","name":"rr","spec":{"action":"deny"}},{"kind":"AddressGroup","name":"g","spec":{}}]}`)
	h.want("counters", `{"kind":"FirewallRule","name":"rr"}`, `{"packets":5,"bytes":2,"drops":{"firewall":5}}`)
	h.ask(admin, "apply", `{"objects":[{"kind":"FirewallRule","name":"rr","spec":{"action":"allow"}}]}`)
	h.want("counters", `{"kind":"FirewallRule","name":"rr"}`, `{"packets":5,"bytes":2,"drops":{}}`)
	h.want("counters", `{"kind":"NAT","name":"n"}`, `{"packets":0,"bytes":0,"connections":8,"drops":{}}`)
	h.wantError("counters", `{"kind":"AddressGroup","name":"g"}`, 6, "AddressGroup/g", "", "no counters")
}

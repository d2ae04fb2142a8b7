// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestForeignWords: words of other tools mean what they mean there.
func TestForeignWords(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	for _, tt := range []struct{ command, kind, name, want string }{
		{"firewall add a --action drop --source any --protocol tcp --port ssh,https --in any", api.KindFirewallRule, "a",
			`{"action":"deny","match":{"ports":["22","443"],"protocol":["tcp"]}}`},
		{"firewall add b --action accept --port any", api.KindFirewallRule, "b", `{"action":"allow"}`},
		{"firewall add c --action deny --source any --destination 10.0.0.0/8", api.KindFirewallRule, "c",
			`{"action":"deny","match":{"destination":["10.0.0.0/8"]}}`},
		{"nat add web --dnat --port 8080 --to 192.168.1.10:80", api.KindNAT, "web",
			`{"match":{"ports":["8080"]},"to":{"addresses":["192.168.1.10"],"ports":["80"]},"type":"dnat"}`},
		{"nat add web6 --dnat --port 8080 --to [2001:db8::1]:80", api.KindNAT, "web6",
			`{"match":{"ports":["8080"]},"to":{"addresses":["2001:db8::1"],"ports":["80"]},"type":"dnat"}`},
		{"route add default --via 192.0.2.1", api.KindRoute, "default", `{"prefix":"0.0.0.0/0","via":"192.0.2.1"}`},
		{"route add default6 --prefix default --via 2001:db8::1", api.KindRoute, "default6", `{"prefix":"::/0","via":"2001:db8::1"}`},
	} {
		if code, _, errs := s.run(t.Context(), strings.Fields(tt.command)...); code != ExitDone {
			t.Errorf("%s: exit code %d: %s", tt.command, code, errs)
		}
		o := s.daemon.objects[api.ObjectRef{Kind: tt.kind, Name: tt.name}]
		var spec any
		_ = json.Unmarshal(o.Spec, &spec) // in the order of the alphabet
		if got, _ := json.Marshal(spec); string(got) != tt.want {
			t.Errorf("%s: spec %s, want %s", tt.command, got, tt.want)
		}
	}
	for command, want := range map[string]string{
		"firewall add x --action deny --source !10.0.0.0/8":  "there is no negation",
		"nat add x --dnat --to 192.168.1.10:80 --to-port 81": "so does --to-port",
		"firewall add x --action deny --wait 1":              "--wait",
		"get all":                                            "llcli export",
	} {
		if code, _, errs := s.run(t.Context(), strings.Fields(command)...); code != ExitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d: %s", command, code, errs)
		}
	}
	s.daemon.fail[api.MethodApply] = api.Errorf(api.ReasonInvalid, `"abc" is not a port`).At("FirewallRule/x", "spec.match.ports[0]")
	if _, _, errs := s.run(t.Context(), "firewall", "add", "x", "--action", "deny", "--port", "abc"); !strings.Contains(errs, "llcli: --port: ") {
		t.Errorf("an error of a flag: %s", errs)
	}
}

// TestExplainWords: a drop reason that is the name of a kind, too, is explained with it, and
// fields are found in the schemas.
func TestExplainWords(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	for word, wants := range map[string][]string{
		"firewall":       {"kind: FirewallRule", "What to do: llcli counters", "before translation"},
		"interface.role": {"role:", "uplink"},
		"uplink":         {"the default"},
		"masquerade":     {"PodNetwork"},
		"hooks":          {"FirewallRule  hooks:"},
	} {
		code, out, errs := s.run(t.Context(), "explain", word)
		for _, want := range wants {
			if code != ExitDone || !strings.Contains(out, want) {
				t.Errorf("explain %s: exit code %d, no %q in %s%s", word, code, want, out, errs)
			}
		}
	}
}

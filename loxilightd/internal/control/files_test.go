// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
)

func (h *harness) write(name, text string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.ObjectDir, name), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

const webFile = `# The web.
kind: Service
name: web
labels: {tier: front}
spec:
  frontends:
    - 198.51.100.10:80/tcp
    - "[2001:db8::10]:80/tcp"
  backends:
    - {address: "10.0.1.2:8080", weight: 0x10}
    - address: 10.0.1.3:8080
      state: draining
  affinity: {timeout: 3h}
  idleTimeout:
`

const portFile = `---
# nothing but a remark
---
kind: Interface
name: up
owner: file
spec:
  device: eth7
---
kind: Interface
name: down
spec: {device: eth8, role: port}
`

func TestReload(t *testing.T) {
	h := newHarness(t)
	h.write("20-web.yaml", webFile)
	h.write("10-ports.yaml", portFile)
	h.write("notes.txt", "no YAML: [")
	h.write(".hidden.yaml", "no YAML: [")
	dir := h.ObjectDir
	h.want("reload", `{}`, `{"revision":1,"changes":[{"kind":"Interface","name":"up","action":"created"},{"kind":"Interface","name":"down","action":"created"},`+
		`{"kind":"Service","name":"web","action":"created"}],"summary":{"created":3},"files":["`+dir+`/10-ports.yaml","`+dir+`/20-web.yaml"]}`)
	h.want("get", `{"kind":"Service","name":"web"}`, `{"kind":"Service","name":"web","owner":"file","labels":{"tier":"front"},`+
		`"spec":{"frontends":["198.51.100.10:80/tcp","[2001:db8::10]:80/tcp"],"backends":[{"address":"10.0.1.2:8080","weight":16},`+
		`{"address":"10.0.1.3:8080","state":"draining"}],"affinity":{"timeout":"3h0m0s"}},`+
		`"status":{"state":"Ready","backends":[{"address":"10.0.1.2:8080","state":"active"},{"address":"10.0.1.3:8080","state":"draining"}]},"revision":1}`)
	h.wantError("delete", `{"objects":[{"kind":"Service","name":"web"}]}`, 3, "Service/web", "owner", "object files")
	h.wantError("apply", `{"objects":[`+webObject+`]}`, 3, "Service/web", "owner", "belongs to owner file")
	// Objects that are no longer in the files are deleted, but objects of other owners are not.
	result[api.ChangeResult](h, "apply", `{"objects":[`+staged("mine", 1)+`]}`)
	h.write("10-ports.yaml", "")
	h.want("reload", `{}`, `{"revision":3,"changes":[{"kind":"Service","name":"web","action":"unchanged"},{"kind":"Interface","name":"down","action":"deleted"},`+
		`{"kind":"Interface","name":"up","action":"deleted"}],"summary":{"deleted":2,"unchanged":1},"warnings":["Interface/down: Service/mine, Service/web: connections from other hosts are no longer accepted, because no Interface is left"],"files":["`+dir+`/10-ports.yaml","`+dir+`/20-web.yaml"]}`)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	h.want("reload", `{}`, `{"revision":4,"changes":[{"kind":"Service","name":"web","action":"deleted"}],"summary":{"deleted":1},"files":[]}`)
	if h.Store.Snapshot().Len() != 1 {
		t.Errorf("%d objects are left, want the object of cli", h.Store.Snapshot().Len())
	}
}

// badFile is a file with one error, and the expected error message.
type badFile struct {
	name, text          string
	code                int
	line                int
	object, field, part string
}

func badFiles(t *testing.T) []badFile {
	replace := func(old, by string) string {
		if strings.Count(webFile, old) != 1 {
			t.Fatalf("%q is not once in the file", old)
		}
		return strings.Replace(webFile, old, by, 1)
	}
	return []badFile{
		{"tab", replace("  backends:", "\tbackends:"), 1, 9, "", "", "not valid YAML"},
		{"bracket", webFile + "  sourceRanges: [10.0.0.0/8\n", 1, 15, "", "", "not valid YAML"},
		{"indent", replace("  affinity: {timeout: 3h}", " affinity: {timeout: 3h}"), 1, 13, "", "", "not valid YAML"},
		{"quote", replace(`"10.0.1.2:8080"`, `"10.0.1.2:8080`), 1, 10, "", "", "not valid YAML"},
		{"unknown field", replace("      state: draining", "      stat: draining"), 1, 12, "Service/web", "spec.backends[1].stat", "unknown field; want one of address, state, weight"},
		{"unknown kind", replace("kind: Service", "kind: Servis"), 1, 2, "Servis/web", "kind", "not known"},
		{"no name", replace("name: web\n", ""), 1, 2, "", "name", "has no name"},
		{"bad name", replace("name: web", "name: Web"), 1, 3, "Service/Web", "name", "is not a valid name"},
		{"twice", replace("  affinity: {timeout: 3h}", "  backends: []"), 1, 13, "Service/web", "spec.backends", "already set on line 9"},
		{"wrong type", replace("labels: {tier: front}", "labels: {tier: 5}"), 1, 4, "Service/web", "labels.tier", `"5" is not a string`},
		{"wrong value", replace("10.0.1.3:8080", "10.0.1.3"), 1, 11, "Service/web", "spec.backends[1].address", "no port"},
		{"unquoted", replace(`"[2001:db8::10]:80/tcp"`, "[2001:db8::10]"), 1, 8, "Service/web", "spec.frontends[1]", "not a string"},
		{"missing field", replace("timeout: 3h", ""), 1, 13, "Service/web", "spec.affinity.timeout", "1s and 24h"},
		{"owner", replace("name: web\n", "name: web\nowner: k8s\n"), 1, 4, "Service/web", "owner", "omit owner"},
		{"no object", "- a\n- b\n", 1, 1, "", "", "not an object"},
		{"a word", "\n\nhello\n", 1, 3, "", "", "not an object"},
		{"claimed", replace("198.51.100.10:80/tcp", "198.51.100.10:80/tcp\n    - 10.96.0.1:80/tcp"), 3, 8, "Service/web", "spec.frontends[1]", "belongs to Service/mine"},
		{"twice in one file", webFile + "---\n" + webFile, 1, 17, "Service/web", "", "appears twice"},
		{"of another owner", replace("name: web", "name: mine"), 3, 2, "Service/mine", "owner", "belongs to owner cli"},
		{"merge", replace("labels: {tier: front}", "labels: &a {tier: front}\n<<: *a"), 1, 5, "Service/web", "<<", "unknown field"},
		{"bomb", "kind: Service\nname: web\nspec: " + bomb(), 1, 3, "Service/web", "spec", "aliases"},
	}
}

// TestBadFiles: a file with one error changes nothing; the error names the file and the line, and
// the previous objects stay.
func TestBadFiles(t *testing.T) {
	for _, tt := range badFiles(t) {
		t.Run(tt.name, func(t *testing.T) {
			h := newHarness(t)
			result[api.ChangeResult](h, "apply", `{"objects":[`+staged("mine", 1)+`]}`)
			h.write("1.yaml", strings.ReplaceAll(webFile, "web", "old"))
			result[api.ReloadResult](h, "reload", `{}`)
			before := h.ask(admin, "list", `{}`)
			h.write("1.yaml", portFile)
			h.write("2.yaml", tt.text)
			h.t = t
			answer := h.ask(admin, "reload", `{}`)
			checkError(t, tt.name, answer, tt.code, tt.object, tt.field, tt.part)
			if want := fmt.Sprintf(`"message":"%s/2.yaml:%d: `, h.ObjectDir, tt.line); !strings.Contains(answer, want) {
				t.Errorf("got  %s\nwant …%s…", answer, want)
			}
			if after := h.ask(admin, "list", `{}`); after != before {
				t.Errorf("the objects are now %s", after)
			}
			if s := result[api.StatusResult](h, "status", `{}`); len(s.Health.Messages) != 1 || !strings.Contains(s.Health.Messages[0], "2.yaml:") {
				t.Errorf("health is %+v", s.Health)
			}
			h.write("2.yaml", "")
			result[api.ReloadResult](h, "reload", `{}`)
			if s := result[api.StatusResult](h, "status", `{}`); s.Health.State != "ok" {
				t.Errorf("health after a good reload is %+v", s.Health)
			}
		})
	}
}

// bomb is a small document whose aliases expand to ten billion words.
func bomb() string {
	var b strings.Builder
	b.WriteString("{a: &a [x,x,x,x,x,x,x,x,x,x]")
	for c := 'b'; c <= 'j'; c++ {
		fmt.Fprintf(&b, ", %c: &%c [", c, c)
		for range 10 {
			fmt.Fprintf(&b, "*%c,", c-1)
		}
		b.WriteString("]")
	}
	return b.String() + "}\n"
}

func TestFilesThatAreNone(t *testing.T) {
	h := newHarness(t)
	if err := os.Mkdir(filepath.Join(h.ObjectDir, "folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.wantError("reload", `{}`, 1, "", "", "folder.yaml: is not a regular file")
	h.ObjectDir = filepath.Join(h.ObjectDir, "folder.yaml", "none")
	h.want("reload", `{}`, `{"revision":0,"changes":[],"files":[]}`)
}

func FuzzFile(f *testing.F) {
	f.Add([]byte(webFile))
	f.Add([]byte(portFile))
	f.Add([]byte("kind: Service\nname: web\nspec: " + bomb()))
	f.Add([]byte("a: &a\n  b: *a\n"))
	f.Add([]byte("? [x]\n: !!float .nan\n"))
	f.Add([]byte(`[{"kind":"Interface","name":"up","spec":{"device":"eth7"}}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		documents, err := document.Parse("x.yaml", text)
		if err != nil {
			return
		}
		for _, d := range documents {
			if _, err := parseDocument(d, nil); err != nil && !strings.HasPrefix(err.Message, "x.yaml:") {
				t.Errorf("error without its place: %s", err.Message)
			}
		}
	})
}

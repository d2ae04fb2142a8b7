// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api/document"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
)

// FuzzManifest: a file is either rejected, or decoded to objects whose specs are valid JSON and
// survive a conversion to YAML and back unchanged.
func FuzzManifest(f *testing.F) {
	for i := range kinds.All {
		f.Add(kinds.All[i].Schema)
	}
	f.Add("kind: Service\nname: web\nspec: &a {x: [1, 1e3, 0x10, ~, yes, 2026-01-02, \"a\\tb\"]}\n---\n- {kind: A, name: b, spec: *a}\n")
	f.Add(`{"kind":"Service","name":"web","spec":{"n":12345678901234567890,"f":0.1,"s":"<é>"}} [{"kind":"A","name":"b"}]`)
	f.Add("a: &a [x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n")
	f.Add("? {a: b}\n: c\n")
	f.Add("%YAML 1.1\n--- |\n text\n")
	f.Fuzz(func(t *testing.T, text string) {
		docs, err := parseManifest("file", []byte(text))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "file:") {
				t.Errorf("error without its place: %v", err)
			}
			return
		}
		for i := range docs {
			d := &docs[i]
			if d.Line("spec.a[0].b") < 1 {
				t.Errorf("line %d", d.Line("spec.a[0].b"))
			}
			if d.object.Spec == nil {
				continue
			}
			if !json.Valid(d.object.Spec) {
				t.Fatalf("spec is no JSON: %s", d.object.Spec)
			}
			again, err := document.ToYAML(d.object)
			if err != nil {
				t.Fatalf("%s as YAML: %v", d.object.Spec, err)
			}
			back, err := parseManifest("again", again)
			if err != nil || len(back) != 1 {
				t.Fatalf("back from YAML: %v\n%s", err, again)
			}
			if !sameJSON(t, d.object.Spec, back[0].object.Spec) {
				t.Errorf("back from YAML:\n got %s\nwant %s", back[0].object.Spec, d.object.Spec)
			}
		}
	})
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	decode := func(raw []byte) (v any) {
		dec := json.NewDecoder(strings.NewReader(string(raw)))
		dec.UseNumber()
		if err := dec.Decode(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	return reflect.DeepEqual(decode(a), decode(b))
}

// TestEveryMistake: a file is rejected with all mistakes in all of its objects, each with its line.
func TestEveryMistake(t *testing.T) {
	const text = "kind: Service\nnam: a\nlables: {}\nspec: {x: 1}\n---\nspec: {}\n---\nkind: NAT\nname: 7\n---\nkind: Service\nname: good\nspec: {}\n"
	const want = `f:2: unknown field "nam": an object has kind, name, owner, labels and spec
f:3: unknown field "lables": an object has kind, name, owner, labels and spec
f:6: the object has no kind
f:6: the object has no name
f:9: name: want a string (quote it if it looks like a number)`
	if _, err := parseManifest("f", []byte(text)); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestAliasBomb(t *testing.T) {
	var text strings.Builder
	text.WriteString("kind: Service\nname: web\nspec:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := '1'; i <= '9'; i++ {
		b, a := string(i), string(i-1)
		text.WriteString("  a" + b + ": &a" + b + " [*a" + a + strings.Repeat(", *a"+a, 9) + "]\n")
	}
	_, err := parseManifest("bomb.yaml", []byte(text.String()))
	if err == nil || !strings.Contains(err.Error(), "the aliases expand to more than 100000 values") {
		t.Errorf("error = %v, want one of aliases", err)
	}
}

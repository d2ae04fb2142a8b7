// SPDX-License-Identifier: Apache-2.0

package document

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestForms: an object decodes to the same value from each form of a file.
func TestForms(t *testing.T) {
	const want = `Service/web map[tier:front] {"n":18446744073709551615,"list":["a",null,true],"hex":16}`
	for name, text := range map[string]string{
		"yaml":           "kind: Service\nname: web\nlabels: {tier: front}\nspec:\n  n: 18446744073709551615\n  list: [a, ~, true]\n  hex: 0x10\n",
		"list":           "- {kind: Service, name: web, labels: {tier: front}, spec: {n: 18446744073709551615, list: [a, ~, true], hex: 0x10}}\n",
		"json":           `{"kind":"Service","name":"web","labels":{"tier":"front"},"spec":{"n":18446744073709551615,"list":["a",null,true],"hex":16}}`,
		"list of json":   ` [{"kind":"Service","name":"web","labels":{"tier":"front"},"spec":{"n":18446744073709551615,"list":["a",null,true],"hex":16}}] `,
		"alias":          "- kind: Service\n  name: web\n  labels: {tier: &t front}\n  spec: {n: 18446744073709551615, list: &l [a, ~, true], hex: 16}\n- kind: Service\n  name: web\n  labels: {tier: *t}\n  spec: {n: 18446744073709551615, list: *l, hex: 16}\n",
		"of the daemon":  "kind: Service\nname: web\nlabels: {tier: front}\nspec: {n: 18446744073709551615, list: [a, ~, true], hex: 16}\nstatus: {state: Ready}\nrevision: 7\n",
		"other document": "---\n# a remark\n---\nkind: Service\nname: web\nlabels: {tier: front}\nspec: {n: 18446744073709551615, list: [a, ~, true], hex: 16}\n---\n~\n",
	} {
		t.Run(name, func(t *testing.T) {
			list, err := Parse("f", []byte(text))
			if err != nil || len(list) == 0 {
				t.Fatalf("%d documents, %v", len(list), err)
			}
			for _, d := range list {
				o, mistakes := d.Object()
				if len(mistakes) > 0 {
					t.Fatal(mistakes)
				}
				if got := o.Kind + "/" + o.Name + " " + strings.Join([]string{"map[tier:" + o.Labels["tier"] + "]", string(o.Spec)}, " "); got != want {
					t.Errorf("got  %s\nwant %s", got, want)
				}
			}
		})
	}
}

// TestMistakes: each mistake is reported with its line, object and field.
func TestMistakes(t *testing.T) {
	deep := strings.Repeat("[", 80) + strings.Repeat("]", 80)
	for name, c := range map[string]struct {
		file, text string
		want       []string
	}{
		"a word":               {"f", "\nhello\n", []string{"f:2:  not an object: want kind, name and spec"}},
		"twice in a spec":      {"f", "kind: A\nname: b\nspec:\n  x:\n    - y: 1\n      y: 2\n", []string{`f:6: A/b spec.x[0].y "y" is already set on line 5`}},
		"twice in json":        {"f", "{\"kind\":\"A\",\"name\":\"b\",\n\"spec\":{\"x\":1,\n\"x\":2}}", []string{`f:3: A/b spec.x "x" is already set on line 2`}},
		"twice in an object":   {"f", "kind: A\nname: b\nname: c\n", []string{`f:3: A/c name "name" is already set on line 2`}},
		"labels":               {"f", "kind: A\nname: b\nlabels:\n  x: 5\n  y: [a]\n  7: z\n  w: v\n  w: u\n", []string{`f:4: A/b labels.x labels.x: "5" is not a string (quote it)`, `f:5: A/b labels.y labels.y: "" is not a string (quote it)`, `f:6: A/b labels labels: the key "7" must be a string (quote it)`, `f:8: A/b labels.w labels.w is already set`}},
		"labels as a list":     {"f", "kind: A\nname: b\nlabels: [x]\n", []string{"f:3: A/b labels labels: want a mapping of strings to strings"}},
		"a key that is a list": {"f", "kind: A\nname: b\nspec: {? [x] : y}\n", []string{`f:3: A/b spec the key "" must be a plain string (quote it)`}},
		"too deep":             {"f", "kind: A\nname: b\nspec: {x: " + deep + "}\n", []string{"f:3: A/b spec nested more than 64 levels deep"}},
		"not a number":         {"f", "kind: A\nname: b\nspec: {x: .nan}\n", []string{`f:3: A/b spec.x ".nan" has no equivalent in JSON; quote it if it is a string`}},
		"itself":               {"f", "kind: A\nname: b\nspec: &s {x: *s}\n", []string{"f:3: A/b spec nested more than 64 levels deep"}},
		"several objects":      {"f", "- {kind: A}\n- {name: 7}\n", []string{"f:1:  name the object has no name", "f:2:  name name: want a string (quote it if it looks like a number)"}},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := Parse(c.file, []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range list {
				_, mistakes := d.Object()
				for _, m := range mistakes {
					where := m.Object
					if m.Field != "" {
						where += " " + m.Field
					}
					got = append(got, strings.Replace(m.Error(), m.Text, where+" "+m.Text, 1))
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// TestSyntax: a syntax error is reported with the line at which the text becomes invalid.
func TestSyntax(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 80) + "1" + strings.Repeat("}", 80)
	for text, want := range map[string]string{
		"kind: A\nspec:\n\tx: 1\n":                   "f.yaml:3: not valid YAML: the line begins with a tab; YAML wants spaces",
		"kind: A\nspec:\n  x: [a, b\n  y: 1\nz: 1\n": "f.yaml:3: not valid YAML: did not find expected",
		"{\"kind\":\"A\",\n\"spec\":}":               "f.json:2: not valid JSON: ",
		"[{\"kind\":\"A\"}":                          "f.json:1: not valid JSON: unexpected EOF",
		deep:                                         "f.json:1: not valid JSON: nested more than 64 levels deep",
		"{\"kind\":\"\xff\"}":                        "f.json:1: not valid JSON: the text is not UTF-8",
	} {
		file, _, _ := strings.Cut(want, ":")
		_, err := Parse(file, []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %s", text, err, want)
		}
	}
}

// TestFiles: the object files in a directory are read, in order.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.yaml", "a.yml", "c.json", ".hidden.yaml", "notes.txt", "yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Files(dir)
	want := []string{filepath.Join(dir, "a.yml"), filepath.Join(dir, "b.yaml"), filepath.Join(dir, "c.json")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Files(dir); err == nil || !strings.Contains(err.Error(), "d.yaml: is not a regular file") {
		t.Errorf("a folder with the name of a file: %v", err)
	}
}

// TestYAMLOfJSON: the fields keep their order, and the text keeps its meaning.
func TestYAMLOfJSON(t *testing.T) {
	text, err := ToYAML(map[string]any{"spec": []any{"<é>", "0x10", "no", 1.5, nil, map[string]any{"a": "b\nc"}}, "name": "~"})
	if err != nil {
		t.Fatal(err)
	}
	roots, err := parseYAML("f", text)
	if err != nil || len(roots) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	back, nerr := toJSON(roots[0])
	if want := `{"name":"~","spec":["<é>","0x10","no",1.5,null,{"a":"b\nc"}]}`; nerr != nil || string(back) != want {
		t.Errorf("got  %s, %v\nwant %s\nby\n%s", back, nerr, want, text)
	}
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// listAll lists page by page.
func listAll(h *harness, filter string) (names []string, pages int) {
	h.t.Helper()
	for token, more := "", true; more; pages++ {
		r := result[api.ListResult](h, "list", fmt.Sprintf(`{%s"continue":%q}`, filter, token))
		for _, o := range r.Items {
			names = append(names, o.Kind+"/"+o.Name)
		}
		token, more = r.Continue, r.Continue != ""
	}
	return names, pages
}

func TestList(t *testing.T) {
	h := newHarness(t)
	objects := []string{`{"kind":"Interface","name":"eth0","spec":{"device":"eth0"}}`}
	for i := range 1000 {
		o := fmt.Sprintf(`{"kind":"Service","name":"s%03d","labels":{"odd":"%d"},"spec":{"frontends":["10.96.%d.%d:80/tcp"],"backends":[{"address":"10.0.1.2:8080"}]}}`,
			i, i%2, i>>8, i&255)
		if i%10 == 0 {
			o = strings.Replace(o, `"labels"`, `"owner":"k8s","labels"`, 1)
		}
		objects = append(objects, o)
	}
	result[api.ChangeResult](h, "apply", `{"objects":[`+strings.Join(objects, ",")+`]}`)
	names, pages := listAll(h, `"kind":"Service",`)
	if len(names) != 1000 || !slices.IsSorted(names) || names[0] != "Service/s000" || names[999] != "Service/s999" || pages < 4 {
		t.Errorf("%d names on %d pages", len(names), pages)
	}
	names, _ = listAll(h, "")
	if len(names) != 1001 || names[0] != "Interface/eth0" {
		t.Errorf("of all kinds there are %d", len(names))
	}
	names, pages = listAll(h, `"kind":"Service","owner":"k8s","limit":7,`)
	if len(names) != 100 || pages != 15 || names[99] != "Service/s990" {
		t.Errorf("of one owner there are %d on %d pages", len(names), pages)
	}
	if names, _ = listAll(h, `"labels":{"odd":"1"},`); len(names) != 500 {
		t.Errorf("with a label there are %d", len(names))
	}
	if names, _ = listAll(h, `"labels":{"odd":"1","even":""},`); len(names) != 0 {
		t.Errorf("with two labels there are %d", len(names))
	}
	h.want("list", `{"kind":"Interface"}`,
		`{"revision":1,"items":[{"kind":"Interface","name":"eth0","owner":"cli","spec":{"device":"eth0"},"status":{"state":"Ready"},"revision":1}]}`)
	h.wantError("list", `{"kind":"Mesh"}`, 1, "", "kind", `"Mesh"`)
	h.wantError("get", `{"kind":"Service"}`, 1, "", "name", "is missing")
	h.wantError("counters", `{"kind":"Service"}`, 1, "", "name", "is missing")
	h.wantError("version", `{"verbose":true}`, -32602, "", "verbose", "want none")
	h.wantError("list", `{"kind":"Service","continue":"Interface/eth0"}`, 1, "", "continue", "not a continue value")
	h.wantError("list", `{"kind":"Service","limit":-1}`, 1, "", "limit", "negative")
}

func TestChanges(t *testing.T) {
	h := newHarness(t)
	result[api.ChangeResult](h, "apply", `{"objects":[`+staged("a", 1)+","+staged("b", 2)+`]}`)
	result[api.ChangeResult](h, "apply", `{"objects":[`+staged("a", 3)+`]}`)
	result[api.ChangeResult](h, "delete", `{"objects":[{"kind":"Service","name":"b"}]}`)
	change := func(revision int, name, action string) string {
		return fmt.Sprintf(`{"revision":%d,"kind":"Service","name":"%s","action":"%s"}`, revision, name, action)
	}
	h.want("changes", `{"since":0}`, `{"revision":3,"changes":[`+
		change(1, "a", "created")+","+change(1, "b", "created")+","+change(2, "a", "updated")+","+change(3, "b", "deleted")+`]}`)
	h.want("changes", `{"since":2}`, `{"revision":3,"changes":[`+change(3, "b", "deleted")+`]}`)
	h.want("changes", `{"since":3}`, `{"revision":3,"changes":[]}`)
	h.want("changes", `{"since":4}`, `{"revision":3,"changes":[],"expired":true}`)
	// The changes of a revision are sent together, even if limit is smaller.
	h.want("changes", `{"since":0,"limit":1}`, `{"revision":1,"changes":[`+change(1, "a", "created")+","+change(1, "b", "created")+`],"more":true}`)
	h.want("changes", `{"since":1,"limit":1}`, `{"revision":2,"changes":[`+change(2, "a", "updated")+`],"more":true}`)
	h.want("changes", `{"since":2,"limit":1}`, `{"revision":3,"changes":[`+change(3, "b", "deleted")+`]}`)
}

// TestManyChanges: pages contain whole revisions; a revision that does not fit on a page counts as
// expired.
func TestManyChanges(t *testing.T) {
	h := newHarness(t)
	list := make([]string, 300)
	for turn := range 6 {
		for i := range list {
			list[i] = fmt.Sprintf(`{"kind":"Service","name":"service-%d","spec":{"frontends":["10.96.%d.%d:%d/tcp"]}}`, i, i>>8, i&255, 80+turn)
		}
		result[api.ChangeResult](h, "apply", `{"objects":[`+strings.Join(list, ",")+`]}`)
	}
	seen, since := 0, uint64(0)
	for more, pages := true, 0; more; pages++ {
		r := result[api.ChangesResult](h, "changes", fmt.Sprintf(`{"since":%d}`, since))
		if r.Expired || len(r.Changes)%300 != 0 || len(r.Changes) == 0 || pages > 6 {
			t.Fatalf("%d changes since %d, expired: %v", len(r.Changes), since, r.Expired)
		}
		seen, since, more = seen+len(r.Changes), r.Revision, r.More
	}
	if seen != 1800 || since != 6 {
		t.Errorf("%d changes were reported, up to %d", seen, since)
	}
	for i := range 1500 {
		list = append(list, fmt.Sprintf(`{"kind":"Service","name":"more-%d","spec":{"frontends":["10.97.%d.%d:80/tcp"]}}`, i, i>>8, i&255))
	}
	result[api.ChangeResult](h, "apply", `{"objects":[`+strings.Join(list, ",")+`]}`)
	h.want("changes", `{"since":6}`, `{"revision":7,"changes":[],"expired":true}`)
	if r := result[api.ChangesResult](h, "changes", `{"since":5}`); r.Revision != 6 || !r.More || len(r.Changes) != 300 {
		t.Errorf("%d changes up to %d, more: %v", len(r.Changes), r.Revision, r.More)
	}
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestConnectionsOfKubernetes: the name of a Kubernetes service selects all of its objects, and no
// object with a similar name.
func TestConnectionsOfKubernetes(t *testing.T) {
	d := newTestDaemon(t)
	d.connections = nil
	for i, name := range []string{"shop/web:http", "shop/web:http/nodeport", "shop/webshop", "shop/web:admin", "shop/web:http"} {
		service := "web"
		if name == "shop/webshop" {
			service = "webshop"
		}
		o := api.Object{Kind: api.KindService, Name: name, Owner: "k8s", Labels: map[string]string{"namespace": "shop", "service": service}, Spec: json.RawMessage(`{}`)}
		d.objects[api.ObjectRef{Kind: o.Kind, Name: o.Name}] = o
		d.connections = append(d.connections, api.Connection{Protocol: "tcp", Service: name, Original: api.Tuple{Source: "203.0.113.5:4011" + string(rune('0'+i))}})
	}
	s := &session{daemon: d, env: map[string]string{}}
	sources := func(args ...string) string {
		t.Helper()
		code, out, errs := s.run(t.Context(), append([]string{"connections", "-o", "json"}, args...)...)
		var list []api.Connection
		if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 {
			t.Fatalf("%d %s %v\n%s", code, errs, err, out)
		}
		found := ""
		for i := range list {
			found += list[i].Original.Source[len(list[i].Original.Source)-1:]
		}
		return found + strings.TrimSpace(errs)
	}
	for _, c := range []struct{ want, args string }{
		{"01234", ""},
		{"3041", "--service shop/web"}, // in the order of the objects' names
		{"04", "--service shop/web:http"},
		{"2", "--service shop/webshop"},
		{"30llcli: more than 2 connections match; use --limit 0 to show all", "--service shop/web --limit 2"},
		{"3llcli: more than 1 connection matches; use --limit 0 to show all", "--service shop/web --limit 1"},
		{"3041", "--service shop/web --limit 4"},
	} {
		if got := sources(strings.Fields(c.args)...); got != c.want {
			t.Errorf("%s: %q, want %q", c.args, got, c.want)
		}
	}
	if code, out, errs := s.run(t.Context(), "connections", "flush", "--service", "shop/web"); code != 0 || out != "4 connections flushed\n" {
		t.Errorf("%d %s%s", code, out, errs)
	}
	if code, _, errs := s.run(t.Context(), "connections", "--service", "shop/none"); code != ExitFailed || !strings.Contains(errs, "Service/shop/none") {
		t.Errorf("a service that does not exist: %d %s", code, errs)
	}
	if got := sources(); got != "2" {
		t.Errorf("left after the flush: %q", got)
	}
}

// TestEndpointsOfPolicies: if some frontends of a service keep an endpoint only for existing
// connections, the endpoint is shown with its state in the frontends that use it.
func TestEndpointsOfPolicies(t *testing.T) {
	d := newTestDaemon(t)
	for name, state := range map[string]string{"shop/web": "draining", "shop/web/inside": "active"} {
		o := api.Object{Kind: api.KindService, Name: name, Owner: "k8s", Labels: map[string]string{"namespace": "shop", "service": "web", "port": "80"}}
		o.Spec = json.RawMessage(`{"frontends":["10.96.0.7:80/tcp"],"backends":[{"address":"10.244.3.5:8080"},{"address":"10.244.4.6:8080","state":"` + state + `"}]}`)
		d.objects[api.ObjectRef{Kind: o.Kind, Name: o.Name}] = o
	}
	s := &session{daemon: d, env: map[string]string{}}
	code, out, errs := s.run(t.Context(), "k8s", "services", "shop/web")
	if code != 0 || !regexp.MustCompile(`80 +10\.244\.4\.6:8080 +ready`).MatchString(out) {
		t.Errorf("%d %s\n%s", code, errs, out)
	}
}

// hasLabels reports whether an object has the wanted labels.
func hasLabels(o *api.Object, want map[string]string) bool {
	for k, v := range want {
		if o.Labels[k] != v {
			return false
		}
	}
	return true
}

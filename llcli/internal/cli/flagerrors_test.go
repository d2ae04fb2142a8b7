// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestFlagErrors checks that an error from the daemon about a field names the flag for that field,
// and that only an invalid value counts as a usage error.
func TestFlagErrors(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	if code, _, errs := s.run(t.Context(), "service", "add", "web", "--frontend", "192.0.2.1:80/tcp"); code != ExitDone {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	for _, tt := range []struct {
		command, object, field string
		reason                 api.Reason
		code                   int
		want                   string
	}{
		{"nat add x --dnat --to 10.0.0.1", "NAT/x", "spec.match.destination", api.ReasonInvalid, ExitUsage, "llcli: --destination: wrong"},
		{"nat add x --dnat", "NAT/x", "spec.to.addresses", api.ReasonInvalid, ExitUsage, "llcli: --to: wrong"},
		{"nat add x --dnat", "NAT/x", "spec.type", api.ReasonInvalid, ExitUsage, "llcli: --dnat: wrong"},
		{"interface add eth9 --role x", "Interface/eth9", "spec.role", api.ReasonInvalid, ExitUsage, "llcli: --role: wrong"},
		{"interface add eth9", "Interface/eth9", "name", api.ReasonInvalid, ExitUsage, "llcli: name: wrong"},
		{"interface add eth9 --owner x", "Interface/eth9", "owner", api.ReasonInvalid, ExitUsage, "llcli: --owner: wrong"},
		{"service add s --frontend x", "Service/s", "spec.frontends[0]", api.ReasonInvalid, ExitUsage, "llcli: --frontend: wrong"},
		{"service add s --frontend x", "Service/s", "spec.frontends[0]", api.ReasonConflict, ExitFailed, "llcli: --frontend: wrong"},
		{"service add s --frontend x --backend y", "Service/s", "spec.backends[0].address", api.ReasonInvalid, ExitUsage, "llcli: --backend: wrong"},
		{"service set web --health http", "Service/web", "spec.health.interval", api.ReasonInvalid, ExitUsage, "llcli: --health-interval: wrong"},
		{"service backend add web y", "Service/web", "spec.backends[0].address", api.ReasonInvalid, ExitUsage, "llcli: Service/web: spec.backends[0].address: wrong"},
		{"delete meshes x", "", "objects[0].kind", api.ReasonInvalid, ExitUsage, "llcli: kind: wrong"},
		{"replace -f -", "", "objects[0].kind", api.ReasonInvalid, ExitFailed, "llcli: standard input:1: objects[0].kind: wrong"},
	} {
		failed := api.Errorf(tt.reason, "wrong").At(tt.object, tt.field)
		if tt.field == "objects[0].kind" && strings.HasPrefix(tt.command, "replace") {
			failed = api.Errorf(tt.reason, `wrong "A"`).At(tt.object, tt.field)
		}
		s.daemon.fail = map[string]*api.Error{api.MethodApply: failed, api.MethodDelete: failed, api.MethodReplace: failed}
		s.stdin = "{kind: A, name: b}\n"
		if code, _, errs := s.run(t.Context(), strings.Fields(tt.command)...); code != tt.code || !strings.HasPrefix(errs, tt.want) {
			t.Errorf("%s: exit code %d, %q, want %d, %q", tt.command, code, errs, tt.code, tt.want)
		}
	}
}

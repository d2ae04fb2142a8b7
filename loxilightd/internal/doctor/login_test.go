// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath/policy"
)

// TestLogin: while Policies apply to the node, the port of the user's login must be in the failsafe; also
// if sudo has removed the variable.
func TestLogin(t *testing.T) {
	const lock = `{"tier":"main","isolate":["ingress"],"appliedTo":[{"set":"nodes"}]}`
	for _, tt := range []struct {
		name, self, parent, set, stage string
		want                           []string
	}{
		{"another port", "SSH_CONNECTION=192.0.2.17 40123 192.0.2.1 2222", "", "nodes", "", []string{"policy.failsafe tcp/2222"}},
		{"an ancestor's", "HOME=/root", "SSH_CONNECTION=2001:db8::17 40123 2001:db8::1 2222", "nodes", "", []string{"policy.failsafe tcp/2222"}},
		{"in the failsafe", "SSH_CONNECTION=192.0.2.17 40123 192.0.2.1 22", "", "nodes", "", nil},
		{"its address is in the failsafe", "SSH_CONNECTION=192.0.2.77 40123 192.0.2.1 2222", "", "nodes", "", nil},
		{"no login", "HOME=/root", "", "nodes", "", nil},
		{"no Policy applies", "SSH_CONNECTION=192.0.2.17 40123 192.0.2.1 2222", "", "hosts", "", nil},
		{"staged", "SSH_CONNECTION=192.0.2.17 40123 192.0.2.1 2222", "", "nodes", `,"stage":"staged"`, nil},
		{"invalid", "SSH_CONNECTION=192.0.2.17 2222", "", "nodes", "", nil},
	} {
		r := newRig(t)
		r.machine("/proc/self/environ", "LANG=C\x00"+tt.self+"\x00")
		r.machine("/proc/self/status", "Name:\tloxilightd\nPPid:\t77\n")
		r.machine("/proc/77/environ", "LANG=C\x00"+tt.parent+"\x00")
		r.machine("/proc/77/status", "Name:\tsh\nPPid:\t0\n")
		x := &examiner{Options: r.o}
		x.Config.Failsafe[policy.Ingress] = append(slices.Clone(x.Config.Failsafe[policy.Ingress]), policy.Rule{Peers: []policy.Peer{{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.77/32")}}}})
		for _, o := range []*api.Object{
			{Kind: api.KindEntity, Name: "me", Spec: []byte(`{"set":"` + tt.set + `","here":true}`)},
			{Kind: api.KindPolicy, Name: "lock", Spec: []byte(lock[:len(lock)-1] + tt.stage + "}")},
		} {
			x.desired.take(o)
		}
		if len(x.desired.objects) != 2 {
			t.Fatalf("%d of 2 objects were understood", len(x.desired.objects))
		}
		x.checkLogin()
		var got []string
		for _, f := range x.findings {
			got = append(got, f.ID+" "+f.Object)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: found %q, want %q", tt.name, got, tt.want)
		}
	}
}

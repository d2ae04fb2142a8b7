// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func TestPods(t *testing.T) {
	r := newRig(t)
	r.machine("/proc/sys/net/ipv4/ip_forward", "0")
	r.machine("/proc/sys/net/ipv6/conf/all/forwarding", "0")
	x := &examiner{Options: r.o, ctx: t.Context()}
	x.daemon.status = statusWith(map[string][2]uint64{
		"addresses 10.7.1.0/24": {240, 252}, "addresses 10.8.1.0/24": {150, 252}, "addresses 10.9.1.0/29": {4, 4}, "addresses 2001:db8::/64": {200, 1 << 53},
	})
	x.desired.objects = []*state.Object{{Key: state.Key{Kind: "PodNetwork", Name: "a"}, Value: &state.PodNetwork{Subnets: []netip.Prefix{netip.MustParsePrefix("10.7.1.0/24")}}}}
	x.desired.leases = []api.AddressLease{
		{Network: "a", ContainerID: "c1", Addresses: []string{"10.7.1.3/24"}},
		{Network: "a", ContainerID: "c2", Addresses: []string{"10.7.1.4/24"}, Gone: "the machine has rebooted since"},
	}
	x.checkPods()
	got := map[string]string{}
	for _, f := range x.findings {
		got[f.ID+" "+f.Object] = f.Severity
	}
	want := map[string]string{
		"addresses.full subnet 10.7.1.0/24": "warning", "addresses.full subnet 10.9.1.0/29": "error",
		"addresses.gone PodNetwork/a": "note", "sysctl.pod_forwarding net.ipv4.ip_forward": "error",
	}
	if len(got) != len(want) {
		t.Errorf("found %v", got)
	}
	for key, severity := range want {
		if got[key] != severity {
			t.Errorf("%s is %q, want %q", key, got[key], severity)
		}
	}
	x.checkRunning()
	for _, f := range x.findings {
		if f.ID == "tables.full" {
			t.Errorf("a subnet is no table of the configuration: %s", f.Object)
		}
	}
}

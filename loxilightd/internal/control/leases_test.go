// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// fakeLeases contains the leases that a test sets.
type fakeLeases struct {
	leases  []ipam.Lease
	pools   []ipam.Pool
	problem string
}

func (f *fakeLeases) Leases() []ipam.Lease { return f.leases }
func (f *fakeLeases) Pools() []ipam.Pool   { return f.pools }
func (f *fakeLeases) Problem() string      { return f.problem }
func (f *fakeLeases) Gone(l ipam.Lease) string {
	if l.Boot == "old" {
		return "the machine has rebooted since"
	}
	return ""
}

// TestAddressesList pages through many leases: each is returned once.
func TestAddressesList(t *testing.T) {
	h := newHarness(t)
	h.want("addresses.list", `{}`, `{"items":[]}`)
	f := &fakeLeases{}
	h.Leases = f
	h.want("addresses.list", `{}`, `{"items":[]}`)
	for i := range 1500 {
		// Some names are prefixes of longer names that continue with a character that sorts before
		// a slash.
		l := ipam.Lease{Network: []string{"default", "other"}[i%2], Owner: ipam.Owner{ContainerID: "c" + strings.Repeat("-", i%5) + fmt.Sprint(i/5), IfName: "eth0"}}
		l.Addresses = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 7, byte(i >> 8), byte(i)}), 16)}
		f.leases = append(f.leases, l)
	}
	slices.SortFunc(f.leases, func(a, b ipam.Lease) int {
		return cmp.Or(strings.Compare(a.Network, b.Network), strings.Compare(a.ContainerID, b.ContainerID))
	})
	for params, want := range map[string]int{`"limit":0`: 1500, `"limit":70`: 1500, `"network":"other"`: 750, `"network":"none"`: 0} {
		seen, from := map[string]bool{}, ""
		for {
			r := result[api.AddressesListResult](h, "addresses.list", fmt.Sprintf(`{%s,"continue":%q}`, params, from))
			for _, l := range r.Items {
				if seen[l.Addresses[0]] {
					t.Fatalf("%s: %s is listed twice", params, l.Addresses[0])
				}
				seen[l.Addresses[0]] = true
			}
			if from = r.Continue; from == "" {
				break
			}
		}
		if len(seen) != want {
			t.Errorf("%s: %d leases, want %d", params, len(seen), want)
		}
	}
	h.wantError("addresses.list", `{"continue":"elsewhere"}`, 1, "", "continue", "is not a continue value")
	h.wantError("addresses.list", `{"limit":-1}`, 1, "", "limit", "negative")
	f.leases = []ipam.Lease{{
		Network: "default", Owner: ipam.Owner{ContainerID: "c1", IfName: "eth0"}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.7.1.3/24"), netip.MustParsePrefix("2001:db8::3/64")},
		Netns: "/run/netns/x", Pod: "shop/web-1", Boot: "old", Since: time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC),
	}}
	h.want("addresses.list", `{}`, `{"items":[{"network":"default","addresses":["10.7.1.3/24","2001:db8::3/64"],"pod":"shop/web-1","containerID":"c1","ifName":"eth0",`+
		`"netns":"/run/netns/x","since":"2026-03-04T05:06:07Z","gone":"the machine has rebooted since"}]}`)
}

func TestPodNetworkStatus(t *testing.T) {
	h := newHarness(t)
	p := netip.MustParsePrefix
	f := &fakeLeases{pools: []ipam.Pool{{Network: "a", Subnet: p("10.7.1.0/24"), Used: 240, Size: 252}, {Network: "a", Subnet: p("2001:db8:7::/64"), Used: 17, Size: 1 << 53}}}
	h.Leases = f
	h.ask(admin, "apply", `{"objects":[{"kind":"PodNetwork","name":"a","spec":{"subnets":["10.7.1.0/24","2001:db8:7::/64"]}}]}`)
	got := result[api.Object](h, "get", `{"kind":"PodNetwork","name":"a"}`)
	const want = `{"state":"Ready","mtu":1450,"subnets":[{"subnet":"10.7.1.0/24","gateway":"10.7.1.1","host":"10.7.1.2","used":240,"size":252},` +
		`{"subnet":"2001:db8:7::/64","gateway":"2001:db8:7::1","host":"2001:db8:7::2","used":17,"size":9007199254740992}]}`
	if string(got.Status) != want {
		t.Errorf("status\n %s\nwant\n %s", got.Status, want)
	}
	f.problem = "the leases were damaged"
	status := result[api.StatusResult](h, "status", `{}`)
	if u := status.Capacity["addresses 10.7.1.0/24"]; u.Used != 240 || u.Size != 252 {
		t.Errorf("capacity: %v", status.Capacity)
	}
	m := strings.Join(status.Health.Messages, "\n")
	if !strings.Contains(m, "addresses 10.7.1.0/24 are nearly exhausted: pods have 240 of 252") || !strings.Contains(m, f.problem) || strings.Contains(m, "2001") {
		t.Errorf("health: %s", m)
	}
}

func TestPodNetworkConflicts(t *testing.T) {
	h := newHarness(t)
	network := func(name, spec string) string {
		return `{"objects":[{"kind":"PodNetwork","name":"` + name + `","spec":` + spec + `}]}`
	}
	h.ask(admin, "apply", `{"objects":[{"kind":"Bridge","name":"b","spec":{"device":"br0","ports":[{"device":"p1"}]}}]}`)
	h.wantError("apply", network("a", `{"subnets":["10.7.0.0/24"],"bridge":"br0"}`), 3, "PodNetwork/a", "spec.bridge", "br0 belongs to Bridge/b already")
	h.wantError("apply", network("a", `{"subnets":["10.7.0.0/24"],"bridge":"p1"}`), 3, "PodNetwork/a", "spec.bridge", "p1 belongs to Bridge/b already")
	h.ask(admin, "apply", network("a", `{"subnets":["10.7.0.0/24","2001:db8::/64"]}`))
	h.wantError("apply", network("c", `{"subnets":["10.0.0.0/8"]}`), 3, "PodNetwork/c", "spec.subnets[0]", "10.0.0.0/8 overlaps 10.7.0.0/24 of PodNetwork/a")
	h.wantError("apply", network("c", `{"subnets":["10.9.0.0/24","2001:db8::80/121"]}`), 3, "PodNetwork/c", "spec.subnets[1]", "of PodNetwork/a")
	h.wantError("apply", network("c", `{"subnets":["10.9.0.0/24"],"bridge":"br7"}`), 3, "PodNetwork/c", "spec.bridge", "PodNetwork/a has hsvlan110")
	h.wantError("apply", network("c", `{"subnets":["10.9.0.0/24"],"mtu":1400}`), 3, "PodNetwork/c", "spec.mtu", "PodNetwork/a has no mtu, so it follows the uplinks: the pod networks of a node share one bridge, with one MTU")
	h.wantError("apply", `{"objects":[{"kind":"Bridge","name":"d","spec":{"device":"hsvlan110"}}]}`, 3, "Bridge/d", "spec.device", "is the bridge of PodNetwork/a")
	h.wantError("apply", `{"objects":[{"kind":"Bridge","name":"d","spec":{"device":"br9","ports":[{"device":"p2"},{"device":"hsvlan110"}]}}]}`,
		3, "Bridge/d", "spec.ports[1].device", "is the bridge of PodNetwork/a")
	// Two objects that exchange claims in one change.
	h.ask(admin, "apply", network("c", `{"subnets":["10.9.0.0/24"]}`))
	h.want("apply", `{"objects":[{"kind":"PodNetwork","name":"a","spec":{"subnets":["10.9.0.0/24"]}},{"kind":"PodNetwork","name":"c","spec":{"subnets":["10.7.0.0/24"]}}]}`,
		`{"revision":4,"changes":[{"kind":"PodNetwork","name":"a","action":"updated"},{"kind":"PodNetwork","name":"c","action":"updated"}],"summary":{"updated":2}}`)
}

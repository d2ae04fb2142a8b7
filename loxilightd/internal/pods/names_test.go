// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"encoding/json"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestNamesOfOthers: pods' devices skip a name that an external device has or that another owner's
// object contains. External devices stay.
func TestNamesOfOthers(t *testing.T) {
	n := newNode(t)
	n.links.SetForeign("hs1", "hs3", "hs4")
	n.named.Store("hs5", true)
	var got []string
	for _, c := range []string{"a", "b", "c"} {
		got = append(got, n.mustAdd(c, nil).Interfaces[0].Name)
	}
	if names := strings.Join(got, " "); names != "hs2 hs6 hs7" {
		t.Errorf("devices %s", names)
	}
	n.restart()
	n.wantOnly("a", "b", "c")
	if err := n.command(api.CNIDel, "b", nil); err != nil {
		t.Fatal(err)
	}
	n.named.Delete("hs5")
	n.links.SetForeign("hs1")
	for _, want := range []string{"hs3", "hs4", "hs5", "hs6"} {
		if name := n.mustAdd("next-"+want, nil).Interfaces[0].Name; name != want {
			t.Errorf("device %s, want %s: the lowest that is free", name, want)
		}
	}
	n.links.SetForeign("hs1", "hs8", "hs9", "hs10")
	var all sync.WaitGroup
	for _, c := range names(20) {
		all.Go(func() {
			if err := n.command(api.CNIAdd, c, nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	n.wantOnly(append(names(20), "a", "c", "next-hs3", "next-hs4", "next-hs5", "next-hs6")...)
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.names) != 26 {
		t.Errorf("%d names are taken, for 26 pods: %v", len(n.names), n.names)
	}
}

// TestFurtherInterface: an interface without configured routes gets no route that the pod already
// has through another interface.
func TestFurtherInterface(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		ifName string
		more   map[string]any
		routes string
	}{
		{"eth0", nil, "0.0.0.0/0 ::/0"},
		{"net1", nil, ""},
		{"net2", map[string]any{"ipam": map[string]any{"routes": []any{map[string]any{"dst": "192.0.2.0/24"}}}}, "192.0.2.0/24"},
	} {
		p := n.params(api.CNIAdd, "c1", c.more)
		p.IfName = c.ifName
		text, err := n.Handle(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		r := &result{}
		if err := json.Unmarshal(text, r); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, x := range r.Routes {
			got = append(got, x.Dst.String())
		}
		if text := strings.Join(got, " "); text != c.routes {
			t.Errorf("%s: routes %q, want %q", c.ifName, text, c.routes)
		}
		p = n.params(api.CNICheck, "c1", map[string]any{"prevResult": r})
		p.IfName = c.ifName
		if _, err := n.Handle(t.Context(), p); err != nil {
			t.Errorf("%s: CHECK: %v", c.ifName, err)
		}
	}
}

// TestNetworkTurns: the network gets different subnets after a pod has got its address, but before
// the Endpoint exists, which would have prevented this.
func TestNetworkTurns(t *testing.T) {
	n := newNode(t)
	other := Network{Bridge: "hsvlan110", Subnets: []netip.Prefix{netip.MustParsePrefix("10.202.3.0/24"), subnets[1]}}
	n.desired.set(func() {
		n.desired.refuse = func(api.Object) bool { n.network.Store(&other); return false }
	})
	if err := n.command(api.CNIAdd, "c1", nil); err == nil || err.Data.CNICode != api.CNITryAgain || !strings.Contains(err.Message, "PodNetwork/default no longer has a subnet that contains 10.201.3.3") {
		t.Errorf("%v, want to try again", err)
	}
	n.wantOnly()
}

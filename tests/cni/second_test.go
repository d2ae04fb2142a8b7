// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

// second is a configuration for an additional interface of a pod, in the PodNetwork second.
func (s *site) second(more map[string]any) string {
	s.t.Helper()
	plugin := map[string]any{"type": "loxilight-cni", "network": "second", "socket": s.Socket, "stateDir": s.StateDir()}
	for k, v := range more {
		plugin[k] = v
	}
	text, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "second", "plugins": []any{plugin}})
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// TestSecondInterface: a pod's additional interface reaches its own network, and the additional
// routes in its configuration; the default routes stay on the first interface.
func TestSecondInterface(t *testing.T) {
	s := newSite(t)
	s.Apply("kind: PodNetwork\nname: second\nspec: {subnets: [10.74.3.0/24, \"2001:db8:74::/64\"]}")
	s.outside.Route(t, "10.74.3.0/24", "192.0.2.1")
	first, p := s.list("1.1.0", nil), s.newPod("two")
	if err := s.tryAdd(first, p); err != nil {
		t.Fatal(err)
	}
	routes := func(wants ...string) {
		t.Helper()
		out := p.Run(t, "ip", "route") + p.Run(t, "ip", "-6", "route")
		for _, w := range wants {
			if !strings.Contains(out, w) {
				t.Errorf("no %q in\n%s", w, out)
			}
		}
		if strings.Count(out, "default") != 2 {
			t.Errorf("want one default route of each family:\n%s", out)
		}
	}
	p.rt.IfName = "net1"
	own := s.parse(s.second(map[string]any{"ipam": map[string]any{"type": "loxilight", "routes": []any{map[string]any{"dst": "198.51.100.0/24"}}}}))
	for _, list := range []string{s.second(nil), string(own.Bytes)} {
		list := s.parse(list)
		if err := s.tryAdd(list, p); err != nil {
			t.Fatal(err)
		}
		routes("default via 10.73.3.1 dev eth0", "default via 2001:db8:73::1 dev eth0", "10.74.3.0/24 dev net1", "2001:db8:74::/64 dev net1")
		for _, a := range []string{"10.74.3.1", "10.74.3.2", "2001:db8:74::2", "10.73.3.1", "192.0.2.77", "2001:db8:2::77"} {
			p.reaches(t, netip.MustParseAddr(a))
		}
		if err := s.check(list, p); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		for _, r := range p.result.Routes {
			if ones, _ := r.Dst.Mask.Size(); ones == 0 {
				t.Errorf("the result has route %s", r.Dst.String())
			}
		}
		s.del(list, p)
	}
	if err := s.tryAdd(own, p); err != nil {
		t.Fatal(err)
	}
	routes("198.51.100.0/24 via 10.74.3.1 dev net1")
	s.del(own, p)
	// An impossible request is rejected, and leaves nothing behind.
	fights := s.parse(s.second(map[string]any{"ipam": map[string]any{"routes": []any{map[string]any{"dst": "0.0.0.0/0"}}}}))
	if err := s.tryAdd(fights, p); err == nil || !strings.Contains(err.Error(), "route 0.0.0.0/0: the pod already has this route, through eth0") {
		t.Errorf("a second default route: %v", err)
	}
	routes("default via 10.73.3.1 dev eth0")
	beside := s.parse(s.second(map[string]any{"ipam": map[string]any{"routes": []any{map[string]any{"dst": "0.0.0.0/0", "priority": 200}}}}))
	if err := s.tryAdd(beside, p); err != nil {
		t.Errorf("one that comes after: %v", err)
	}
	s.del(beside, p)
	p.rt.IfName = "eth0"
	s.del(first, p)
	s.wantPods(0)
}

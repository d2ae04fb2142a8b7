// SPDX-License-Identifier: Apache-2.0

package state

import (
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

func endpoint(name, device string, mac byte, addrs ...string) *Object {
	v := &Endpoint{Endpoint: datapath.Endpoint{Device: device, MAC: [6]byte{2, 0, 0, 0, 0, mac}}, Labels: map[string]string{"app": name, "tier": "front"}}
	for _, a := range addrs {
		v.Addresses = append(v.Addresses, netip.MustParseAddr(a))
	}
	return &Object{Key: Key{KindEndpoint, name}, Owner: "cli", Spec: device, Value: v}
}

// TestEndpointsHaveTheirOwn: a device, a MAC or an address can belong to only one Endpoint.
func TestEndpointsHaveTheirOwn(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{endpoint("a", "hs1", 1, "10.1.0.5", "2001:db8::5")}})
	refused := func(o *Object, field, text string) {
		t.Helper()
		wantRefusal(t, s, &Transaction{Put: []*Object{o}}, Conflict, "Endpoint/b", field, text)
	}
	refused(endpoint("b", "hs1", 2, "10.1.0.6"), "spec.device", "device hs1 belongs to Endpoint/a already")
	refused(endpoint("b", "hs2", 1, "10.1.0.6"), "spec.mac", "MAC 02:00:00:00:00:01 belongs to Endpoint/a already")
	refused(endpoint("b", "hs2", 2, "10.1.0.6", "2001:db8::5"), "spec.addresses[1]", "address 2001:db8::5 belongs to Endpoint/a already")
	// Within one change, an address can move to another object.
	commit(t, s, &Transaction{Put: []*Object{endpoint("a", "hs3", 3, "10.1.0.7"), endpoint("b", "hs1", 1, "10.1.0.5", "2001:db8::5")}})
	if o := s.Snapshot().Endpoints()[netip.MustParseAddr("10.1.0.5")]; o == nil || o.Name != "b" {
		t.Errorf("10.1.0.5 is %v", o)
	}
}

func TestEndpointHasLabels(t *testing.T) {
	e := endpoint("web", "hs1", 1).Value.(*Endpoint)
	for _, tt := range []struct {
		labels map[string]string
		want   bool
	}{
		{map[string]string{"app": "web"}, true},
		{map[string]string{"app": "web", "tier": "front"}, true},
		{map[string]string{"app": "web", "tier": "back"}, false},
		{map[string]string{"zone": ""}, false},
	} {
		if got := e.Has(tt.labels); got != tt.want {
			t.Errorf("%v: %t", tt.labels, got)
		}
	}
}

// TestEndpointIsNoGateway: no Endpoint can have an address that belongs to the switch or the node,
// whichever was configured first.
func TestEndpointIsNoGateway(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	lan := &Object{Key: Key{KindBridge, "lan"}, Owner: "cli", Spec: "lan", Value: &Bridge{Bridge: datapath.Bridge{
		Device: "br0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.9/24")},
	}}}
	pods := &Object{Key: Key{KindPodNetwork, "pods"}, Owner: "cli", Spec: "pods", Value: &PodNetwork{
		Bridge: "hsvlan110", Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("2001:db8::/64")},
	}}
	commit(t, s, &Transaction{Put: []*Object{lan, pods, endpoint("a", "hs1", 1, "10.1.0.3")}})
	for _, addr := range []string{"10.1.0.1", "10.1.0.2", "2001:db8::1", "2001:db8::2"} {
		wantRefusal(t, s, &Transaction{Put: []*Object{endpoint("b", "hs2", 2, "10.1.0.4", addr)}}, Conflict, "Endpoint/b", "spec.addresses[1]", "is an address of the switch or the node (PodNetwork/pods)")
	}
	wantRefusal(t, s, &Transaction{Put: []*Object{endpoint("b", "hs2", 2, "10.9.0.9")}}, Conflict, "Endpoint/b", "spec.addresses[0]", "10.9.0.9 is an address of the switch or the node (Bridge/lan)")
	moved := *lan
	moved.Spec, moved.Value = "moved", &Bridge{Bridge: datapath.Bridge{Device: "br0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.3/24")}}}
	wantRefusal(t, s, &Transaction{Put: []*Object{&moved}}, Conflict, "Bridge/lan", "spec.addresses[0]", "10.1.0.3 is an address of Endpoint/a and cannot become an address of the switch or the node")
	commit(t, s, &Transaction{Put: []*Object{&moved}, Delete: []Key{{KindEndpoint, "a"}}})
}

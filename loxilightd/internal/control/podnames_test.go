// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
)

// TestNamesOfPods: a connection names the Endpoints on both of its sides, and connections can be
// filtered by Endpoint.
func TestNamesOfPods(t *testing.T) {
	h := newHarness(t)
	const spec = `{"device":"hs3","addresses":["10.244.3.5","2001:db8:3::5"],"mac":"0a:58:0a:f4:03:05",` +
		`"mtu":1450,"labels":{"app":"web"},"namespace":"shop","pod":"web-1","network":"default","netns":"/run/netns/web-1","containerID":"4f1d0c"}`
	h.ask(admin, "apply", `{"objects":[{"kind":"Endpoint","name":"shop/web-1","spec":`+spec+`}]}`)
	pod, client := netip.MustParseAddrPort("10.244.3.5:8080"), netip.MustParseAddrPort("192.0.2.7:40000")
	vip, other := netip.MustParseAddrPort("198.51.100.10:80"), netip.MustParseAddrPort("10.244.3.6:8080")
	h.plane.connections = []datapath.Connection{
		{Original: datapath.Tuple{Source: client, Destination: vip}, Reply: datapath.Tuple{Source: pod, Destination: client}, DNAT: true},
		{Original: datapath.Tuple{Source: pod, Destination: client}, Reply: datapath.Tuple{Source: client, Destination: pod}},
		{Original: datapath.Tuple{Source: client, Destination: other}, Reply: datapath.Tuple{Source: other, Destination: client}},
	}
	var got api.ConnectionsListResult
	list := func(params string) {
		t.Helper()
		got = api.ConnectionsListResult{}
		if text := h.ask(admin, "connections.list", params); json.Unmarshal([]byte(text), &got) != nil {
			t.Fatal(text)
		}
	}
	list(`{}`)
	side := &api.ConnectionSide{Endpoint: "shop/web-1", Namespace: "shop", Pod: "web-1"}
	for i, want := range [][2]*api.ConnectionSide{{nil, side}, {side, nil}, {nil, nil}} {
		if c := got.Items[i]; !reflect.DeepEqual([2]*api.ConnectionSide{c.From, c.To}, want) {
			t.Errorf("connection %d: from %+v to %+v", i, c.From, c.To)
		}
	}
	list(`{"filter":{"endpoint":"shop/web-1"}}`)
	if len(got.Items) != 2 {
		t.Errorf("%d connections of the pod, want 2", len(got.Items))
	}
}

// SPDX-License-Identifier: Apache-2.0

package object

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestClusterServiceMeans checks how a service's options for its addresses, for diverted clients,
// and for connections without a backend are decoded.
func TestClusterServiceMeans(t *testing.T) {
	prefix := netip.MustParsePrefix
	type meaning struct {
		Silent, Announce bool
		OtherPorts       datapath.OtherPorts
		Diverts          []datapath.Divert
	}
	for spec, want := range map[string]meaning{
		``: {}, `, "noBackend": "reject", "otherPorts": "pass"`: {},
		`, "noBackend": "drop", "otherPorts": "drop"`: {Silent: true, OtherPorts: datapath.OtherPortsDrop},
		`, "announce": true`:                          {Announce: true, OtherPorts: datapath.OtherPortsReject},
		`, "announce": true, "otherPorts": "pass"`:    {Announce: true},
		`, "divert": [{"sources": ["10.0.0.0/8", "::/0"], "service": "shop/web:http"}, {"sources": ["10.1.0.0/16"], "service": "a"}]`: {Diverts: []datapath.Divert{
			{Sources: []netip.Prefix{prefix("10.0.0.0/8"), prefix("::/0")}, Service: "shop/web:http"}, {Sources: []netip.Prefix{prefix("10.1.0.0/16")}, Service: "a"},
		}},
	} {
		v, _, err := ParseSpec("Service", []byte(`{"frontends": ["198.51.100.10:80/tcp"]`+spec+`}`), nil)
		if err != nil {
			t.Errorf("%s: %v", spec, err)
			continue
		}
		s := v.(*state.Service)
		got := meaning{s.Silent, s.Announce, s.OtherPorts, s.Diverts}
		if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); d != "" {
			t.Errorf("%s: %s", spec, d)
		}
		ranges := 0
		for _, divert := range s.Diverts {
			ranges += len(divert.Sources)
		}
		if got := s.Cost().Ranges; got != ranges {
			t.Errorf("%s takes %d ranges, want %d", spec, got, ranges)
		}
	}
}

// TestBadClusterService: invalid specs are rejected, and the error names the faulty field.
func TestBadClusterService(t *testing.T) {
	for spec, field := range map[string]string{
		`"noBackend": "ignore"`: "spec.noBackend", `"otherPorts": "accept"`: "spec.otherPorts",
		`"divert": [{"service": "a"}]`:                                                                                 "spec.divert[0].sources",
		`"divert": [{"sources": ["10.0.0.0/8"]}]`:                                                                      "spec.divert[0].service",
		`"divert": [{"sources": ["10.0.0.0/8"], "service": "No Name"}]`:                                                "spec.divert[0].service",
		`"divert": [{"sources": ["10.0.0.1/8"], "service": "a"}]`:                                                      "spec.divert[0].sources[0]",
		`"divert": [{"sources": ["10.0.0.0/8"], "service": "a"}, {"sources": ["::/0", "10.0.0.0/8"], "service": "b"}]`: "spec.divert[1].sources[1]",
	} {
		_, _, err := kindSpecs["Service"].parse([]byte(`{"frontends": ["198.51.100.10:80/tcp"], `+spec+`}`), nil)
		if err == nil || err.Data == nil || err.Data.Field != field {
			t.Errorf("%s: %+v, want a fault of %s", spec, err, field)
		}
	}
	for spec, field := range map[string]string{
		`{}`: "spec.device", `{"device": "eth0", "address": "192.0.2.1"}`: "spec.address", `{"address": "192.0.2.1/24"}`: "spec.address",
		`{"address": "127.0.0.1"}`: "spec.address", `{"address": "fe80::1"}`: "spec.address", `{"address": "0.0.0.0"}`: "spec.address",
	} {
		_, _, err := kindSpecs["Interface"].parse([]byte(spec), nil)
		if err == nil || err.Data == nil || err.Data.Field != field {
			t.Errorf("%s: %+v, want a fault of %s", spec, err, field)
		}
	}
}

// TestLoopbackBackend: a change with a loopback backend is rejected. A Service stored by an earlier
// version may have a loopback backend, and keeps its other backends.
func TestLoopbackBackend(t *testing.T) {
	for _, loopback := range []string{"127.0.0.1:80", "127.9.8.7:80", "[::1]:80"} {
		spec := `{"frontends": ["198.51.100.10:80/tcp"], "backends": [{"address": "10.0.1.2:80"}, {"address": "` + loopback + `"}]}`
		_, err := Parse(&api.Object{Kind: api.KindService, Name: "web", Spec: []byte(spec)}, api.OwnerCLI, 0, nil)
		if err == nil || err.Data == nil || err.Data.Field != "spec.backends[1].address" || err.Data.Object != "Service/web" ||
			!strings.Contains(err.Message, loopback) || !strings.Contains(err.Message, "address of one of its devices") {
			t.Errorf("%s: %+v, want it refused", loopback, err)
		}
		if v, _, err := ParseSpec(api.KindService, []byte(spec), nil); err != nil || len(v.(*state.Service).Backends) != 2 {
			t.Errorf("%s in a stored object: %v, %v", loopback, v, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func TestServiceMeans(t *testing.T) {
	v, _, err := ParseSpec("Service", []byte(`{
		"frontends": ["198.51.100.10:80/tcp", "[2001:db8::10]:53/udp", "198.51.100.11:3868/sctp"],
		"backends": [{"address": "10.0.1.2:8080"}, {"address": "[2001:db8:1::3]:8081", "weight": 0, "state": "draining"}, {"address": "10.0.1.4:8082", "weight": 65535, "state": "down"}],
		"algorithm": "least-connections", "affinity": {"timeout": "3h"}, "source": "snat",
		"sourceRanges": ["10.0.0.0/8", "2001:db8::/32"],
		"health": {"type": "http", "path": "/healthz?x=1", "port": 8079, "interval": "500ms", "healthy": 4},
		"idleTimeout": {"udp": "45s"}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	addr, prefix := netip.MustParseAddrPort, netip.MustParsePrefix
	want := &state.Service{
		Service: datapath.Service{
			Frontends: []datapath.Frontend{
				{Addr: addr("198.51.100.10:80"), Protocol: 6}, {Addr: addr("[2001:db8::10]:53"), Protocol: 17}, {Addr: addr("198.51.100.11:3868"), Protocol: 132},
			},
			Backends: []datapath.Backend{
				{Addr: addr("10.0.1.2:8080"), Weight: 1},
				{Addr: addr("[2001:db8:1::3]:8081"), Weight: 0, State: datapath.BackendDraining},
				{Addr: addr("10.0.1.4:8082"), Weight: 65535, State: datapath.BackendDown},
			},
			Algorithm: datapath.LeastConnections, Affinity: 3 * time.Hour, Source: datapath.SourceSNAT,
			SourceRanges: []netip.Prefix{prefix("10.0.0.0/8"), prefix("2001:db8::/32")},
			IdleTimeout:  datapath.IdleTimeout{TCP: 2 * time.Hour, UDP: 45 * time.Second, SCTP: 2 * time.Hour},
		},
		Health: &state.HealthCheck{
			Type: "http", Path: "/healthz?x=1", Port: 8079, Interval: 500 * time.Millisecond, Timeout: time.Second, Healthy: 4, Unhealthy: 3,
		},
	}
	if d := cmp.Diff(want, v, cmpopts.EquateComparable(netip.AddrPort{}, netip.Prefix{})); d != "" {
		t.Error(d)
	}
}

func TestServiceDefaults(t *testing.T) {
	v, _, err := ParseSpec("Service", []byte(`{"frontends":["198.51.100.10:80/tcp"],"health":{"type":"https"}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := v.(*state.Service)
	if s.Algorithm != datapath.Maglev || s.Source != datapath.SourceAuto || s.Affinity != 0 || s.IdleTimeout != datapath.DefaultIdleTimeout() || len(s.Backends) != 0 {
		t.Errorf("%+v", s)
	}
	if *s.Health != (state.HealthCheck{Type: "https", Path: "/", Interval: 5 * time.Second, Timeout: time.Second, Healthy: 2, Unhealthy: 3}) {
		t.Errorf("%+v", s.Health)
	}
}

func TestInterfaceMeans(t *testing.T) {
	for spec, want := range map[string]datapath.Port{
		`{"device":"eth0"}`: {Device: "eth0"},
		`{"device":"hs_host@1","netns":"switch","role":"host","xdp":"off"}`: {Device: "hs_host@1", Switch: true, Role: datapath.RoleHost},
		`{"device":"p1","netns":"host","role":"port"}`:                      {Device: "p1", Role: datapath.RolePort},
		`{"device":"vx","role":"tunnel"}`:                                   {Device: "vx", Role: datapath.RoleTunnel},
		`{"device":"up","role":"uplink"}`:                                   {Device: "up", Role: datapath.RoleUplink},
		`{"device":"up","xdp":"generic"}`:                                   {Device: "up", XDP: datapath.XDPGeneric},
		`{"device":"up","xdp":"native"}`:                                    {Device: "up", XDP: datapath.XDPNative},
		`{"address":"2001:db8::7","netns":"switch"}`:                        {Address: netip.MustParseAddr("2001:db8::7"), Switch: true},
	} {
		v, _, err := ParseSpec("Interface", []byte(spec), nil)
		if err != nil || v.(*state.Interface).Port != want {
			t.Errorf("%s: %+v, %v", spec, v, err)
		}
	}
}

const f = `"frontends":["192.0.2.1:80/tcp"]`

// badSpecs contains one error of each kind, with its field.
var badSpecs = []struct{ kind, spec, field, text string }{
	{"Interface", `{}`, "device", "is missing: want the name of a device"},
	{"Interface", `{"device":"abcdefghijklmnop"}`, "device", "1 to 15"},
	{"Interface", `{"device":".."}`, "device", "not a device name"},
	{"Interface", `{"device":"a/b"}`, "device", "not a device name"},
	{"Interface", `{"device":"a b"}`, "device", "not a device name"},
	{"Interface", `{"device":"e","netns":"pod"}`, "netns", "host, switch"},
	{"Interface", `{"device":"e","role":"boss"}`, "role", "uplink, port, host, tunnel"},
	{"Interface", `{"device":"e","xdp":"yes"}`, "xdp", "not one of off, generic, native"},
	{"Service", `{}`, "frontends", "at least one"},
	{"Service", `{"frontends":["192.0.2.1:80"]}`, "frontends[0]", "no protocol"},
	{"Service", `{"frontends":["192.0.2.1:80/icmp"]}`, "frontends[0]", "must be tcp, udp or sctp"},
	{"Service", `{"frontends":["192.0.2.1:80/TCP"]}`, "frontends[0]", "must be tcp, udp or sctp"},
	{"Service", `{"frontends":["192.0.2.1/tcp"]}`, "frontends[0]", "no port"},
	{"Service", `{"frontends":["192.0.2.1:0/tcp"]}`, "frontends[0]", "port"},
	{"Service", `{"frontends":["192.0.2.1:65536/tcp"]}`, "frontends[0]", "port"},
	{"Service", `{"frontends":["192.0.2.1:+80/tcp"]}`, "frontends[0]", "port"},
	{"Service", `{"frontends":["example.org:80/tcp"]}`, "frontends[0]", "is not an address"},
	{"Service", `{"frontends":["2001:db8::1:80/tcp"]}`, "frontends[0]", "brackets"},
	{"Service", `{"frontends":["[192.0.2.1]:80/tcp"]}`, "frontends[0]", "no port"},
	{"Service", `{"frontends":["[::ffff:192.0.2.1]:80/tcp"]}`, "frontends[0]", "write 192.0.2.1"},
	{"Service", `{"frontends":["[fe80::1%eth0]:80/tcp"]}`, "frontends[0]", "scoped"},
	{"Service", `{"frontends":["0.0.0.0:80/tcp"]}`, "frontends[0]", "one host"},
	{"Service", `{"frontends":["[ff02::1]:80/tcp"]}`, "frontends[0]", "one host"},
	{"Service", `{"frontends":["127.0.0.7:80/tcp"]}`, "frontends[0]", "loopback"},
	{"Service", `{"frontends":["[::1]:80/tcp"]}`, "frontends[0]", "loopback"},
	{"Service", `{"frontends":["192.0.2.1:80/tcp","192.0.2.2:80/tcp","192.0.2.1:80/tcp"]}`, "frontends[2]", "duplicates frontends[0]"},
	{"Service", `{"frontends":["198.51.100.1:http/tcp"]}`, "frontends[0]", "port \"http\": want a number from 1 to 65535"},
	{"Service", `{` + f + `,"backends":[{"address":"[2001:db8::1]:http"}]}`, "backends[0].address", "port \"http\": want a number from 1 to 65535"},
	{"Service", `{` + f + `,"backends":[{}]}`, "backends[0].address", "no port"},
	{"Service", `{` + f + `,"backends":[{"address":"10.0.0.1:80"},{"address":"10.0.0.1:80"}]}`, "backends[1].address", "duplicates backends[0]"},
	{"Service", `{` + f + `,"backends":[{"address":"10.0.0.1:80","weight":65536}]}`, "backends[0].weight", "65536"},
	{"Service", `{` + f + `,"backends":[{"address":"10.0.0.1:80","weight":-1}]}`, "backends[0].weight", "-1 is not between 0 and 65535"},
	{"Service", `{` + f + `,"backends":[{"address":"2001:db8::1:80"}]}`, "backends[0].address", "brackets: [2001:db8::1]:80"},
	{"Service", `{` + f + `,"backends":[{"address":"2001:db8::1"}]}`, "backends[0].address", "no port; an IPv6 address with a port must be in brackets: [2001:db8::1]:80"},
	{"Service", `{` + f + `,"backends":[{"address":"10.0.0.1:80","state":"gone"}]}`, "backends[0].state", "active, draining, down"},
	{"Service", `{` + f + `,"algorithm":"fastest"}`, "algorithm", "maglev"},
	{"Service", `{` + f + `,"source":"hide"}`, "source", "auto, keep, snat"},
	{"Service", `{` + f + `,"affinity":{}}`, "affinity.timeout", "1s and 24h"},
	{"Service", `{` + f + `,"affinity":{"timeout":"1500ms"}}`, "affinity.timeout", "whole seconds"},
	{"Service", `{` + f + `,"affinity":{"timeout":"25h"}}`, "affinity.timeout", "24h"},
	{"Service", `{` + f + `,"sourceRanges":["10.0.0.0"]}`, "sourceRanges[0]", "not a valid prefix"},
	{"Service", `{` + f + `,"sourceRanges":["10.0.0.1/8"]}`, "sourceRanges[0]", "write 10.0.0.0/8"},
	{"Service", `{` + f + `,"sourceRanges":["10.0.0.0/8","10.0.0.0/8"]}`, "sourceRanges[1]", "duplicates"},
	{"Service", `{` + f + `,"health":{}}`, "health.type", "missing"},
	{"Service", `{` + f + `,"health":{"type":"udp"}}`, "health.type", "tcp, http, https, ping"},
	{"Service", `{` + f + `,"health":{"type":"tcp","path":"/"}}`, "health.path", "no path"},
	{"Service", `{` + f + `,"health":{"type":"http","path":"x"}}`, "health.path", "begin with /"},
	{"Service", `{` + f + `,"health":{"type":"http","path":"/\r\nX: y"}}`, "health.path", "spaces"},
	{"Service", `{` + f + `,"health":{"type":"http","port":70000}}`, "health.port", "70000"},
	{"Service", `{` + f + `,"health":{"type":"ping","port":7}}`, "health.port", "no port"},
	{"Service", `{` + f + `,"health":{"type":"tcp","interval":"1ms"}}`, "health.interval", "100ms"},
	{"Service", `{` + f + `,"health":{"type":"tcp","timeout":"2m"}}`, "health.timeout", "1m0s"},
	{"Service", `{` + f + `,"health":{"type":"tcp","healthy":-1}}`, "health.healthy", "1 and 100"},
	{"Service", `{` + f + `,"health":{"type":"tcp","unhealthy":101}}`, "health.unhealthy", "101"},
	{"Service", `{` + f + `,"idleTimeout":{"tcp":"-1s"}}`, "idleTimeout.tcp", "-1s"},
	{"Service", `{` + f + `,"idleTimeout":{"udp":"999ms"}}`, "idleTimeout.udp", "1s"},
	{"Service", `{` + f + `,"idleTimeout":{"sctp":"200h"}}`, "idleTimeout.sctp", "168h"},
}

func TestSpecRefused(t *testing.T) {
	for _, tt := range badSpecs {
		_, _, err := kindSpecs[tt.kind].parse([]byte(tt.spec), nil)
		if err == nil || err.Data.Field != "spec."+tt.field || !strings.Contains(err.Message, tt.text) {
			t.Errorf("%s %s:\n got %v\nwant spec.%s: …%s…", tt.kind, tt.spec, err, tt.field, tt.text)
		}
	}
}

func TestNames(t *testing.T) {
	for name, good := range map[string]bool{
		"a": true, "web": true, "0": true, "default/web:80": true, "a.b-c/d:e": true, strings.Repeat("a", 253): true,
		"": false, "-a": false, "a-": false, "Web": false, "a_b": false, "a b": false, "ä": false, strings.Repeat("a", 254): false, "a\n": false,
	} {
		if err := CheckName("Service", name, "name"); (err == nil) != good {
			t.Errorf("name %s: %v", fmt.Sprintf("%.20q", name), err)
		}
	}
}

// TestNearestKind: the error for an unknown kind suggests the kind that it resembles.
func TestNearestKind(t *testing.T) {
	for word, want := range map[string]string{
		"service": "Service", "sevice": "Service", "Services": "Service", "Podnetwork": "PodNetwork", "firewall": "FirewallRule",
		"interfce": "Interface", "nat": "NAT", "Mesh": "", "x": "", "Deployment": "",
	} {
		_, err := ParseKind(word, "kind")
		hint := ""
		if err != nil {
			_, hint, _ = strings.Cut(err.Message, "did you mean ")
			hint, _, _ = strings.Cut(hint, "?")
		}
		if err == nil || hint != want || !strings.Contains(err.Message, "want one of Bridge, ") {
			t.Errorf("%s: %v, want a hint at %q", word, err, want)
		}
	}
}

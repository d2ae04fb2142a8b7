// SPDX-License-Identifier: Apache-2.0

package config

import (
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestEmptyIsTheDefault(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "tunnel: {}\n"} {
		c, err := Parse("t.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if !reflect.DeepEqual(c, Default()) {
			t.Errorf("%q: %+v", text, c)
		}
	}
}

func TestEveryKey(t *testing.T) {
	c, err := Parse("t.yaml", []byte(`
apiServer: https://192.0.2.4:6443
tunnel: {type: geneve, vni: 7, port: 6082, mtu: 1400, device: hsg}
masquerade: {enabled: false, except: [10.0.0.0/8, 192.0.2.9]}
nodePorts: {addresses: [192.0.2.0/24, "2001:db8::/64"]}
loadBalancer: {pools: [{name: lan, addresses: [198.51.100.16/28, 203.0.113.5-203.0.113.9]}], announce: false, allowed: [192.0.2.128/25]}
externalIPs: {allowed: [198.51.100.64/26, "2001:db8:9::/64"]}
idleTimeout: {tcp: 90m, udp: 45s, sctp: 1h}
resolvers: {services: [dns/coredns], addresses: [169.254.20.10, "2001:db8::53"]}
serviceProxyName: edge
health: {listen: "127.0.0.1:1256"}
metrics: {listen: ""}
log: {level: debug, format: json}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		APIServer:    "https://192.0.2.4:6443",
		Tunnel:       Tunnel{Type: "geneve", VNI: 7, Port: 6082, MTU: 1400, Device: "hsg"},
		Masquerade:   Masquerade{Except: []string{"10.0.0.0/8", "192.0.2.9"}},
		NodePorts:    NodePorts{Addresses: []string{"192.0.2.0/24", "2001:db8::/64"}},
		LoadBalancer: LoadBalancer{Pools: []Pool{{Name: "lan", Addresses: []string{"198.51.100.16/28", "203.0.113.5-203.0.113.9"}}}, Allowed: []string{"192.0.2.128/25"}},
		ExternalIPs:  ExternalIPs{Allowed: []string{"198.51.100.64/26", "2001:db8:9::/64"}},
		IdleTimeout:  IdleTimeout{TCP: 90 * time.Minute, UDP: 45 * time.Second, SCTP: time.Hour},

		Resolvers:        Resolvers{Services: []string{"dns/coredns"}, Addresses: []string{"169.254.20.10", "2001:db8::53"}},
		ServiceProxyName: "edge",
		Health:           Listen{"127.0.0.1:1256"},
		Log:              Log{Level: slog.LevelDebug, Format: "json"},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%+v\nwant %+v", c, want)
	}
}

func TestWrongConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"tunel: {}":                           "field tunel not found",
		"tunnel: {typ: vxlan}":                "field typ not found",
		"tunnel: {type: stt}":                 "tunnel.type",
		"tunnel: {vni: 16777216}":             "tunnel.vni",
		"apiServer: 192.0.2.4:6443":           "apiServer",
		"masquerade: {except: [x]}":           "masquerade.except[0]",
		"nodePorts: {addresses: [192.0.2.1]}": "nodePorts.addresses[0]",
		"loadBalancer: {pools: [{name: a, addresses: [10.0.0.9-10.0.0.1]}]}":  "loadBalancer.pools[0].addresses[0]",
		"loadBalancer: {pools: [{addresses: [10.0.0.1]}]}":                    "loadBalancer.pools[0].name",
		"externalIPs: {allowed: [198.51.100.7]}":                              "externalIPs.allowed[0]",
		"loadBalancer: {allowed: [10.0.0.0/8, all]}":                          "loadBalancer.allowed[1]",
		"idleTimeout: {tcp: 0s}":                                              "idleTimeout.tcp: 0s",
		"idleTimeout: {udp: 999ms}":                                           "idleTimeout.udp",
		"idleTimeout: {sctp: 169h}":                                           "idleTimeout.sctp",
		"idleTimeout: {tcp: forever}":                                         "forever",
		"resolvers: {services: [kube-dns]}":                                   "resolvers.services[0]",
		"resolvers: {services: [a/b/c]}":                                      "resolvers.services[0]",
		"resolvers: {addresses: [192.0.2.53, 0.0.0.0]}":                       "resolvers.addresses[1]",
		"resolvers: {addresses: [fe80::1%eth0]}":                              "resolvers.addresses[0]",
		"resolvers: {addresses: [" + strings.Repeat("192.0.2.53,", 17) + "]}": "resolvers.addresses: has 17",
		"health: {listen: 10256}":                                             "health.listen",
		"log: {format: xml}":                                                  "log.format",
		"log: {level: loud}":                                                  "loud",
		"apiServer: a\n---\nb: c\n":                                           "one document only",
	} {
		if _, err := Parse("t.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "t.yaml") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestRange(t *testing.T) {
	for text, want := range map[string][2]string{
		"198.51.100.16/28":        {"198.51.100.16", "198.51.100.31"},
		"203.0.113.5-203.0.113.9": {"203.0.113.5", "203.0.113.9"},
		"2001:db8::/127":          {"2001:db8::", "2001:db8::1"},
		"2001:db8::7":             {"2001:db8::7", "2001:db8::7"},
	} {
		r, err := ParseRange(text)
		if err != nil || r.First != netip.MustParseAddr(want[0]) || r.Last != netip.MustParseAddr(want[1]) {
			t.Errorf("%s: %v %v", text, r, err)
		}
		if !r.Contains(r.Last) || r.Contains(r.Last.Next()) || r.Contains(r.First.Prev()) {
			t.Errorf("%s contains the wrong addresses", text)
		}
	}
}

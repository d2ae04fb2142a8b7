// SPDX-License-Identifier: Apache-2.0

package object

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func TestPodNetworkMeans(t *testing.T) {
	p := netip.MustParsePrefix
	wantValue(t, "PodNetwork", `{"subnets":["2001:db8:7::/64","10.7.1.0/29"],"mtu":1280,"bridge":"br0","masquerade":{"enabled":true,"except":["10.0.0.0/8","192.0.2.1"]}}`,
		&state.PodNetwork{Subnets: []netip.Prefix{p("2001:db8:7::/64"), p("10.7.1.0/29")}, Bridge: "br0", MTU: 1280, Masquerade: true, Except: []netip.Prefix{p("10.0.0.0/8"), p("192.0.2.1/32")}})
	wantValue(t, "PodNetwork", `{"subnets":["10.7.0.0/16"],"masquerade":{"enabled":false}}`, &state.PodNetwork{Subnets: []netip.Prefix{p("10.7.0.0/16")}, Bridge: "hsvlan110"})
	wantValue(t, "PodNetwork", `{"subnets":["10.7.0.0/16"],"policy":"required"}`, &state.PodNetwork{Subnets: []netip.Prefix{p("10.7.0.0/16")}, Bridge: "hsvlan110", PolicyRequired: true})
	wantValue(t, "PodNetwork", `{"subnets":["10.7.0.0/16"],"resolvers":["10.96.0.10","::ffff:10.96.0.11","2001:db8::53"]}`, &state.PodNetwork{
		Subnets: []netip.Prefix{p("10.7.0.0/16")}, Bridge: "hsvlan110",
		Resolvers: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("2001:db8::53")},
	})
	for spec, want := range map[string]string{
		`{"subnets":["10.7.0.0/24"],"resolvers":["dns.example.org"]}`:                                     "spec.resolvers[0]: \"dns.example.org\" is not an address",
		`{"subnets":["10.7.0.0/24"],"resolvers":["10.96.0.10/32"]}`:                                       "is not an address",
		`{"subnets":["10.7.0.0/24"],"resolvers":["10.96.0.1","10.96.0.1"]}`:                               "spec.resolvers[1]: 10.96.0.1 duplicates resolvers[0]",
		`{"subnets":["10.7.0.0/24"],"resolvers":["224.0.0.251"]}`:                                         "spec.resolvers[0]",
		`{"subnets":["10.7.0.0/24"],"resolvers":[` + strings.Repeat(`"10.96.0.1",`, 64) + `"10.96.0.2"]}`: "spec.resolvers: has 65 addresses: at most 64",
		`{}`:                                                     "spec.subnets: is missing",
		`{"subnets":["10.7.0.0/30"]}`:                            "spec.subnets[0]: \"10.7.0.0/30\": an IPv4 subnet for pods must have a prefix length from 8 to 29",
		`{"subnets":["10.0.0.0/7"]}`:                             "length from 8 to 29",
		`{"subnets":["::/0"]}`:                                   "length from 32 to 125",
		`{"subnets":["fe80::/64"]}`:                              "hosts cannot have these addresses",
		`{"subnets":["127.0.0.0/24"]}`:                           "hosts cannot have these addresses",
		`{"subnets":["224.0.0.0/24"]}`:                           "hosts cannot have these addresses",
		`{"subnets":["0.0.0.0/8"]}`:                              "hosts cannot have these addresses",
		`{"subnets":["ff02::/64"]}`:                              "hosts cannot have these addresses",
		`{"subnets":["10.7.0.9/24"]}`:                            "write 10.7.0.0/24",
		`{"subnets":["10.7.0.0"]}`:                               "is not a valid prefix",
		`{"subnets":["::ffff:10.7.0.0/120"]}`:                    "is an IPv4-mapped IPv6 prefix: write 10.7.0.0/24",
		`{"subnets":["10.7.0.0/24","10.8.0.0/24"]}`:              "spec.subnets[1]: 10.8.0.0/24 is a second IPv4 subnet",
		`{"subnets":["10.7.0.0/24"],"bridge":"a/b"}`:             "spec.bridge",
		`{"subnets":["10.7.0.0/24"],"policy":"yes"}`:             "spec.policy: \"yes\" is not one of optional, required",
		`{"subnets":["10.7.0.0/24"],"mtu":67}`:                   "spec.mtu: 67 is not between 68 and 65535",
		`{"subnets":["10.7.0.0/24","2001:db8::/64"],"mtu":1279}`: "between 1280",
		`{"subnets":["10.7.0.0/24"],"masquerade":{"enabled":false,"except":["10.0.0.1"]}}`:  "spec.masquerade.except: has no effect",
		`{"subnets":["10.7.0.0/24"],"masquerade":{"enabled":true,"except":["10.0.0.1/8"]}}`: "spec.masquerade.except[0]",
		`{"subnets":["10.7.0.0/24"],"gateway":"10.7.0.1"}`:                                  "spec.gateway",
	} {
		if v, _, err := ParseSpec("PodNetwork", []byte(spec), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %s", spec, v, err, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package object

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

const endpointSpec = `{"device":"hs3","addresses":["10.244.3.5","2001:db8:3::5"],"mac":"0a:58:0a:f4:03:05",` +
	`"mtu":1450,"labels":{"app":"web"},"namespace":"shop","pod":"web-1","network":"default","netns":"/run/netns/web-1","containerID":"4f1d0c"}`

func TestEndpointMeans(t *testing.T) {
	v, _, err := ParseSpec(api.KindEndpoint, []byte(endpointSpec), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &state.Endpoint{
		Endpoint: datapath.Endpoint{
			Device: "hs3", MAC: [6]byte{0x0a, 0x58, 0x0a, 0xf4, 0x03, 0x05}, MTU: 1450, Network: "default",
			Addresses: []netip.Addr{netip.MustParseAddr("10.244.3.5"), netip.MustParseAddr("2001:db8:3::5")},
		},
		Labels: map[string]string{"app": "web"}, Namespace: "shop", Pod: "web-1",
	}
	if !reflect.DeepEqual(v, want) {
		t.Errorf("got %+v, want %+v", v, want)
	}
}

func TestEndpointRefused(t *testing.T) {
	for _, tt := range []struct{ old, new, field, text string }{
		{`"hs3"`, `""`, "device", "is missing: want the name of a device"},
		{`"hs3"`, `"a device of too long a name"`, "device", "not a device name"},
		{`1450`, `67`, "mtu", "67 is not between 68 and 65535"},
		{`"0a:58:0a:f4:03:05"`, `""`, "mac", "is missing"},
		{`"0a:58:0a:f4:03:05"`, `"0a:58"`, "mac", "six bytes"},
		{`"0a:58:0a:f4:03:05"`, `"00:00:00:00:fe:80:00:00"`, "mac", "six bytes"},
		{`"0a:58:0a:f4:03:05"`, `"01:58:0a:f4:03:05"`, "mac", "group address"},
		{`"0a:58:0a:f4:03:05"`, `"02:4c:4c:00:00:01"`, "mac", "the MAC of tunnels"},
		{`"0a:58:0a:f4:03:05"`, `"02:4c:4c:00:00:02"`, "mac", "the MAC of tunnels"},
		{`"0a:58:0a:f4:03:05"`, `"00:00:00:00:00:00"`, "mac", "not the address of one host"},
		{`["10.244.3.5","2001:db8:3::5"]`, `[]`, "addresses", "is missing"},
		{`["10.244.3.5","2001:db8:3::5"]`, `["` + strings.Repeat(`10.244.3.5","`, 64) + `10.244.3.5"]`, "addresses", "at most 64"},
		{`"10.244.3.5"`, `"10.244.3.5/24"`, "addresses[0]", "write 10.244.3.5"},
		{`"10.244.3.5"`, `"pod"`, "addresses[0]", "not an address"},
		{`"10.244.3.5"`, `"224.0.0.1"`, "addresses[0]", "one host"},
		{`"10.244.3.5"`, `"127.0.0.1"`, "addresses[0]", "loopback"},
		{`"10.244.3.5"`, `"::ffff:10.244.3.5"`, "addresses[0]", "write 10.244.3.5"},
		{`"10.244.3.5"`, `"2001:db8:3::5"`, "addresses[1]", "duplicates addresses[0]"},
		{`{"app":"web"}`, `{"":"web"}`, "labels", "names have"},
		{`"default"`, `"A_B"`, "network", "not a valid name of a PodNetwork"},
		{`"shop"`, `"sh\u0000p"`, "namespace", "printable bytes"},
		{`"web-1","network"`, `"` + strings.Repeat("x", 254) + `","network"`, "pod", "at most 253"},
		{`"containerID"`, `"container"`, "container", "unknown"},
	} {
		spec := strings.Replace(endpointSpec, tt.old, tt.new, 1)
		_, _, err := kindSpecs[api.KindEndpoint].parse([]byte(spec), nil)
		if err == nil {
			t.Errorf("%s: not refused", spec)
			continue
		}
		if err.Data == nil || err.Data.Field != "spec."+tt.field || !strings.Contains(err.Message, tt.text) {
			t.Errorf("%s: %v, want %q at spec.%s", spec, err, tt.text, tt.field)
		}
	}
}

func TestGroupByLabels(t *testing.T) {
	v, _, err := ParseSpec(api.KindAddressGroup, []byte(`{"members":["10.0.0.0/8",{"labels":{"app":"web","tier":"front"}}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &state.AddressGroup{
		AddressGroup: datapath.AddressGroup{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		Labels:       []map[string]string{{"app": "web", "tier": "front"}},
	}
	if !reflect.DeepEqual(v, want) {
		t.Errorf("got %+v, want %+v", v, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// badMirrors contains one error of each kind.
var badMirrors = []struct{ spec, field, text string }{
	{`{"to":{"device":"mon0"}}`, "source", "is missing: name the object"},
	{`{"source":{},"to":{"device":"mon0"}}`, "source", "in interface, endpoint, service or rule"},
	{`{"source":{"interface":"eth0","rule":"r"},"to":{"device":"mon0"}}`, "source.rule", "cannot be combined with spec.source.interface: a Mirror has one source"},
	{`{"source":{"endpoint":"a","service":"b"},"to":{"device":"mon0"}}`, "source.service", "cannot be combined with spec.source.endpoint"},
	{`{"source":{"interface":"ETH0"},"to":{"device":"mon0"}}`, "source.interface", `"ETH0" is not a name of an Interface`},
	{`{"source":{"service":"` + strings.Repeat("a", 254) + `"},"to":{"device":"mon0"}}`, "source.service", "is not a name of a Service"},
	{`{"source":{"device":"eth0"},"to":{"device":"mon0"}}`, "source.device", "unknown field; want one of endpoint, interface, rule, service"},
	{`{"source":{"interface":"eth0"}}`, "to", "is missing: set device, or peer and vni"},
	{`{"source":{"interface":"eth0"},"to":{"vni":7}}`, "to", "is missing: set device, or peer and vni"},
	{`{"source":{"interface":"eth0"},"to":{"device":"mon0","peer":"far","vni":7}}`, "to.peer", "cannot be combined with spec.to.device: a Mirror has one target"},
	{`{"source":{"interface":"eth0"},"to":{"device":"mon0","vni":7}}`, "to.vni", "applies to peer only"},
	{`{"source":{"interface":"eth0"},"to":{"device":"a/b"}}`, "to.device", "not a device name"},
	{`{"source":{"interface":"eth0"},"to":{"device":"lo"}}`, "to.device", "returns copies to the node itself"},
	{`{"source":{"interface":"eth0"},"to":{"device":"mon0","netns":"pod"}}`, "to.netns", "not one of host, switch"},
	{`{"source":{"interface":"eth0"},"to":{"peer":"far","vni":7,"netns":"host"}}`, "to.netns", "applies to device only"},
	{`{"source":{"interface":"eth0"},"to":{"peer":"FAR","vni":7}}`, "to.peer", "not a name of a Peer"},
	{`{"source":{"interface":"eth0"},"to":{"peer":"far"}}`, "to.vni", "is missing: choose the VNI by which the Peer recognises the copies"},
	{`{"source":{"interface":"eth0"},"to":{"peer":"far","vni":16777216}}`, "to.vni", "16777216 is more than 16777215"},
	{`{"source":{"interface":"eth0"},"to":{"peer":"far","vni":-1}}`, "to.vni", "-1"},
	{`{"source":{"interface":"eth0"},"to":{"device":"mon0"},"direction":"ingress"}`, "direction", "not one of both, in, out"},
	{`{"source":{"interface":"eth0"},"to":{"device":"mon0"},"snaplen":63}`, "snaplen", "63 is not between 64 and 65535"},
	{`{"source":{"interface":"eth0"},"to":{"device":"mon0"},"snaplen":65536}`, "snaplen", "65536 is not between"},
	{`{"source":{"interface":"eth0"},"to":{"device":"mon0"},"snaplen":-1}`, "snaplen", "-1 is not between"},
	{`{"source":{"interface":"eth0"},"to":{"device":"mon0"},"length":128}`, "length", "unknown field"},
	{`{"protocol":"icmp","icmp":["echo-request"]}`, "match.icmp", "is not evaluated for copies: omit it; a Mirror matches source, destination"},
	{`{"protocol":"tcp","tcpFlags":"syn"}`, "match.tcpFlags", "is not evaluated for copies"},
	{`{"in":["eth0"]}`, "match.in", "is not evaluated for copies"},
	{`{"out":["eth0"]}`, "match.out", "is not evaluated for copies"},
	{`{"vlans":[7]}`, "match.vlans", "is not evaluated for copies"},
	{`{"dscp":["ef"]}`, "match.dscp", "is not evaluated for copies"},
	{`{"source":["group:web"]}`, "match.source", "matches no AddressGroups, and not local"},
	{`{"destination":["10.0.0.0/8","local"]}`, "match.destination", "matches no AddressGroups, and not local"},
	{`{"source":["10.0.0.1/8"]}`, "match.source[0]", "write 10.0.0.0/8"},
	{`{"ports":[80]}`, "match.ports", "set spec.match.protocol"},
	{`{"source":["10.0.0.0/8"],"destination":["2001:db8::/32"]}`, "match.destination", "no packet matches both"},
	{`{"source":["10.0.0.1-10.0.0.254","10.1.0.1-10.1.0.30"]}`, "match.source", "22 members, with ranges of addresses converted to prefixes: a Mirror has at most 16"},
	{`{"protocol":"tcp","ports":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}`, "match.ports", "17 members"},
	{`{"protocol":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}`, "match.protocol", "17 members"},
}

func TestMirrorRefused(t *testing.T) {
	for _, tt := range badMirrors {
		spec := tt.spec
		if strings.HasPrefix(tt.field, "match") {
			spec = `{"source":{"interface":"eth0"},"to":{"device":"mon0"},"match":` + spec + `}`
		}
		_, _, err := ParseSpec(api.KindMirror, []byte(spec), nil)
		if err == nil || err.Data.Field != "spec."+tt.field || !strings.Contains(err.Message, tt.text) || err.Reason() != api.ReasonInvalid {
			t.Errorf("%s:\n got %v\nwant spec.%s: …%s…", spec, err, tt.field, tt.text)
		}
	}
}

func TestMirrorMeans(t *testing.T) {
	const both = datapath.MirrorIn | datapath.MirrorOut
	mon := datapath.MirrorTarget{Device: "mon0"}
	match := datapath.Match{
		Source: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("2001:db8::/32")}, Protocols: []datapath.Protocol{datapath.TCP, datapath.SCTP},
		Ports: []datapath.PortRange{{First: 80, Last: 80}, {First: 8000, Last: 8100}}, SourcePorts: []datapath.PortRange{{First: 1024, Last: 65535}},
		Destination: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8:7::/48")},
	}
	for _, tt := range []struct {
		spec string
		want state.Mirror
	}{
		{`{"source":{"interface":"eth0"},"to":{"device":"mon0"}}`, state.Mirror{
			Source: state.Key{Kind: "Interface", Name: "eth0"}, SourceField: "interface", Mirror: datapath.Mirror{Direction: both, To: mon}}},
		{`{"source":{"endpoint":"shop/web-1/eth0"},"direction":"in","snaplen":64,"to":{"device":"mon0","netns":"switch"}}`, state.Mirror{
			Source: state.Key{Kind: "Endpoint", Name: "shop/web-1/eth0"}, SourceField: "endpoint", HasNetns: true,
			Mirror: datapath.Mirror{Direction: datapath.MirrorIn, Length: 64, To: datapath.MirrorTarget{Device: "mon0", Switch: true}}}},
		{`{"source":{"service":"web"},"direction":"out","snaplen":65535,"to":{"peer":"far","vni":16777215}}`, state.Mirror{
			Source: state.Key{Kind: "Service", Name: "web"}, SourceField: "service",
			Mirror: datapath.Mirror{Direction: datapath.MirrorOut, Length: 65535, To: datapath.MirrorTarget{Peer: "far", VNI: 1<<24 - 1}}}},
		{`{"source":{"rule":"r"},"direction":"both","to":{"device":"mon0","netns":"host"},"match":{"source":["10.1.0.0/16","2001:db8::/32"],
			"destination":["192.0.2.1","2001:db8:7::/48"],"protocol":["tcp","sctp"],"ports":[80,"8000-8100"],"sourcePorts":"1024-65535"}}`, state.Mirror{
			Source: state.Key{Kind: "FirewallRule", Name: "r"}, SourceField: "rule", HasNetns: true, Mirror: datapath.Mirror{Direction: both, Match: match, To: mon}}},
	} {
		v, canonical, err := ParseSpec(api.KindMirror, []byte(tt.spec), nil)
		if err != nil || !reflect.DeepEqual(v, &tt.want) {
			t.Errorf("%s:\n got %+v, %v\nwant %+v", tt.spec, v, err, &tt.want)
			continue
		}
		again, second, err := ParseSpec(api.KindMirror, canonical, nil)
		if err != nil || !reflect.DeepEqual(again, v) || string(second) != string(canonical) {
			t.Errorf("%s: stored as %s, which means %+v, %v", tt.spec, canonical, again, err)
		}
	}
	most := make([]string, datapath.MirrorMembersMax)
	for i := range most {
		most[i] = fmt.Sprint(100 + i)
	}
	spec := `{"source":{"rule":"r"},"to":{"device":"mon0"},"match":{"protocol":["` + strings.Join(most, `","`) + `"]}}`
	if _, _, err := ParseSpec(api.KindMirror, []byte(spec), nil); err != nil {
		t.Errorf("%d protocols: %v", len(most), err)
	}
}

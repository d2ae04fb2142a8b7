// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func connection(i int) datapath.Connection {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	client := fmt.Sprintf("203.0.113.%d:%d", 1+i%200, 1024+i)
	return datapath.Connection{
		Protocol: datapath.TCP,
		Original: datapath.Tuple{Source: at(client), Destination: at("198.51.100.10:80")},
		Reply:    datapath.Tuple{Source: at("10.0.1.2:8080"), Destination: at(client)},
		Forth:    datapath.Way{Tracked: true, Device: "eth1", VLAN: 30}, Back: datapath.Way{Why: "packet has a mark (fwmark)"},
		State: "established", Tracked: true, Age: 90 * time.Second, Idle: time.Second, Expires: 2 * time.Hour,
		Sent: datapath.Traffic{Packets: 5, Bytes: 600}, Received: datapath.Traffic{Packets: 4, Bytes: 7000},
		DNAT: true, Service: "web", Backend: at("10.0.1.2:8080"),
	}
}

func TestConnectionsList(t *testing.T) {
	h := newHarness(t)
	h.plane.connections = []datapath.Connection{connection(0)}
	h.want("connections.list", `{}`, `{"items":[{"protocol":"tcp","original":{"source":"203.0.113.1:1024","destination":"198.51.100.10:80"},`+
		`"reply":{"source":"10.0.1.2:8080","destination":"203.0.113.1:1024"},"state":"established","path":"fast","forth":{"path":"fast","device":"eth1","vlan":30},"back":{"path":"slow","why":"packet has a mark (fwmark)"},"age":"1m30s","idle":"1s","expires":"2h0m0s",`+
		`"sent":{"packets":5,"bytes":600},"received":{"packets":4,"bytes":7000},"nat":"dnat","service":"web","backend":"10.0.1.2:8080"}]}`)
	long := strings.Repeat("n", 253)
	for i := 1; i < 1000; i++ {
		c := connection(i)
		c.Service = datapath.ServiceName(long)
		h.plane.connections = append(h.plane.connections, c)
	}
	for limit, pages := range map[int]int{0: 20, 10: 110} {
		seen, token := map[string]bool{}, ""
		for n := 0; ; n++ {
			r := result[api.ConnectionsListResult](h, "connections.list", fmt.Sprintf(`{"limit":%d,"continue":%q}`, limit, token))
			for _, c := range r.Items {
				seen[c.Original.Source] = true
			}
			if token = r.Continue; token == "" || n > pages || limit > 0 && len(r.Items) > limit {
				break
			}
		}
		if len(seen) != 1000 {
			t.Errorf("limit %d: %d connections were listed, want 1000", limit, len(seen))
		}
	}
	h.wantError("connections.list", `{"continue":"stale"}`, 1, "", "continue", "stale")
	h.wantError("connections.list", `{"limit":-1}`, 1, "", "limit", "negative")
}

func TestConnectionFilter(t *testing.T) {
	prefix := netip.MustParsePrefix
	for text, want := range map[string]datapath.ConnectionFilter{
		`{"all":true}`:                              {},
		`{"source":"203.0.113.7"}`:                  {Source: prefix("203.0.113.7/32")},
		`{"source":"203.0.113.7:4660"}`:             {Source: prefix("203.0.113.7/32"), SourcePort: 4660},
		`{"destination":"2001:db8::7"}`:             {Destination: prefix("2001:db8::7/128")},
		`{"destination":"[2001:db8::7]:80"}`:        {Destination: prefix("2001:db8::7/128"), DestinationPort: 80},
		`{"source":"203.0.113.7/24"}`:               {Source: prefix("203.0.113.0/24")},
		`{"backend":"10.0.1.2:8080"}`:               {Backend: prefix("10.0.1.2/32"), BackendPort: 8080},
		`{"protocol":"sctp","state":"fin-wait"}`:    {Protocol: datapath.SCTP, State: "fin-wait"},
		`{"service":"default/web:80"}`:              {Service: "default/web:80"},
		`{"protocol":"icmpv6","state":"unreplied"}`: {Protocol: datapath.ICMPv6, State: "unreplied"},
	} {
		h := newHarness(t)
		h.plane.connections = []datapath.Connection{connection(0), connection(1)}
		count := 0
		for i := range h.plane.connections {
			if want.Match(&h.plane.connections[i]) {
				count++
			}
		}
		h.want("connections.flush", `{"filter":`+text+`}`, fmt.Sprintf(`{"flushed":%d}`, count))
		if !reflect.DeepEqual(h.plane.flushed, want) {
			t.Errorf("%s became %+v, want %+v", text, h.plane.flushed, want)
		}
	}
	h := newHarness(t)
	for _, tt := range []struct {
		filter string
		code   int
		field  string
	}{
		{`{}`, 1, "filter"},
		{`{"all":false}`, 1, "filter"},
		{`{"all":true,"service":"web"}`, 1, "filter.all"},
		{`{"source":"unknown"}`, 1, "filter.source"},
		{`{"source":"203.0.113.7:99999"}`, 1, "filter.source"},
		{`{"protocol":"gre"}`, 1, "filter.protocol"},
		{`{"state":"open"}`, 1, "filter.state"},
		{`{"service":"No Name"}`, 1, "filter.service"},
		{`{"endpoint":"pod"}`, 2, "filter.endpoint"},
		{`{"client":"203.0.113.7"}`, api.CodeInvalidParams, "filter.client"},
	} {
		h.wantError("connections.flush", `{"filter":`+tt.filter+`}`, tt.code, "", tt.field, "")
	}
	h.wantError("connections.flush", `{}`, 1, "", "filter", "missing")
	if !reflect.DeepEqual(h.plane.flushed, datapath.ConnectionFilter{}) {
		t.Error("a refused filter reached the data plane")
	}
}

func TestCounters(t *testing.T) {
	h := newHarness(t)
	result[api.ChangeResult](h, "apply", `{"objects":[`+webObject+`,{"kind":"Interface","name":"up","spec":{"device":"eth7"}}]}`)
	h.plane.node = datapath.NodeCounters{Packets: 9, Bytes: 900, Connections: 2, Verdicts: map[string]uint64{"redirect": 9}, Drops: map[string]uint64{"no_backend": 0}}
	h.plane.services = map[datapath.ServiceName]datapath.ServiceCounters{"web": {
		Packets: 7, Bytes: 700, Connections: 2,
		Backends: []datapath.BackendCounters{{Backend: netip.MustParseAddrPort("10.0.1.2:8080"), Connections: 2, Active: 1, Packets: 7, Bytes: 700}},
	}}
	h.want("counters", `{}`, `{"packets":9,"bytes":900,"connections":2,"drops":{"no_backend":0},"verdicts":{"redirect":9}}`)
	h.want("counters", `{"kind":"Service","name":"web"}`,
		`{"packets":7,"bytes":700,"connections":2,"drops":{},"backends":[{"address":"10.0.1.2:8080","connections":2,"active":1,"packets":7,"bytes":700}]}`)
	h.want("counters", `{"kind":"Interface","name":"up"}`, `{"packets":3,"bytes":0,"drops":{}}`)
	result[api.ChangeResult](h, "apply", `{"objects":[{"kind":"Tunnel","name":"known","spec":{"device":"hsvx"}},
		{"kind":"Peer","name":"known","spec":{"underlay":"192.0.2.2","tunnel":"known"}},
		{"kind":"Peer","name":"waits","spec":{"underlay":"192.0.2.3","tunnel":"known"}},
		{"kind":"Peer","name":"routed","spec":{"underlay":"192.0.2.4"}}]}`)
	h.want("counters", `{"kind":"Peer","name":"known"}`,
		`{"packets":10,"bytes":1100,"drops":{},"sent":{"packets":3,"bytes":400},"received":{"packets":7,"bytes":700},"dropped":1}`)
	h.want("counters", `{"kind":"Tunnel","name":"known"}`,
		`{"packets":110,"bytes":1200,"drops":{},"sent":{"packets":50,"bytes":500},"received":{"packets":60,"bytes":700},"dropped":2}`)
	h.want("counters", `{"kind":"Peer","name":"waits"}`, `{"packets":0,"bytes":0,"drops":{},"sent":{"packets":0,"bytes":0},"received":{"packets":0,"bytes":0}}`)
	h.wantError("counters", `{"kind":"Peer","name":"routed"}`, 6, "Peer/routed", "", "a Peer without a tunnel")
	h.wantError("counters", `{"kind":"Service","name":"mail"}`, 2, "Service/mail", "", "no such object")
	h.wantError("counters", `{"name":"web"}`, 1, "", "kind", "missing")
}

// TestMirrorReports: the status of a Mirror contains the devices on which packets are copied, and
// its counters; before it is in force, it contains neither.
func TestMirrorReports(t *testing.T) {
	h := newHarness(t)
	for _, name := range []string{"known", "waits"} {
		result[api.ChangeResult](h, "apply", `{"objects":[{"kind":"Mirror","name":"`+name+`","spec":{"source":{"interface":"eth0"},"to":{"device":"mon0"}}}]}`)
	}
	h.want("counters", `{"kind":"Mirror","name":"known"}`, `{"packets":8,"bytes":900,"drops":{},"dropped":3}`)
	h.want("counters", `{"kind":"Mirror","name":"waits"}`, `{"packets":0,"bytes":0,"drops":{}}`)
	for name, want := range map[string]string{
		"known": `{"state":"Ready","devices":["eth0","eth1"],"counters":{"packets":8,"bytes":900,"drops":3}}`, "waits": `{"state":"Ready"}`,
	} {
		if got := string(result[api.Object](h, "get", `{"kind":"Mirror","name":"`+name+`"}`).Status); got != want {
			t.Errorf("status of %s:\n got %s\nwant %s", name, got, want)
		}
	}
}

func TestStatusOfObjects(t *testing.T) {
	h := newHarness(t)
	up, web := state.Key{Kind: "Interface", Name: "up"}, state.Key{Kind: "Service", Name: "web"}
	h.progress.not[up] = api.Status{State: api.StatePending, Message: "eth7 does not exist"}
	h.progress.health[netip.MustParseAddrPort("10.0.1.2:8080")] = "unhealthy"
	h.plane.ports = map[datapath.PortName]datapath.PortState{"up": {
		Index: 4, MAC: net.HardwareAddr{2, 1, 3, 4, 5, 6}, MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}, Hooks: []string{"tcx-ingress"},
	}}
	service := strings.Replace(webObject, `"backends":[`, `"health":{"type":"tcp"},"backends":[{"address":"10.0.1.3:8080","state":"draining"},`, 1)
	result[api.ChangeResult](h, "apply", `{"objects":[`+service+`,{"kind":"Interface","name":"up","spec":{"device":"eth7"}}]}`)
	for params, want := range map[string]string{
		`{"kind":"Service","name":"web"}`: `{"state":"Ready","backends":[{"address":"10.0.1.3:8080","state":"draining","health":"unknown"},` +
			`{"address":"10.0.1.2:8080","state":"down","health":"unhealthy","message":"refused"}]}`,
		`{"kind":"Interface","name":"up"}`: `{"state":"Pending","message":"eth7 does not exist","index":4,"mac":"02:01:03:04:05:06","mtu":1500,"addresses":["192.0.2.1/24"],"hooks":["tcx-ingress"]}`,
	} {
		if got := string(result[api.Object](h, "get", params).Status); got != want {
			t.Errorf("status of %s:\n got %s\nwant %s", params, got, want)
		}
	}
	h.progress.not[web] = api.Status{State: api.StateError, Message: "no room"}
	h.plane.features = datapath.Features{Kernel: "6.1", Layout: 3, Hooks: []datapath.Hook{{Device: "eth7", Netns: "host", Hook: "tc-ingress", Program: "ll", ID: 8}}, Warnings: []string{"forwarding is off"}}
	h.plane.usage = map[string]datapath.Usage{"connections IPv6": {Used: 95, Size: 100}, "services": {Used: 1, Size: 100}}
	h.progress.problems = []string{"maintenance fails"}
	r := result[api.StatusResult](h, "status", `{}`)
	if r.Revision != 1 || r.Instance != "test" || r.PID == 0 || r.Objects["Service"] != 1 || r.Capacity["connections IPv6"].Used != 95 || r.Datapath.Hooks[0].ID != 8 {
		t.Errorf("%+v", r)
	}
	if want := (api.NotReady{Object: "Service/web", State: "Error", Message: "no room"}); len(r.NotReady) != 2 || r.NotReady[1] != want {
		t.Errorf("not ready: %+v", r.NotReady)
	}
	if got := strings.Join(r.Health.Messages, "; "); r.Health.State != "degraded" ||
		got != "maintenance fails; forwarding is off; table connections IPv6 is nearly full: 95 of 100 entries used; 2 objects are not Ready" {
		t.Errorf("%s: %s", r.Health.State, got)
	}
	delete(h.progress.not, web)
	if r := result[api.StatusResult](h, "status", `{}`); r.Health.Messages[len(r.Health.Messages)-1] != "one object is not Ready" {
		t.Errorf("%q", r.Health.Messages)
	}
	h.plane.features, h.plane.usage = datapath.Features{}, nil
	clear(h.progress.not)
	h.progress.problems = nil
	if r := result[api.StatusResult](h, "status", `{}`); r.Health.State != "ok" || r.Health.Messages != nil {
		t.Errorf("%+v", r.Health)
	}
}

// TestStatusTellsOfLostState: the status reports what was found when the store was opened.
func TestStatusTellsOfLostState(t *testing.T) {
	h := newHarness(t)
	for _, tt := range []struct {
		report state.Report
		want   string
	}{
		{state.Report{Damage: &state.Damage{At: time.Now().Add(-time.Hour), File: "/var/old", Cause: "no head"}}, "was damaged (no head) and set aside as /var/old"},
		{state.Report{RolledBack: true}, "last change before it may be lost"},
		{state.Report{Unreadable: []state.Unreadable{{Key: state.Key{Kind: "NAT", Name: "x"}, Err: datapath.ErrAbsent}}}, "this version cannot decode the stored NAT/x, so only what an earlier run applied is in force"},
		{state.Report{Damage: &state.Damage{At: time.Now().Add(-25 * time.Hour)}}, ""},
	} {
		h.Report = &tt.report
		r := result[api.StatusResult](h, "status", `{}`)
		if got := strings.Join(r.Health.Messages, "; "); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") || (r.Health.State == "ok") != (got == "") {
			t.Errorf("%s: %s, want …%s…", r.Health.State, got, tt.want)
		}
	}
}

func TestStatusFits(t *testing.T) {
	h := newHarness(t)
	for i := range 2000 {
		h.plane.features.Hooks = append(h.plane.features.Hooks, datapath.Hook{Device: fmt.Sprint("port", i), Netns: "switch", Hook: "tcx-ingress", Program: "ll_ingress"})
	}
	r := result[api.StatusResult](h, "status", `{}`)
	left := 2000 - len(r.Datapath.Hooks)
	if len(r.Health.Messages) != 1 || !strings.HasPrefix(r.Health.Messages[0], fmt.Sprint(left, " more hooks")) || left == 0 {
		t.Errorf("%d hooks, %q", len(r.Datapath.Hooks), r.Health.Messages)
	}
}

// TestTunnelTooLarge: if the MTU of a Tunnel is too large, its own status and the daemon's status
// report this.
func TestTunnelTooLarge(t *testing.T) {
	h := newHarness(t)
	for mtu, want := range map[int]string{0: "", 1400: "", 1450: "", 9000: "packets of mtu 9000, once encapsulated, exceed the path MTU to its Peers: the device has 1450"} {
		h.ask(admin, "apply", fmt.Sprintf(`{"objects":[{"kind":"Tunnel","name":"known","spec":{"device":"hsvx","mtu":%d}}]}`, mtu))
		for method, params := range map[string]string{"get": `{"kind":"Tunnel","name":"known"}`, "status": "{}"} {
			out := h.ask(reader, method, params)
			if reports := strings.Contains(out, "exceed the path MTU"); reports != (want != "") || !strings.Contains(out, want) {
				t.Errorf("mtu %d: %s contains\n%s\nwant %q", mtu, method, out, want)
			}
		}
	}
}

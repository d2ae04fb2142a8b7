// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
)

// testConnections are the connections of the test daemon.
func testConnections() []api.Connection {
	return []api.Connection{
		{
			Protocol: "tcp",
			Original: api.Tuple{Source: "203.0.113.5:40112", Destination: "198.51.100.10:80"},
			Reply:    api.Tuple{Source: "10.0.1.2:8080", Destination: "203.0.113.5:40112"},
			Forth:    api.Way{Path: "fast", Device: "eth1", VLAN: 30}, Back: api.Way{Path: "fast", Device: "eth0"},
			State: "established", Path: "fast", NAT: "dnat", Service: "web", Rule: "open", Backend: "10.0.1.2:8080",
			Age: api.Duration(3725 * time.Second), Idle: api.Duration(1200 * time.Millisecond), Expires: api.Duration(2 * time.Hour),
			Sent: api.Traffic{Packets: 12, Bytes: 3456}, Received: api.Traffic{Packets: 345, Bytes: 456_789},
		},
		{
			Protocol: "udp",
			Original: api.Tuple{Source: "[2001:db8:5::7]:5353", Destination: "[2001:db8::11]:53"},
			Reply:    api.Tuple{Source: "[2001:db8:1::4]:53", Destination: "[2001:db8::1]:32001"},
			State:    "unreplied", Path: "slow", NAT: "dnat+snat", Service: "dns", Backend: "[2001:db8:1::4]:53",
			Age: api.Duration(2 * time.Second), Idle: api.Duration(2 * time.Second), Expires: api.Duration(28 * time.Second),
			Sent: api.Traffic{Packets: 1, Bytes: 78},
		},
		{
			Protocol: "icmp",
			Original: api.Tuple{Source: "203.0.113.9:771", Destination: "10.0.1.2:771"},
			Reply:    api.Tuple{Source: "10.0.1.2:771", Destination: "203.0.113.9:771"},
			Forth:    api.Way{Path: "slow", Why: "netfilter has rules"}, Back: api.Way{Path: "fast", Device: "eth0"},
			State: "replied", Path: "slow",
			Sent: api.Traffic{Packets: 2, Bytes: 196}, Received: api.Traffic{Packets: 2, Bytes: 196},
		},
	}
}

// matches implements the part of the filter that the scripts use.
func matches(f *api.ConnectionFilter, c *api.Connection) bool {
	return (f.Service == "" || f.Service == c.Service) && (f.Protocol == "" || f.Protocol == c.Protocol) &&
		(f.State == "" || f.State == c.State) && (f.Backend == "" || strings.HasPrefix(c.Backend, f.Backend)) &&
		(f.Source == "" || strings.HasPrefix(c.Original.Source, f.Source))
}

// connectionsList returns pages of two connections.
func (d *testDaemon) connectionsList(p api.ConnectionsListParams) (any, *api.Error) {
	result := api.ConnectionsListResult{Items: []api.Connection{}}
	for i := range d.connections {
		c := &d.connections[i]
		key := fmt.Sprint(i)
		if !matches(&p.Filter, c) || (p.Continue != "" && key <= p.Continue) {
			continue
		}
		if len(result.Items) == 2 {
			result.Continue = fmt.Sprint(i - 1)
			break
		}
		result.Items = append(result.Items, *c)
	}
	return result, nil
}

func (d *testDaemon) connectionsFlush(p api.ConnectionsFlushParams) (any, *api.Error) {
	var result api.ConnectionsFlushResult
	kept := d.connections[:0:0]
	for i := range d.connections {
		if p.Filter.All || matches(&p.Filter, &d.connections[i]) {
			result.Flushed++
		} else {
			kept = append(kept, d.connections[i])
		}
	}
	d.connections = kept
	return result, nil
}

func (d *testDaemon) counters(p api.CountersParams) (any, *api.Error) {
	d.counted++
	more := d.counted * 1000
	switch {
	case p.Kind == "":
		return api.CountersResult{
			Packets: 1_234_567 + more, Bytes: 987_654_321 + 1500*more, Connections: 4321 + d.counted,
			Verdicts: map[string]uint64{"fast": 1_200_000, "slow": 34_000, "icmp_error": 0},
			Drops:    map[string]uint64{"no_backend": 17, "of_a_newer_daemon": 1, "no_route": 0},
		}, nil
	case p.Kind == api.KindService:
		if _, err := d.get(api.GetParams{Kind: p.Kind, Name: p.Name}); err != nil {
			return nil, err
		}
		return api.CountersResult{
			Packets: 1000 + more, Bytes: 3_000_000 + 800*more, Connections: 41, Drops: map[string]uint64{"no_backend": 3 * d.counted},
			Backends: []api.BackendCounters{{Address: "10.0.1.2:8080", Connections: 41, Active: 1, Packets: 2000, Bytes: 3_000_000}},
		}, nil
	case p.Kind == api.KindPeer && p.Name == "routed":
		return nil, api.Errorf(api.ReasonUnsupported, "a Peer without a tunnel has no counters").At("Peer/routed", "")
	case p.Kind == api.KindPeer || p.Kind == api.KindTunnel:
		return api.CountersResult{
			Packets: 1500 + more, Bytes: 2_000_000, Sent: &api.Traffic{Packets: 1500, Bytes: 1_500_000},
			Received: &api.Traffic{Packets: more, Bytes: 500_000}, Dropped: 7,
		}, nil
	case p.Kind == api.KindMirror:
		return api.CountersResult{Packets: 41, Bytes: 4200, Dropped: 3}, nil
	case p.Kind == api.KindRoute:
		return nil, api.Errorf(api.ReasonUnsupported, "objects of this kind have no counters").At("Route/"+p.Name, "")
	case p.Name == "shop/gone":
		return nil, api.Errorf(api.ReasonNotFound, "no such object").At(p.Kind+"/"+p.Name, "")
	default:
		return api.CountersResult{Packets: 9, Bytes: 900}, nil
	}
}

// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

var tunnelKind = Kind{
	Name:    api.KindTunnel,
	Words:   []string{"tunnel", "tunnels"},
	Meaning: "how packets to other nodes are encapsulated",
	Columns: []output.Column{
		{Title: "DEVICE"}, {Title: "TYPE"}, {Title: "VNI", Right: true}, {Title: "MTU", Right: true, Optional: 1}, {Title: "PEERS", Right: true, Optional: 1},
	},
	Wide:     append([]output.Column{{Title: "LOCAL", Optional: 3}, {Title: "PORT", Right: true, Optional: 4}}, trafficColumns...),
	Cells:    tunnelCells,
	Spec:     func() any { return &api.TunnelSpec{} },
	Schema:   fillSchema(tunnelSchema),
	Topics:   api.Topics,
	Counters: TunnelCounters,
	fields:   tunnelFields,
	complete: func(name string, spec map[string]any) error {
		if spec["device"] == nil {
			spec["device"] = name
		}
		return nil
	},
	AddExample: "  llcli tunnel add hsvxlan100 --vni 100\n  llcli tunnel add hsgre --type gre --local 192.0.2.1",
	SetExample: "  llcli tunnel set hsvxlan100 --mtu 1400",
}

var peerKind = Kind{
	Name:     api.KindPeer,
	Words:    []string{"peer", "peers"},
	Meaning:  "another node, and the prefixes that are reached through it",
	Columns:  []output.Column{{Title: "UNDERLAY", Flexible: true}, {Title: "PREFIXES", Flexible: true}, {Title: "TUNNEL"}, {Title: "LAST HEARD", Optional: 1}},
	Wide:     append([]output.Column{{Title: "LOCAL", Optional: 3}, {Title: "DEVICE", Optional: 3}, {Title: "PATH MTU", Right: true, Optional: 2}}, trafficColumns...),
	Cells:    peerCells,
	Spec:     func() any { return &api.PeerSpec{} },
	Schema:   peerSchema,
	Topics:   []string{api.TopicChanges, api.TopicStatus, api.TopicConnections},
	Counters: TunnelCounters,
	fields:   peerFields,
	complete: func(_ string, spec map[string]any) error {
		if spec["underlay"] == nil {
			return command.Usagef("the underlay address is missing; set --underlay ADDRESS")
		}
		return nil
	},
	AddExample: "  llcli peer add node2 --underlay 192.0.2.2 --prefix 10.1.2.0/24 --tunnel hsvxlan100",
	SetExample: "  llcli peer set node2 --add-prefix 10.1.1.7/32",
}

var trafficColumns = []output.Column{
	{Title: "TX-PACKETS", Right: true, Optional: 2}, {Title: "TX-BYTES", Right: true, Optional: 2},
	{Title: "RX-PACKETS", Right: true, Optional: 2}, {Title: "RX-BYTES", Right: true, Optional: 2},
	{Title: "DROPS", Right: true, Optional: 1}, {Title: "LABELS", Flexible: true, Optional: 5},
}

func tunnelCells(o *api.Object, wide bool) []output.Cell {
	var spec api.TunnelSpec
	var status api.TunnelStatus
	Decode(o, &spec, &status)
	mtu := status.MTU
	if mtu == 0 {
		mtu = spec.MTU
	}
	cells := []output.Cell{{Text: spec.Device}, {Text: cmp.Or(spec.Type, api.TunnelTypes[0])}, {Text: strconv.Itoa(int(spec.VNI))}, {Text: output.Number(mtu)}, {Text: strconv.Itoa(status.Peers)}}
	if wide {
		port := spec.Port
		if port == 0 {
			port = map[string]int{"": 4789, "vxlan": 4789, "geneve": 6081}[spec.Type]
		}
		cells = append(cells, output.Cell{Text: cmp.Or(spec.Local, "-")}, output.Cell{Text: output.Number(port)})
		cells = append(cells, trafficCells(o, status.Counters)...)
	}
	return cells
}

func peerCells(o *api.Object, wide bool) []output.Cell {
	var spec api.PeerSpec
	var status api.PeerStatus
	Decode(o, &spec, &status)
	cells := []output.Cell{{Text: output.Join(spec.Underlay.Strings())}, {Text: output.Join(spec.Prefixes.Strings())}, {Text: cmp.Or(spec.Tunnel, "none")}, {Text: lastHeard(&status)}}
	if wide {
		cells = append(cells, output.Cell{Text: cmp.Or(status.Local, "-")}, output.Cell{Text: cmp.Or(status.Device, "-")}, output.Cell{Text: output.Number(status.PathMTU)})
		cells = append(cells, trafficCells(o, status.Counters)...)
	}
	return cells
}

// lastHeard returns when the last packet was received, in the user's time zone. The daemon knows it
// only since its own start.
func lastHeard(s *api.PeerStatus) string {
	switch {
	case s.LastHeard != nil:
		return s.LastHeard.Local().Format(time.DateTime)
	case s.Counters != nil:
		return "not since start"
	}
	return "-" // without a Tunnel, packets of the Peer are not counted
}

func trafficCells(o *api.Object, c *api.PeerCounters) []output.Cell {
	if c == nil {
		return []output.Cell{{Text: "-"}, {Text: "-"}, {Text: "-"}, {Text: "-"}, {Text: "-"}, {Text: output.Labels(o.Labels)}}
	}
	var cells []output.Cell
	for _, n := range []uint64{c.SentPackets, c.SentBytes, c.ReceivedPackets, c.ReceivedBytes, c.Drops} {
		cells = append(cells, output.Cell{Text: strconv.FormatUint(n, 10)})
	}
	return append(cells, output.Cell{Text: output.Labels(o.Labels)})
}

var tunnelFields = []specField{
	{flag: "device", path: "device", usage: "the name of the `DEVICE` to create (default of add: NAME)"},
	{flag: "type", path: "type", values: api.TunnelTypes, usage: "`HOW` packets are encapsulated: " + strings.Join(withDefault(api.TunnelTypes), ", ")},
	{flag: "vni", path: "vni", form: formNumber, usage: "the `NUMBER` of the virtual network; the key of gre"},
	{flag: "local", path: "local", usage: "source `ADDRESS` of outer packets (default: by the route)"},
	{flag: "port", path: "port", form: formNumber, usage: "UDP `PORT` (default: 4789 for vxlan, 6081 for geneve)"},
	{flag: "mtu", path: "mtu", form: formNumber, usage: "MTU of the device in `BYTES` (default: what fits the underlay)"},
}

var peerFields = []specField{
	{flag: "underlay", path: "underlay", form: formWords, usage: "`ADDRESS` of the node; may be repeated"},
	{flag: "prefix", path: "prefixes", form: formWords, usage: "`PREFIX` reached through it; may be repeated"},
	{flag: "tunnel", path: "tunnel", kind: api.KindTunnel, usage: "`NAME` of the Tunnel (default: none, the underlay routes)"},
}

const tunnelSchema = `kind: Tunnel
name: hsvxlan100              # a-z, 0-9 and - . / : inside; unique among Tunnels
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  device: hsvxlan100          # created in the switch's network namespace; at most 13 characters
  type: vxlan                 # default; or {tunnelTypes}
  vni: 100                    # up to 16777215; gre: the key, of 32 bits, 0: none
  local: 192.0.2.1            # source of outer packets; default: the source of the route to each Peer
  port: 4789                  # UDP; default 4789, for geneve 6081
  mtu: 1450                   # default: what fits the underlay; follows its changes
`

const peerSchema = `kind: Peer
name: node2                   # a-z, 0-9 and - . / : inside; unique among Peers
labels: {rack: b}             # for llcli get -l; no effect in the daemon
spec:
  underlay:                   # its addresses: the first one with a route is used
    - 192.0.2.2
    - 2001:db8::2
  prefixes:                   # reached through it; the longest prefix takes precedence
    - 10.1.2.0/24
    - 2001:db8:2::/64
  tunnel: hsvxlan100          # default: none, the underlay routes them
`

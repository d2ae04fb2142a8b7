// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strconv"
	"time"

	"github.com/loxilight/loxilight/api"
)

var (
	tunnelKind = kind{
		name:    api.KindTunnel,
		words:   []string{"tunnel", "tunnels"},
		meaning: "how packets to other nodes are encapsulated",
		columns: []column{
			{title: "DEVICE"}, {title: "TYPE"}, {title: "VNI", right: true}, {title: "MTU", right: true, optional: 1}, {title: "PEERS", right: true, optional: 1},
		},
		wide:  append([]column{{title: "LOCAL", optional: 3}, {title: "PORT", right: true, optional: 4}}, trafficColumns...),
		cells: tunnelCells, spec: func() any { return &api.TunnelSpec{} },
	}
	peerKind = kind{
		name:    api.KindPeer,
		words:   []string{"peer", "peers"},
		meaning: "another node, and the prefixes that are reached through it",
		columns: []column{{title: "UNDERLAY", flexible: true}, {title: "PREFIXES", flexible: true}, {title: "TUNNEL"}, {title: "LAST HEARD", optional: 1}},
		wide:    append([]column{{title: "LOCAL", optional: 3}, {title: "DEVICE", optional: 3}, {title: "PATH MTU", right: true, optional: 2}}, trafficColumns...),
		cells:   peerCells, spec: func() any { return &api.PeerSpec{} },
	}
	trafficColumns = []column{
		{title: "TX-PACKETS", right: true, optional: 2}, {title: "TX-BYTES", right: true, optional: 2},
		{title: "RX-PACKETS", right: true, optional: 2}, {title: "RX-BYTES", right: true, optional: 2},
		{title: "DROPS", right: true, optional: 1}, {title: "LABELS", flexible: true, optional: 5},
	}
)

func tunnelCells(o *api.Object, wide bool) []cell {
	var spec api.TunnelSpec
	var status api.TunnelStatus
	decode(o, &spec, &status)
	mtu := status.MTU
	if mtu == 0 {
		mtu = spec.MTU
	}
	cells := []cell{{text: spec.Device}, {text: or(spec.Type, "vxlan")}, {text: strconv.Itoa(int(spec.VNI))}, {text: number(mtu)}, {text: strconv.Itoa(status.Peers)}}
	if wide {
		port := spec.Port
		if port == 0 {
			port = map[string]int{"": 4789, "vxlan": 4789, "geneve": 6081}[spec.Type]
		}
		cells = append(cells, cell{text: or(spec.Local, "-")}, cell{text: number(port)})
		cells = append(cells, trafficCells(o, status.Counters)...)
	}
	return cells
}

func peerCells(o *api.Object, wide bool) []cell {
	var spec api.PeerSpec
	var status api.PeerStatus
	decode(o, &spec, &status)
	cells := []cell{{text: join(spec.Underlay.Strings())}, {text: join(spec.Prefixes.Strings())}, {text: or(spec.Tunnel, "none")}, {text: lastHeard(&status)}}
	if wide {
		cells = append(cells, cell{text: or(status.Local, "-")}, cell{text: or(status.Device, "-")}, cell{text: number(status.PathMTU)})
		cells = append(cells, trafficCells(o, status.Counters)...)
	}
	return cells
}

// lastHeard returns when a packet was received last, in the time zone of the user. The daemon knows
// it since its own start only.
func lastHeard(s *api.PeerStatus) string {
	switch {
	case s.LastHeard != nil:
		return s.LastHeard.Local().Format(time.DateTime)
	case s.Counters != nil:
		return "not since start"
	}
	return "-" // without a Tunnel, packets of the Peer are not counted
}

func trafficCells(o *api.Object, c *api.PeerCounters) []cell {
	if c == nil {
		return []cell{{text: "-"}, {text: "-"}, {text: "-"}, {text: "-"}, {text: "-"}, {text: labels(o.Labels)}}
	}
	var cells []cell
	for _, n := range []uint64{c.SentPackets, c.SentBytes, c.ReceivedPackets, c.ReceivedBytes, c.Drops} {
		cells = append(cells, cell{text: strconv.FormatUint(n, 10)})
	}
	return append(cells, cell{text: labels(o.Labels)})
}

var tunnelFields = []specField{
	{flag: "device", path: "device", usage: "the name of the `DEVICE` that is made (default of add: NAME)"},
	{flag: "type", path: "type", values: []string{"vxlan", "geneve", "gre"}, usage: "`HOW` packets are encapsulated: vxlan (default), geneve, gre"},
	{flag: "vni", path: "vni", form: formNumber, usage: "the `NUMBER` of the virtual network; the key of gre"},
	{flag: "local", path: "local", usage: "`ADDRESS` of this node that outer packets come from (default: by the route)"},
	{flag: "port", path: "port", form: formNumber, usage: "UDP `PORT` (default: 4789 of vxlan, 6081 of geneve)"},
	{flag: "mtu", path: "mtu", form: formNumber, usage: "MTU of the device in `BYTES` (default: what fits the underlay)"},
}

var peerFields = []specField{
	{flag: "underlay", path: "underlay", form: formWords, usage: "`ADDRESS` of the node; may be repeated"},
	{flag: "prefix", path: "prefixes", form: formWords, usage: "`PREFIX` reached through it; may be repeated"},
	{flag: "tunnel", path: "tunnel", kind: api.KindTunnel, usage: "`NAME` of the Tunnel (default: none, the underlay routes)"},
}

// overlayNouns are the words for tunnels and peers.
func overlayNouns() []noun {
	return []noun{
		{
			kind: findKind(api.KindTunnel), fields: tunnelFields,
			complete: func(name string, spec map[string]any) error {
				if spec["device"] == nil {
					spec["device"] = name
				}
				return nil
			},
			add: "  llcli tunnel add hsvxlan100 --vni 100\n  llcli tunnel add hsgre --type gre --local 192.0.2.1",
			set: "  llcli tunnel set hsvxlan100 --mtu 1400",
		},
		{
			kind: findKind(api.KindPeer), fields: peerFields,
			complete: func(_ string, spec map[string]any) error {
				if spec["underlay"] == nil {
					return usagef("the underlay address is missing; set --underlay ADDRESS")
				}
				return nil
			},
			add: "  llcli peer add node2 --underlay 192.0.2.2 --prefix 10.1.2.0/24 --tunnel hsvxlan100",
			set: "  llcli peer set node2 --add-prefix 10.1.1.7/32",
		},
	}
}

const tunnelSchema = `kind: Tunnel
name: hsvxlan100              # a-z, 0-9 and - . / : inside; unique among Tunnels
labels: {team: net}           # for llcli get -l; they mean nothing to the daemon
spec:
  device: hsvxlan100          # made in the switch's network namespace; at most 13 characters
  type: vxlan                 # default; or geneve, gre
  vni: 100                    # up to 16777215; gre: the key, of 32 bits, 0: none
  local: 192.0.2.1            # source of outer packets; default: as the route to each peer has it
  port: 4789                  # UDP; default 4789, of geneve 6081
  mtu: 1450                   # default: what fits the underlay, followed when that changes
`

const peerSchema = `kind: Peer
name: node2                   # a-z, 0-9 and - . / : inside; unique among Peers
labels: {rack: b}             # for llcli get -l; they mean nothing to the daemon
spec:
  underlay:                   # its addresses: the first that can be reached is sent to
    - 192.0.2.2
    - 2001:db8::2
  prefixes:                   # reached through it; of two peers the longer prefix wins
    - 10.1.2.0/24
    - 2001:db8:2::/64
  tunnel: hsvxlan100          # default: none, the underlay routes them
`

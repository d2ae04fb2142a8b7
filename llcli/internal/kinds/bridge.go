// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"context"
	"strconv"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

var bridgeKind = Kind{
	Name:    api.KindBridge,
	Words:   []string{"bridge", "bridges", "br"},
	Meaning: "a bridge in the switch's network namespace, with its ports and VLANs",
	Columns: []output.Column{
		{Title: "DEVICE"}, {Title: "PORTS", Flexible: true}, {Title: "VLANS", Optional: 2}, {Title: "ADDRESSES", Flexible: true, Optional: 1},
	},
	Wide:    []output.Column{{Title: "AGEING", Optional: 5}, {Title: "MTU", Right: true, Optional: 4}, {Title: "LABELS", Flexible: true, Optional: 5}},
	Cells:   bridgeCells,
	Spec:    func() any { return &api.BridgeSpec{} },
	Schema:  bridgeSchema,
	Topics:  api.Topics,
	details: showPorts,
	fields:  bridgeFields,
	complete: func(name string, spec map[string]any) error {
		if spec["device"] == nil {
			spec["device"] = name
		}
		return nil
	},
	AddExample: "  llcli bridge add br0 --port hs1 --port hs2 --address 10.1.0.1/24\n" +
		"  llcli bridge add br0 --vlan-filtering --port hs1,pvid=10 --port hs2,vlans=10+200-299,isolated",
	SetExample: "  llcli bridge set br0 --add-port hs3,pvid=20\n  llcli bridge set br0 --remove-port hs1",
}

func bridgeCells(o *api.Object, wide bool) []output.Cell {
	var spec api.BridgeSpec
	Decode(o, &spec, &struct{}{})
	ports := make([]string, len(spec.Ports))
	for i, p := range spec.Ports {
		ports[i] = p.Device
	}
	cells := []output.Cell{{Text: spec.Device}, {Text: output.Join(ports)}, {Text: output.YesNo(spec.VLANFiltering)}, {Text: output.Join(spec.Addresses)}}
	if wide {
		ageing := "5m"
		if spec.Ageing != 0 {
			ageing = output.Short(spec.Ageing)
		}
		cells = append(cells, output.Cell{Text: ageing}, output.Cell{Text: output.Number(spec.MTU)}, output.Cell{Text: output.Labels(o.Labels)})
	}
	return cells
}

var bridgeFields = []specField{
	{flag: "device", path: "device", usage: "the name of the bridge `DEVICE` to create (default of add: NAME)"},
	{flag: "vlan-filtering", path: "vlanFiltering", form: formTruth, usage: "separate VLANs (VLAN filtering)"},
	{flag: "address", path: "addresses", form: formWords, usage: "`ADDRESS/LENGTH` of the bridge device; may be repeated"},
	{
		flag: "port", path: "ports", form: formItems,
		usage: "`DEVICE` that belongs to it, with ,pvid=N ,vlans=N+N-N ,untagged=N and ,isolated if needed; may be repeated",
		item:  itemOf("device", map[string]form{"device": formText, "pvid": formNumber, "vlans": formWords, "untagged": formWords, "isolated": formTruth}),
		key:   func(item map[string]any) string { return textOf(item["device"]) },
	},
	{flag: "ageing", path: "ageing", form: formTime, usage: "remember a silent host for this `TIME` (default 5m)"},
	{flag: "mtu", path: "mtu", form: formNumber, usage: "its MTU in `BYTES` (default: the kernel chooses)"},
	{flag: "resolver", path: "resolvers", form: formWords, usage: "`ADDRESS` of a DNS server from whose responses names in Policies are learnt; may be repeated"},
}

const bridgeSchema = `kind: Bridge
name: br0                     # a-z, 0-9 and - . / : inside; unique among Bridges
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  device: br0                 # created in the switch's network namespace
  vlanFiltering: true         # separates VLANs; default false
  addresses:                  # of the bridge device
    - 10.1.0.1/24
    - 2001:db8:1::1/64
  ports:
    - device: hs1
      pvid: 10                # VLAN of untagged frames; 0: they are dropped. Default: 1
                              # for a port without VLANs, otherwise 0
      vlans: [20, 200-299]    # tagged in both directions
      untagged: [10]          # egress untagged; default: the pvid
      isolated: true          # exchanges no frames with other isolated ports
    - device: hs2
  ageing: 5m                  # how long a silent host is remembered, 1s to 168h
  mtu: 1500                   # default: the kernel chooses
  resolvers: [192.0.2.53]     # DNS servers from whose responses names in Policies are learnt
`

// showPorts shows the ports of a Bridge, one per line.
func showPorts(_ context.Context, a *command.App, _ command.Daemon, o *api.Object) {
	var spec api.BridgeSpec
	Decode(o, &spec, &struct{}{})
	if len(spec.Ports) == 0 {
		return
	}
	t := a.Table(output.Column{Title: "PORT"}, output.Column{Title: "PVID", Right: true}, output.Column{Title: "VLANS", Flexible: true}, output.Column{Title: "UNTAGGED", Flexible: true}, output.Column{Title: "ISOLATED"})
	for _, p := range spec.Ports {
		pvid := "-"
		switch {
		case p.PVID != nil:
			pvid = strconv.Itoa(*p.PVID)
		case spec.VLANFiltering && len(p.VLANs)+len(p.Untagged) == 0:
			pvid = "1"
		}
		t.Add(output.Cell{Text: p.Device}, output.Cell{Text: pvid}, output.Cell{Text: output.Join(p.VLANs.Strings())}, output.Cell{Text: output.Join(p.Untagged.Strings())}, output.Cell{Text: output.YesNo(p.Isolated)})
	}
	a.Section(t)
}

// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/pflag"
)

var mirrorKind = Kind{
	Name:    api.KindMirror,
	Words:   []string{"mirror", "mirrors"},
	Meaning: "which packets are copied, and where to",
	Columns: []output.Column{
		{Title: "SOURCE", Flexible: true}, {Title: "DIRECTION", Optional: 1}, {Title: "MATCH", Flexible: true}, {Title: "TO", Flexible: true},
		{Title: "COPIES", Right: true, Optional: 1}, {Title: "DROPS", Right: true, Optional: 1},
	},
	Wide: []output.Column{
		{Title: "BYTES", Right: true, Optional: 2}, {Title: "SNAPLEN", Right: true, Optional: 3}, {Title: "DEVICES", Flexible: true, Optional: 3},
		{Title: "LABELS", Flexible: true, Optional: 5},
	},
	Cells:      mirrorCells,
	Spec:       func() any { return &api.MirrorSpec{} },
	Schema:     mirrorSchema,
	Counters:   CopyCounters,
	fields:     mirrorFields,
	complete:   completeMirror,
	adjust:     adjustMirror,
	AddExample: "  llcli mirror add watch-web --service web --to-device mon0\n  llcli mirror add watch-dns --interface eth0 --direction in --protocol udp --port 53 --snaplen 128 --to-peer node2 --vni 4242",
	SetExample: "  llcli mirror set watch-web --direction in --snaplen 0\n  llcli mirror set watch-dns --to-device mon0",
}

// mirrorSource returns the kind, in lower case, and the name of the object whose packets are copied.
func mirrorSource(s *api.MirrorSource) string {
	for _, one := range [][2]string{{"interface", s.Interface}, {"endpoint", s.Endpoint}, {"service", s.Service}, {"rule", s.Rule}} {
		if one[1] != "" {
			return one[0] + " " + one[1]
		}
	}
	return "-"
}

func mirrorTarget(t *api.MirrorTarget) string {
	switch {
	case t.Peer != "":
		return fmt.Sprintf("peer %s vni %d", t.Peer, t.VNI)
	case t.Netns != "":
		return fmt.Sprintf("%s (%s)", t.Device, t.Netns)
	}
	return cmp.Or(t.Device, "-")
}

func mirrorCells(o *api.Object, wide bool) []output.Cell {
	var spec api.MirrorSpec
	var status api.MirrorStatus
	Decode(o, &spec, &status)
	copies, bytes, drops := "-", "-", "-"
	if c := status.Counters; c != nil {
		copies, bytes, drops = strconv.FormatUint(c.Packets, 10), strconv.FormatUint(c.Bytes, 10), strconv.FormatUint(c.Drops, 10)
	}
	cells := []output.Cell{
		{Text: mirrorSource(&spec.Source)}, {Text: cmp.Or(spec.Direction, api.MirrorDirections[0])}, {Text: matchText(spec.Match)}, {Text: mirrorTarget(&spec.To)},
		{Text: copies}, {Text: drops},
	}
	if wide {
		snaplen := "whole"
		if spec.Snaplen != 0 {
			snaplen = strconv.Itoa(spec.Snaplen)
		}
		cells = append(cells, output.Cell{Text: bytes}, output.Cell{Text: snaplen}, output.Cell{Text: output.Join(status.Devices)}, output.Cell{Text: output.Labels(o.Labels)})
	}
	return cells
}

// mirrorSources and mirrorTargets are the fields of which a Mirror has one. A target has further
// fields.
var (
	mirrorSources = []specField{
		{flag: "interface", path: "source.interface", kind: api.KindInterface, usage: "copy the packets of the Interface `NAME`"},
		{flag: "endpoint", path: "source.endpoint", kind: api.KindEndpoint, usage: "copy the packets of the Endpoint `NAME`"},
		{flag: "service", path: "source.service", kind: api.KindService, usage: "copy the packets of the connections of the Service `NAME`"},
		{flag: "rule", path: "source.rule", kind: api.KindFirewallRule, usage: "copy the packets of the connections that the FirewallRule `NAME` allows"},
	}
	mirrorTargets = []specField{
		{flag: "to-device", path: "to.device", usage: "send the copies to `DEVICE`"},
		{flag: "to-peer", path: "to.peer", kind: api.KindPeer, usage: "send the copies to the Peer `NAME`, through its Tunnel"},
	}
)

var mirrorFields = append(append([]specField{
	{flag: "direction", path: "direction", values: api.MirrorDirections, usage: "`DIRECTION` of the packets: in, out, both (default). For a Service or rule, in means from clients"},
	{flag: "source", path: "match.source", form: formWords, usage: "source `ADDRESS`, prefix or range; may be repeated"},
	{flag: "destination", path: "match.destination", form: formWords, usage: "destination `ADDRESS`, prefix or range; may be repeated"},
	{flag: "protocol", path: "match.protocol", form: formWords, usage: "their `PROTOCOL`, by name or number; may be repeated", values: api.Protocols},
	{flag: "port", path: "match.ports", form: formWords, usage: "destination `PORT`, a range such as 8000-8100, or a name such as ssh; may be repeated"},
	{flag: "source-port", path: "match.sourcePorts", form: formWords, usage: "source `PORT` or range; may be repeated"},
	{flag: "snaplen", path: "snaplen", form: formNumber, usage: "cut copies to this number of `BYTES`, 64 to 65535 (default: 0, whole packets)"},
	{flag: "to-netns", path: "to.netns", values: api.Netns, usage: "the `NAMESPACE` of the device: host, switch (default: the namespace of the Interface or Endpoint, otherwise host)"},
	{flag: "vni", path: "to.vni", form: formNumber, usage: "the VNI of the copies, a `NUMBER` that no Tunnel has"},
}, mirrorSources...), mirrorTargets...)

func completeMirror(_ string, spec map[string]any) error {
	switch to, _ := spec["to"].(map[string]any); {
	case spec["source"] == nil:
		return command.Usagef("the source is missing; set --interface, --endpoint, --service or --rule")
	case to["device"] == nil && to["peer"] == nil:
		return command.Usagef("the target is missing; set --to-device DEVICE, or --to-peer PEER and --vni NUMBER")
	case to["peer"] != nil && to["vni"] == nil:
		return command.Usagef("the VNI of the copies is missing; set --vni NUMBER")
	}
	return nil
}

// adjustMirror removes the source or target that another one replaces.
func adjustMirror(_ *command.App, spec map[string]any, given *pflag.FlagSet) error {
	for _, choice := range [][]specField{mirrorSources, mirrorTargets} {
		chosen := ""
		for _, f := range choice {
			if !given.Changed(f.flag) || find(spec, strings.Split(f.path, ".")) == nil {
				continue
			}
			if chosen != "" {
				return command.Usagef("--%s and --%s cannot be combined: a Mirror has one source and one target", chosen, f.flag)
			}
			chosen = f.flag
		}
		for _, f := range choice {
			if chosen != "" && f.flag != chosen {
				removePath(spec, strings.Split(f.path, "."))
			}
		}
		switch chosen {
		case "to-device":
			removeUnless(spec, given, "to.vni", "vni")
		case "to-peer":
			removeUnless(spec, given, "to.netns", "to-netns")
		}
	}
	return nil
}

// removeUnless removes the field at a path unless its flag is given.
func removeUnless(spec map[string]any, given *pflag.FlagSet, path, flag string) {
	if !given.Changed(flag) {
		removePath(spec, strings.Split(path, "."))
	}
}

const mirrorSchema = `kind: Mirror
name: watch-web               # a-z, 0-9 and - . / : inside; unique among Mirrors
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  source:                     # exactly one of interface, endpoint, service and rule
    interface: eth0           # the packets on its device
  direction: both             # default; in: arriving, out: leaving
  match:                      # absent: every packet; no groups, at most 16 members in a list
    source: [10.0.0.0/8, 2001:db8::/32] # of the copied packet: reversed in replies
    destination: 198.51.100.10  # a single value needs no list
    protocol: [tcp, udp]
    ports: [80, 8000-8100]    # destination ports, with protocol tcp, udp, sctp
    sourcePorts: 1024-65535
  snaplen: 128                # bytes of each packet, 64 to 65535; default: 0, whole packets
  to:
    device: mon0              # not the device whose packets are copied
    netns: host               # or switch; default: the netns of the source, or host
---
kind: Mirror
name: watch-shop
spec:
  source: {service: web}      # the packets of its connections; in: from clients, out: to them
  to:
    peer: node2               # a Peer with a Tunnel
    vni: 4242                 # by which the Peer recognises copies; no Tunnel has it
---
kind: Mirror
name: watch-pod
spec:
  source: {endpoint: shop/web-1/eth0} # in: from the pod, out: to it
  to: {device: mon1}
---
kind: Mirror
name: watch-ssh
spec:
  source: {rule: ssh}         # the packets of the connections that the FirewallRule allows
  to: {device: mon0}
`

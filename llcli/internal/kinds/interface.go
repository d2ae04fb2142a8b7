// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"context"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// interfaceFlags are the flags for an InterfaceSpec.
type interfaceFlags struct{ api.InterfaceSpec }

func (f *interfaceFlags) Bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Device, "device", "", "the Linux `DEVICE` that the data plane attaches to (default of add: NAME, without --address)")
	flags.StringVar(&f.Address, "address", "", "select the device that has this `ADDRESS`, instead of --device")
	flags.StringVar(&f.Netns, "netns", "", "the `NAMESPACE` that it is in: "+AnyOf(withDefault(api.Netns)))
	flags.StringVar(&f.Role, "role", "", "its `ROLE`: "+AnyOf(withDefault(api.Roles)))
	flags.StringVar(&f.XDP, "xdp", "", "the `MODE` of XDP: "+AnyOf(withDefault(api.XDPModes)))
	for flag, values := range map[string][]string{
		"device": nil, "address": nil, "netns": api.Netns, "role": api.Roles, "xdp": api.XDPModes,
	} {
		command.Must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
	}
}

// Spec uses the name as the device, unless a device or an address is given.
func (f *interfaceFlags) Spec(name string) (any, error) {
	spec := f.InterfaceSpec
	if spec.Address == "" {
		spec.Device = cmp.Or(spec.Device, name)
	}
	return spec, nil
}

func (f *interfaceFlags) Paths() []command.FlagPath {
	return []command.FlagPath{{Flag: "device", Path: "device"}, {Flag: "address", Path: "address"}, {Flag: "netns", Path: "netns"}, {Flag: "role", Path: "role"}, {Flag: "xdp", Path: "xdp"}}
}

func (f *interfaceFlags) Merge(spec map[string]any, given *pflag.FlagSet) error {
	said := map[string]any{}
	for name, value := range map[string]string{"device": f.Device, "address": f.Address, "netns": f.Netns, "role": f.Role, "xdp": f.XDP} {
		if given.Changed(name) {
			said[name] = value
		}
	}
	for name, other := range map[string]string{"device": "address", "address": "device"} {
		if !given.Changed(name) {
			continue
		}
		if said[name] == "" {
			return command.Usagef("--%s: which %s?", name, name)
		}
		delete(spec, other)
	}
	return MergeFields(spec, said)
}

// interfaceDevice returns the device: if it is selected by its address, the device that has the
// address.
func interfaceDevice(spec *api.InterfaceSpec, status *api.InterfaceStatus) string {
	if spec.Address == "" {
		return spec.Device
	}
	return cmp.Or(status.Device, "of "+spec.Address)
}

func interfaceCells(o *api.Object, wide bool) []output.Cell {
	var spec api.InterfaceSpec
	var status api.InterfaceStatus
	Decode(o, &spec, &status)
	cells := []output.Cell{
		{Text: interfaceDevice(&spec, &status)}, {Text: cmp.Or(spec.Netns, api.Netns[0])}, {Text: cmp.Or(spec.Role, api.Roles[0])},
		{Text: cmp.Or(status.Link, "-")}, {Text: cmp.Or(spec.XDP, api.XDPModes[0])},
	}
	if wide {
		cells = append(cells,
			output.Cell{Text: output.Number(status.Index)}, output.Cell{Text: cmp.Or(status.MAC, "-")}, output.Cell{Text: output.Number(status.MTU)},
			output.Cell{Text: output.Join(status.Addresses)}, output.Cell{Text: output.Join(status.Hooks)})
	}
	return cells
}

var interfaceKind = Kind{
	Name:    api.KindInterface,
	Words:   []string{"interface", "interfaces", "if", "iface"},
	Meaning: "a Linux device that the data plane attaches to",
	Columns: []output.Column{
		{Title: "DEVICE"}, {Title: "NETNS"}, {Title: "ROLE"}, {Title: "LINK", Optional: 1}, {Title: "XDP", Optional: 1},
	},
	Wide: []output.Column{
		{Title: "INDEX", Right: true, Optional: 2}, {Title: "MAC", Optional: 5}, {Title: "MTU", Right: true, Optional: 4},
		{Title: "ADDRESSES", Flexible: true, Optional: 3}, {Title: "HOOKS", Flexible: true, Optional: 3},
	},
	Cells:    interfaceCells,
	Spec:     func() any { return &api.InterfaceSpec{} },
	Schema:   fillSchema(interfaceSchema),
	Topics:   api.Topics,
	Counters: DeviceCounters,
	describe: showInterface,
	hint: func(o *api.Object) string {
		var spec api.InterfaceSpec
		Decode(o, &spec, &struct{}{})
		return cmp.Or(spec.Role, api.Roles[0]) + " " + cmp.Or(spec.Device, spec.Address)
	},
	flags:      func() SpecFlags { return &interfaceFlags{} },
	AddExample: "  llcli interface add eth0\n  llcli interface add uplink --device enp3s0",
	SetExample: "  llcli interface set eth0 --xdp native",
}

const interfaceSchema = `kind: Interface
name: eth0                    # a-z, 0-9 and - . / : inside; unique among Interfaces
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  device: eth0                # the Linux device that the data plane attaches to
  netns: host                 # host, or switch: the switch's namespace
  # uplink: towards the rest of the network, or towards clients; the WAN and the LAN of a gateway
  # port: leads to one pod, VM or server
  # host: the host's own end of its link to the switch
  # tunnel: a device of a tunnel; devices of Tunnels need no Interface
  role: uplink                # or {roles}
  xdp: off                    # or {xdpModes}
---
kind: Interface
name: uplink
spec:
  address: 192.0.2.7          # instead of device: selects the device with this address
`

func showInterface(ctx context.Context, a *command.App, d command.Daemon, o *api.Object) {
	var spec api.InterfaceSpec
	var status api.InterfaceStatus
	Decode(o, &spec, &status)
	a.Field("Device", interfaceDevice(&spec, &status)+" in namespace "+cmp.Or(spec.Netns, api.Netns[0]))
	a.Field("Chosen by", spec.Address)
	a.Field("Role", cmp.Or(spec.Role, api.Roles[0]))
	a.Field("XDP", cmp.Or(spec.XDP, api.XDPModes[0]))
	a.Field("Index", output.Number(status.Index))
	a.Field("MAC", status.MAC)
	a.Field("MTU", output.Number(status.MTU))
	a.Lines("Addresses", status.Addresses)
	a.Lines("Hooks", status.Hooks)
	showTraffic(ctx, a, d, o)
}

// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// kernelView is one kernel table.
type kernelView struct {
	words   []string // as on a command line; the first is the API's word
	meaning string
	columns []output.Column
	wide    []output.Column
	cells   func(e *api.NetworkEntry, wide bool) []output.Cell
	objects bool // some belong to objects
}

var kernelViews = []kernelView{
	{
		words: []string{api.NetworkBridges, "bridge", "br"}, meaning: "bridges, with their ports",
		columns: []output.Column{
			{Title: "DEVICE"}, {Title: "STATE"}, {Title: "PORTS", Flexible: true}, {Title: "VLANS", Optional: 3}, {Title: "ADDRESSES", Flexible: true, Optional: 2},
		},
		wide:  []output.Column{{Title: "MAC", Optional: 5}, {Title: "MTU", Right: true, Optional: 4}},
		cells: kernelBridge, objects: true,
	},
	{
		words: []string{api.NetworkFDB}, meaning: "MAC addresses, and the bridge port of each",
		columns: []output.Column{{Title: "MAC"}, {Title: "VLAN", Right: true}, {Title: "BRIDGE"}, {Title: "PORT"}, {Title: "STATE"}},
		cells: func(e *api.NetworkEntry, _ bool) []output.Cell {
			return []output.Cell{{Text: e.MAC}, {Text: output.Number(int(e.VLAN))}, {Text: e.Bridge}, {Text: e.Device}, {Text: e.State}}
		},
	},
	{
		words: []string{api.NetworkNeighbors, "neighbours", "neighbor", "neighbour", "neigh"}, meaning: "ARP and neighbour discovery entries",
		columns: []output.Column{{Title: "ADDRESS"}, {Title: "DEVICE"}, {Title: "MAC"}, {Title: "STATE"}},
		cells: func(e *api.NetworkEntry, _ bool) []output.Cell {
			return []output.Cell{{Text: e.Address}, {Text: e.Device}, {Text: cmp.Or(e.MAC, "-")}, {Text: e.State}}
		},
	},
	{
		words: []string{api.NetworkRoutes, "route"}, meaning: "entries of the main routing table",
		columns: []output.Column{{Title: "PREFIX"}, {Title: "VIA", Flexible: true}, {Title: "METRIC", Right: true, Optional: 2}},
		wide:    []output.Column{{Title: "SOURCE", Optional: 4}, {Title: "MTU", Right: true, Optional: 4}},
		cells:   kernelRoute, objects: true,
	},
}

// kernelCommand shows the kernel's state, including other programs' entries.
func kernelCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kernel",
		Short: "Show the kernel's bridges, routes, neighbours and FDB",
		Long: `Show tables of the kernel, in host and switch, including the entries of other programs.
ORIGIN is the program that created an entry, OBJECT the object to which it belongs.

llcli get shows the objects: llcli get bridges, llcli get routes.`,
		Example: "  llcli kernel bridges\n  llcli kernel routes --netns switch -o wide\n  llcli kernel neighbors --watch",
		Args:    command.NoCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for i := range kernelViews {
		cmd.AddCommand(kernelViewCommand(a, &kernelViews[i]))
	}
	return cmd
}

func kernelViewCommand(a *command.App, v *kernelView) *cobra.Command {
	var netns string
	cmd := &cobra.Command{
		Use:     v.words[0],
		Aliases: v.words[1:],
		Short:   "Show the kernel's " + v.meaning,
		Args:    command.NoWords("choose with --netns"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, _ []string) error {
			return a.Repeat(ctx, func() error { return getView(ctx, a, d, v, netns) })
		}),
	}
	cmd.Flags().StringVar(&netns, "netns", "", "only this network `NAMESPACE`: "+kinds.AnyOf(api.Netns))
	command.Must(cmd.RegisterFlagCompletionFunc("netns", cobra.FixedCompletions(api.Netns, cobra.ShellCompDirectiveNoFileComp)))
	a.BindWatch(cmd)
	return cmd
}

// findView returns the view that a word means, or nil if there is none.
func findView(word string) *kernelView {
	i := slices.IndexFunc(kernelViews, func(v kernelView) bool { return slices.Contains(v.words, strings.ToLower(word)) })
	if i < 0 {
		return nil
	}
	return &kernelViews[i]
}

func kernelBridge(e *api.NetworkEntry, wide bool) []output.Cell {
	state := "down"
	if e.Up {
		state = "up"
	}
	ports := make([]string, len(e.Ports))
	for i, p := range e.Ports {
		ports[i] = p.Device
		if wide && e.VLANFiltering {
			ports[i] += " " + portVLANs(&p)
		}
	}
	cells := []output.Cell{{Text: e.Device}, {Text: state}, {Text: output.Join(ports)}, {Text: output.YesNo(e.VLANFiltering)}, {Text: output.Join(e.Addresses)}}
	if wide {
		cells = append(cells, output.Cell{Text: e.MAC}, output.Cell{Text: output.Number(e.MTU)})
	}
	return cells
}

// portVLANs writes the VLANs of a port: (10 untagged, 200-299).
func portVLANs(p *api.NetworkPort) string {
	var parts []string
	for _, v := range p.Untagged {
		parts = append(parts, v+" untagged")
	}
	parts = append(parts, p.VLANs...)
	if len(parts) == 0 {
		return "(no VLAN)"
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

func kernelRoute(e *api.NetworkEntry, wide bool) []output.Cell {
	hops := make([]string, len(e.NextHops))
	for i, h := range e.NextHops {
		var parts []string
		if h.Via != "" {
			parts = append(parts, h.Via)
		}
		if h.Device != "" {
			parts = append(parts, "dev "+h.Device)
		}
		if len(e.NextHops) > 1 {
			parts = append(parts, "weight "+strconv.Itoa(h.Weight))
		}
		hops[i] = strings.Join(parts, " ")
	}
	way := strings.Join(hops, ", ")
	if e.Type != "unicast" {
		way = e.Type
	}
	cells := []output.Cell{{Text: e.Prefix}, {Text: way}, {Text: output.Number(int(e.Metric))}}
	if wide {
		cells = append(cells, output.Cell{Text: cmp.Or(e.Source, "-")}, output.Cell{Text: output.Number(e.MTU)})
	}
	return cells
}

// getView shows a view page by page, as it arrives: there may be very many routes.
func getView(ctx context.Context, a *command.App, d command.Daemon, v *kernelView, netns string) error {
	columns := v.columns
	wide := a.Format == output.FormatWide
	if wide {
		columns = slices.Concat(columns, v.wide)
	}
	columns = slices.Concat(columns, []output.Column{{Title: "NETNS", Optional: 1}, {Title: "ORIGIN", Optional: 3}})
	if v.objects {
		columns = append(columns, output.Column{Title: "OBJECT", Flexible: true, Optional: 2})
	}
	params := api.NetworkListParams{What: v.words[0], Netns: netns}
	next := func(after string) ([]api.NetworkEntry, string, error) {
		var page api.NetworkListResult
		params.Continue = after
		err := d.Call(ctx, api.MethodNetworkList, params, &page)
		return page.Items, page.Continue, err
	}
	what := v.words[0]
	if what == api.NetworkFDB {
		what = "FDB entries"
	}
	return output.ShowPages(a.Printer, kinds.PluralOf(what), a.Table(columns...), next, func(e *api.NetworkEntry) []output.Cell {
		cells := append(v.cells(e, wide), output.Cell{Text: e.Netns}, output.Cell{Text: e.Origin})
		if v.objects {
			cells = append(cells, output.Cell{Text: cmp.Or(e.Object, "-")})
		}
		return cells
	})
}

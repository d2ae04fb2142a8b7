// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

// kernelView is one table of the kernel.
type kernelView struct {
	words   []string // as on a command line; the first is the word of the API
	meaning string
	columns []column
	wide    []column
	cells   func(e *api.NetworkEntry, wide bool) []cell
	objects bool // some belong to objects
}

var kernelViews = []kernelView{
	{
		words: []string{api.NetworkBridges, "bridge", "br"}, meaning: "bridges, with their ports",
		columns: []column{
			{title: "DEVICE"}, {title: "STATE"}, {title: "PORTS", flexible: true}, {title: "VLANS", optional: 3}, {title: "ADDRESSES", flexible: true, optional: 2},
		},
		wide:  []column{{title: "MAC", optional: 5}, {title: "MTU", right: true, optional: 4}},
		cells: kernelBridge, objects: true,
	},
	{
		words: []string{api.NetworkFDB}, meaning: "MAC addresses, and the bridge port of each",
		columns: []column{{title: "MAC"}, {title: "VLAN", right: true}, {title: "BRIDGE"}, {title: "PORT"}, {title: "STATE"}},
		cells: func(e *api.NetworkEntry, _ bool) []cell {
			return []cell{{text: e.MAC}, {text: number(int(e.VLAN))}, {text: e.Bridge}, {text: e.Device}, {text: e.State}}
		},
	},
	{
		words: []string{api.NetworkNeighbors, "neighbours", "neighbor", "neighbour", "neigh"}, meaning: "ARP and neighbour discovery entries",
		columns: []column{{title: "ADDRESS"}, {title: "DEVICE"}, {title: "MAC"}, {title: "STATE"}},
		cells: func(e *api.NetworkEntry, _ bool) []cell {
			return []cell{{text: e.Address}, {text: e.Device}, {text: or(e.MAC, "-")}, {text: e.State}}
		},
	},
	{
		words: []string{api.NetworkRoutes, "route"}, meaning: "entries of the main routing table",
		columns: []column{{title: "PREFIX"}, {title: "VIA", flexible: true}, {title: "METRIC", right: true, optional: 2}},
		wide:    []column{{title: "SOURCE", optional: 4}, {title: "MTU", right: true, optional: 4}},
		cells:   kernelRoute, objects: true,
	},
}

// kernelCommand shows the kernel's state, including other programs' entries.
func (a *app) kernelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kernel",
		Short: "Show the kernel's bridges, routes, neighbours and FDB",
		Long: `Show tables of the kernel, of host and switch, including what other programs put there.
ORIGIN says who did, OBJECT to which object it belongs.

The objects are shown by llcli get: llcli get bridges, llcli get routes.`,
		Example: "  llcli kernel bridges\n  llcli kernel routes --netns switch -o wide\n  llcli kernel neighbors --watch",
		Args:    noCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for i := range kernelViews {
		cmd.AddCommand(a.kernelViewCommand(&kernelViews[i]))
	}
	return cmd
}

func (a *app) kernelViewCommand(v *kernelView) *cobra.Command {
	var netns string
	cmd := &cobra.Command{
		Use:     v.words[0],
		Aliases: v.words[1:],
		Short:   "Show the kernel's " + v.meaning,
		Args:    noWords("choose with --netns"),
		RunE: a.run(func(ctx context.Context, d Daemon, _ []string) error {
			return a.repeat(ctx, func() error { return a.getView(ctx, d, v, netns) })
		}),
	}
	cmd.Flags().StringVar(&netns, "netns", "", "only this network `NAMESPACE`: host or switch")
	must(cmd.RegisterFlagCompletionFunc("netns", cobra.FixedCompletions(netnsValues, cobra.ShellCompDirectiveNoFileComp)))
	a.bindWatch(cmd)
	return cmd
}

// findView returns the view that a word means; nil: none.
func findView(word string) *kernelView {
	i := slices.IndexFunc(kernelViews, func(v kernelView) bool { return slices.Contains(v.words, strings.ToLower(word)) })
	if i < 0 {
		return nil
	}
	return &kernelViews[i]
}

func kernelBridge(e *api.NetworkEntry, wide bool) []cell {
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
	cells := []cell{{text: e.Device}, {text: state}, {text: join(ports)}, {text: yesNo(e.VLANFiltering)}, {text: join(e.Addresses)}}
	if wide {
		cells = append(cells, cell{text: e.MAC}, cell{text: number(e.MTU)})
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

func kernelRoute(e *api.NetworkEntry, wide bool) []cell {
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
	cells := []cell{{text: e.Prefix}, {text: way}, {text: number(int(e.Metric))}}
	if wide {
		cells = append(cells, cell{text: or(e.Source, "-")}, cell{text: number(e.MTU)})
	}
	return cells
}

// getView shows a view page by page, as it arrives: there may be very many routes.
func (a *app) getView(ctx context.Context, d Daemon, v *kernelView, netns string) error {
	columns := v.columns
	wide := a.output == formatWide
	if wide {
		columns = slices.Concat(columns, v.wide)
	}
	columns = slices.Concat(columns, []column{{title: "NETNS", optional: 1}, {title: "ORIGIN", optional: 3}})
	if v.objects {
		columns = append(columns, column{title: "OBJECT", flexible: true, optional: 2})
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
	return showPages(a, what, a.table(columns...), next, func(e *api.NetworkEntry) []cell {
		cells := append(v.cells(e, wide), cell{text: e.Netns}, cell{text: e.Origin})
		if v.objects {
			cells = append(cells, cell{text: or(e.Object, "-")})
		}
		return cells
	})
}

// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// bindFilter adds the flags that select connections.
func bindFilter(a *command.App, cmd *cobra.Command, f *api.ConnectionFilter) {
	flags := cmd.Flags()
	flags.StringVar(&f.Source, "source", "", "of this `CLIENT`: an address, prefix or address:port")
	flags.StringVar(&f.Destination, "destination", "", "to this `ADDRESS`, prefix or address:port, as the client sees it")
	flags.StringVar(&f.Protocol, "protocol", "", "of this `PROTOCOL`: "+kinds.AnyOf(api.ConnectionProtocols))
	flags.StringVar(&f.State, "state", "", "in this `STATE`, such as established")
	flags.StringVar(&f.Service, "service", "", "of the Service of this `NAME`, or of NAMESPACE/NAME of Kubernetes: all its ports and addresses")
	flags.StringVar(&f.Backend, "backend", "", "to this `BACKEND`: an address or address:port")
	flags.StringVar(&f.Endpoint, "endpoint", "", "of the Endpoint of this `NAME`, or of a pod NAMESPACE/NAME")
	fixed := func(flag string, values ...string) {
		command.Must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
	}
	fixed("source")
	fixed("destination")
	fixed("protocol", api.ConnectionProtocols...)
	fixed("state", "syn-sent", "syn-received", "established", "fin-wait", "time-wait", "closed", "unreplied", "one-way", "replied")
	command.Must(cmd.RegisterFlagCompletionFunc("endpoint", kinds.CompleteNames(a, api.KindEndpoint)))
	command.Must(cmd.RegisterFlagCompletionFunc("service", kinds.CompleteNames(a, api.KindService)))
	command.Must(cmd.RegisterFlagCompletionFunc("backend", kinds.CompleteBackends(a, func([]string) string { return f.Service })))
}

func connectionsCommand(a *command.App) *cobra.Command {
	cmd := connectionsList(a)
	cmd.Use, cmd.Aliases = "connections", []string{"conns"}
	cmd.AddCommand(connectionsList(a), flushCommand(a))
	return cmd
}

// connectionsList is the verb list of connections, which may be omitted.
func connectionsList(a *command.App) *cobra.Command {
	var filter api.ConnectionFilter
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show tracked connections",
		Long: `Show the connections that the data plane tracks: all of them, or those that the flags select.
TO is the translated destination: the backend of a Service, or the target of a port forward.
AS is the translated source, as the server sees it. Both are - without translation. SENT and
RECEIVED count the bytes of whole frames from and to the client.

PATH is fast for packets on the fast path (redirected from port to port after one lookup), and
slow for packets through the kernel's stack. With -o wide, FORTH and BACK show the output
device of each direction, or the slow-path reason, RULE the firewall rule that allows the
connection, or that denies it since the rules changed, and POLICIES what decides about it at
present: rules of the Policies of its Endpoints.`,
		Example: "  llcli connections --service web --state established\n  llcli connections --source 203.0.113.0/24 -o wide\n  llcli connections flush --backend 10.0.1.2",
		Args:    command.NoWords("choose connections with flags"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, _ []string) error {
			if limit < 0 {
				return command.Usagef("--limit %d: want 0 (all) or more", limit)
			}
			return a.Repeat(ctx, func() error { return showConnections(ctx, a, d, filter, limit) })
		}),
	}
	bindFilter(a, cmd, &filter)
	a.BindWatch(cmd)
	cmd.Flags().IntVar(&limit, "limit", 0, "show at most `N`, and report if there are more; 0: all")
	return cmd
}

// eachFilter returns a filter for each of the Services and Endpoints to which the names in f refer.
func eachFilter(ctx context.Context, a *command.App, d command.Daemon, f api.ConnectionFilter) ([]api.ConnectionFilter, error) {
	services, endpoints := []string{""}, []string{""}
	var err error
	if f.Service != "" {
		services, err = kinds.Expand(ctx, a, d, api.KindService, f.Service)
	}
	if f.Endpoint != "" && err == nil {
		endpoints, err = kinds.Expand(ctx, a, d, api.KindEndpoint, f.Endpoint)
	}
	var filters []api.ConnectionFilter
	for _, service := range services {
		for _, endpoint := range endpoints {
			one := f
			one.Service, one.Endpoint = service, endpoint
			filters = append(filters, one)
		}
	}
	return filters, err
}

// checkService returns an error if filter, from which filters were made, names a Service that does
// not exist. It is called only if no connection matches: the connections of a Service that was just
// deleted still have its name for a moment.
func checkService(ctx context.Context, a *command.App, d command.Daemon, filter api.ConnectionFilter, filters []api.ConnectionFilter) error {
	if filter.Service == "" || len(filters) == 0 || filters[0].Service != filter.Service {
		return nil // the names of existing objects, or none
	}
	_, err := a.Object(ctx, d, api.KindService, filter.Service)
	return err
}

// showConnections shows connections page by page, as they arrive: there may be millions.
func showConnections(ctx context.Context, a *command.App, d command.Daemon, filter api.ConnectionFilter, limit int) error {
	filters, err := eachFilter(ctx, a, d, filter)
	if err != nil {
		return err
	}
	w := connectionWriter{app: a, table: connectionTable(a), list: a.NewList(), limit: limit}
	for i := 0; i < len(filters) && !w.more; i++ {
		if err := w.addAll(ctx, d, api.ConnectionsListParams{Filter: filters[i], Policies: a.Format != output.FormatTable}); err != nil {
			return err
		}
	}
	if w.shown == 0 {
		if err := checkService(ctx, a, d, filter, filters); err != nil {
			return err
		}
	}
	switch {
	case !a.IsTable():
		w.list.End()
	case w.shown == 0:
		a.NoneFound("connections")
	}
	if w.more {
		match := "match"
		if w.shown == 1 {
			match = "matches"
		}
		a.Note("more than %s %s; use --limit 0 to show all", output.Plural(uint64(w.shown), "connection"), match)
	}
	return nil
}

// connectionWriter writes connections as they arrive.
type connectionWriter struct {
	app   *command.App
	table *output.Table
	list  *output.ListWriter
	limit int // 0: no limit
	shown int
	more  bool // there are more connections than limit
}

// addAll writes the connections of one filter.
func (w *connectionWriter) addAll(ctx context.Context, d command.Daemon, params api.ConnectionsListParams) error {
	for {
		var page api.ConnectionsListResult
		if err := d.Call(ctx, api.MethodConnectionsList, params, &page); err != nil {
			return err
		}
		if w.limit > 0 && w.shown+len(page.Items) > w.limit {
			page.Items, w.more = page.Items[:w.limit-w.shown], true
		}
		if err := w.add(page.Items); err != nil {
			return err
		}
		if page.Continue == "" || w.more {
			return nil
		}
		if w.limit > 0 && w.shown >= w.limit {
			w.more = true
			return nil
		}
		if err := w.app.Flush(); err != nil {
			return err
		}
		params.Continue = page.Continue
	}
}

func (w *connectionWriter) add(items []api.Connection) error {
	w.shown += len(items)
	for i := range items {
		if w.app.IsTable() {
			w.table.Add(connectionRow(w.app, &items[i])...)
		} else if err := w.list.Add(items[i]); err != nil {
			return err
		}
	}
	if w.app.IsTable() && w.shown > 0 {
		w.table.Flush()
	}
	return nil
}

func connectionTable(a *command.App) *output.Table {
	columns := []output.Column{
		{Title: "PROTO"}, {Title: "SOURCE"}, {Title: "DESTINATION"}, {Title: "TO"}, {Title: "AS", Optional: 1}, {Title: "SERVICE", Flexible: true, Optional: 2},
		{Title: "STATE"}, {Title: "PATH", Optional: 6}, {Title: "IDLE", Right: true, Optional: 3},
		{Title: "SENT", Right: true, Optional: 5}, {Title: "RECEIVED", Right: true, Optional: 4},
	}
	if a.Format == output.FormatWide {
		columns = append(columns,
			output.Column{Title: "FORTH", Optional: 8}, output.Column{Title: "BACK", Optional: 8},
			output.Column{Title: "NAT", Optional: 7}, output.Column{Title: "RULE", Flexible: true, Optional: 7}, output.Column{Title: "POLICIES", Flexible: true, Optional: 7}, output.Column{Title: "AGE", Right: true, Optional: 9},
			output.Column{Title: "EXPIRES", Right: true, Optional: 9}, output.Column{Title: "PACKETS SENT", Right: true, Optional: 9},
			output.Column{Title: "PACKETS RECEIVED", Right: true, Optional: 9})
	}
	return a.Table(columns...)
}

// natText returns how a connection is translated, and by which objects.
func natText(c *api.Connection) string {
	if len(c.TranslatedBy) == 0 {
		return cmp.Or(c.NAT, "-")
	}
	return c.NAT + " (" + strings.Join(c.TranslatedBy, ", ") + ")"
}

// translatedTo returns the new destination of the client's packets.
func translatedTo(c *api.Connection) string {
	switch {
	case c.Backend != "":
		return c.Backend
	case strings.Contains(c.NAT, "dnat"):
		return c.Reply.Source
	default:
		return "-"
	}
}

// translatedAs returns the source that the server sees in place of the client's.
func translatedAs(c *api.Connection) string {
	if strings.Contains(c.NAT, "snat") {
		return c.Reply.Destination
	}
	return "-"
}

func connectionRow(a *command.App, c *api.Connection) []output.Cell {
	color := ""
	if c.State == "established" || c.State == "replied" {
		color = output.Green
	}
	row := []output.Cell{
		{Text: c.Protocol}, {Text: c.Original.Source + podOf(c.From)}, {Text: c.Original.Destination + podOf(c.To)}, {Text: translatedTo(c)}, {Text: translatedAs(c)}, {Text: cmp.Or(c.Service, "-")},
		{Text: c.State, Color: color}, {Text: c.Path}, {Text: output.Short(c.Idle)}, {Text: output.Size(c.Sent.Bytes)}, {Text: output.Size(c.Received.Bytes)},
	}
	if a.Format == output.FormatWide {
		row = append(row,
			output.Cell{Text: wayText(&c.Forth)}, output.Cell{Text: wayText(&c.Back)},
			output.Cell{Text: natText(c)}, output.Cell{Text: cmp.Or(c.Rule, "-")}, output.Cell{Text: output.Clean(policiesText(c))}, output.Cell{Text: output.Short(c.Age)}, output.Cell{Text: output.Short(c.Expires)},
			output.Cell{Text: strconv.FormatUint(c.Sent.Packets, 10)}, output.Cell{Text: strconv.FormatUint(c.Received.Packets, 10)})
	}
	return row
}

// policiesText returns the rules of Policies that decide about a connection.
func policiesText(c *api.Connection) string {
	var texts []string
	for i := range c.Policies {
		p := &c.Policies[i]
		texts = append(texts, p.Direction+" "+p.Policy+output.Prefixed(" rule ", p.Rule))
	}
	return output.Join(texts)
}

// podOf names the pod of one side of a connection, after its address.
func podOf(side *api.ConnectionSide) string {
	switch {
	case side == nil:
		return ""
	case side.Namespace != "" && side.Pod != "":
		return " (" + side.Namespace + "/" + side.Pod + ")"
	default:
		return " (" + cmp.Or(side.Pod, side.Endpoint) + ")"
	}
}

// wayText returns the outgoing device of a direction, or the slow-path reason.
func wayText(w *api.Way) string {
	switch {
	case w.Why != "":
		return w.Why
	case w.Peer != "":
		return w.Tunnel + " to " + w.Peer
	case w.VLAN != 0:
		return w.Device + "." + strconv.Itoa(int(w.VLAN))
	default:
		return cmp.Or(w.Device, "-")
	}
}

func flushCommand(a *command.App) *cobra.Command {
	var filter api.ConnectionFilter
	cmd := &cobra.Command{
		Use:   "flush {--all | FILTER}",
		Short: "Delete tracked connections",
		Long: `Delete the connections that the flags select. Their next packet opens a new connection. A TCP
connection that a Service translated therefore ends, even if both ends still have it.`,
		Example: "  llcli connections flush --service web\n  llcli connections flush --all",
		Args:    command.NoWords("choose connections with flags"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, _ []string) error {
			if filter == (api.ConnectionFilter{}) {
				return command.Usagef("which connections? choose them with flags, or all with --all")
			}
			if filter.All && filter != (api.ConnectionFilter{All: true}) {
				return command.Usagef("--all cannot be combined with other flags")
			}
			filters, err := eachFilter(ctx, a, d, filter)
			if err != nil {
				return err
			}
			var result api.ConnectionsFlushResult
			for _, f := range filters {
				var part api.ConnectionsFlushResult
				if err := d.Change(ctx, api.MethodConnectionsFlush, "", 0, api.ConnectionsFlushParams{Filter: f}, &part); err != nil {
					return err
				}
				result.Flushed += part.Flushed
			}
			if result.Flushed == 0 {
				if err := checkService(ctx, a, d, filter, filters); err != nil {
					return err
				}
			}
			if !a.IsTable() {
				return a.PrintValue(result)
			}
			a.Printf("%s flushed\n", output.Plural(result.Flushed, "connection"))
			return nil
		}),
	}
	bindFilter(a, cmd, &filter)
	cmd.Flags().BoolVar(&filter.All, "all", false, "flush all connections")
	return cmd
}

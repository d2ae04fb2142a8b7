// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

// bindFilter adds the flags that choose connections.
func (a *app) bindFilter(cmd *cobra.Command, f *api.ConnectionFilter) {
	flags := cmd.Flags()
	flags.StringVar(&f.Source, "source", "", "of this `CLIENT`: an address, prefix or address:port")
	flags.StringVar(&f.Destination, "destination", "", "to this `ADDRESS`, prefix or address:port, as the client knows it")
	flags.StringVar(&f.Protocol, "protocol", "", "of this `PROTOCOL`: tcp, udp, sctp, icmp or icmpv6")
	flags.StringVar(&f.State, "state", "", "in this `STATE`, such as established")
	flags.StringVar(&f.Service, "service", "", "of the Service of this `NAME`, or of NAMESPACE/NAME of Kubernetes: all its ports and addresses")
	flags.StringVar(&f.Backend, "backend", "", "to this `BACKEND`: an address or address:port")
	flags.StringVar(&f.Endpoint, "endpoint", "", "of the Endpoint of this `NAME`, or of a pod NAMESPACE/NAME")
	fixed := func(flag string, values ...string) {
		must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
	}
	fixed("source")
	fixed("destination")
	fixed("protocol", "tcp", "udp", "sctp", "icmp", "icmpv6")
	fixed("state", "syn-sent", "syn-received", "established", "fin-wait", "time-wait", "closed", "unreplied", "replied")
	must(cmd.RegisterFlagCompletionFunc("endpoint", a.completeNames(api.KindEndpoint)))
	must(cmd.RegisterFlagCompletionFunc("service", a.completeNames(api.KindService)))
	must(cmd.RegisterFlagCompletionFunc("backend", a.completeBackends(func([]string) string { return f.Service })))
}

func (a *app) connectionsCommand() *cobra.Command {
	cmd := a.connectionsList()
	cmd.Use, cmd.Aliases = "connections", []string{"conns"}
	cmd.AddCommand(a.connectionsList(), a.flushCommand())
	return cmd
}

// connectionsList is the verb of connections that may be left out.
func (a *app) connectionsList() *cobra.Command {
	var filter api.ConnectionFilter
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show tracked connections",
		Long: `Show the connections that the data plane tracks: all of them, or those that the
flags choose. TO is where packets for DESTINATION are sent: the backend of a Service, or the
address of a port forward. AS is the source that the server sees in place of SOURCE. Both are
- without translation. SENT and RECEIVED count the bytes of whole frames from and to the
client.

PATH is tracked for packets on the fast path, from port to port in one look-up, and slow
for packets through the kernel's stack. With -o wide, FORTH and BACK show for each direction
the device by which packets leave, or the slow-path reason.`,
		Example: "  llcli connections --service web --state established\n  llcli connections --source 203.0.113.0/24 -o wide\n  llcli connections flush --backend 10.0.1.2",
		Args:    noWords("choose connections with flags"),
		RunE: a.run(func(ctx context.Context, d Daemon, _ []string) error {
			if limit < 0 {
				return usagef("--limit %d: want 0 (all) or more", limit)
			}
			return a.repeat(ctx, func() error { return a.connections(ctx, d, filter, limit) })
		}),
	}
	a.bindFilter(cmd, &filter)
	a.bindWatch(cmd)
	cmd.Flags().IntVar(&limit, "limit", 0, "show at most `N`, and say so if there are more; 0: all")
	return cmd
}

// eachFilter returns a filter for each of the Services and Endpoints that the names in one
// stand for.
func (a *app) eachFilter(ctx context.Context, d Daemon, f api.ConnectionFilter) ([]api.ConnectionFilter, error) {
	services, endpoints := []string{""}, []string{""}
	var err error
	if f.Service != "" {
		services, err = a.objectsOf(ctx, d, f.Service)
	}
	if f.Endpoint != "" && err == nil {
		endpoints, err = a.endpointsOf(ctx, d, f.Endpoint)
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

// connections shows connections page by page, as they arrive: there may be millions.
func (a *app) connections(ctx context.Context, d Daemon, filter api.ConnectionFilter, limit int) error {
	filters, err := a.eachFilter(ctx, d, filter)
	if err != nil {
		return err
	}
	w := connectionWriter{app: a, table: a.connectionTable(), list: listWriter{app: a}, limit: limit}
	for i := 0; i < len(filters) && !w.more; i++ {
		if err := w.addAll(ctx, d, api.ConnectionsListParams{Filter: filters[i]}); err != nil {
			return err
		}
	}
	switch {
	case !a.isTable():
		w.list.end()
	case w.shown == 0:
		a.noneFound("connections")
	}
	if w.more {
		a.note("there are more than %d; --limit 0 shows all", w.shown)
	}
	return nil
}

// connectionWriter writes connections as they arrive.
type connectionWriter struct {
	app   *app
	table *table
	list  listWriter
	limit int // 0: none
	shown int
	more  bool // there are some beyond the limit
}

// addAll writes the connections of one filter.
func (w *connectionWriter) addAll(ctx context.Context, d Daemon, params api.ConnectionsListParams) error {
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
		if err := w.app.out.Flush(); err != nil {
			return err
		}
		params.Continue = page.Continue
	}
}

func (w *connectionWriter) add(items []api.Connection) error {
	w.shown += len(items)
	for i := range items {
		if w.app.isTable() {
			w.table.add(w.app.connectionRow(&items[i])...)
		} else if err := w.list.add(items[i]); err != nil {
			return err
		}
	}
	if w.app.isTable() && w.shown > 0 {
		w.table.flush()
	}
	return nil
}

func (a *app) connectionTable() *table {
	columns := []column{
		{title: "PROTO"}, {title: "SOURCE"}, {title: "DESTINATION"}, {title: "TO"}, {title: "AS", optional: 1}, {title: "SERVICE", flexible: true, optional: 2},
		{title: "STATE"}, {title: "PATH", optional: 6}, {title: "IDLE", right: true, optional: 3},
		{title: "SENT", right: true, optional: 5}, {title: "RECEIVED", right: true, optional: 4},
	}
	if a.output == formatWide {
		columns = append(columns,
			column{title: "FORTH", optional: 8}, column{title: "BACK", optional: 8},
			column{title: "NAT", optional: 7}, column{title: "AGE", right: true, optional: 9},
			column{title: "EXPIRES", right: true, optional: 9}, column{title: "PACKETS SENT", right: true, optional: 9},
			column{title: "PACKETS RECEIVED", right: true, optional: 9})
	}
	return a.table(columns...)
}

// natText is how a connection is translated, and by which objects.
func natText(c *api.Connection) string {
	if len(c.TranslatedBy) == 0 {
		return or(c.NAT, "-")
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

// translatedAs is the source that the server sees in place of the client's.
func translatedAs(c *api.Connection) string {
	if strings.Contains(c.NAT, "snat") {
		return c.Reply.Destination
	}
	return "-"
}

func (a *app) connectionRow(c *api.Connection) []cell {
	color := ""
	if c.State == "established" || c.State == "replied" {
		color = green
	}
	row := []cell{
		{text: c.Protocol}, {text: c.Original.Source + podOf(c.From)}, {text: c.Original.Destination + podOf(c.To)}, {text: translatedTo(c)}, {text: translatedAs(c)}, {text: or(c.Service, "-")},
		{text: c.State, color: color}, {text: c.Path}, {text: short(c.Idle)}, {text: size(c.Sent.Bytes)}, {text: size(c.Received.Bytes)},
	}
	if a.output == formatWide {
		row = append(row,
			cell{text: wayText(&c.Forth)}, cell{text: wayText(&c.Back)},
			cell{text: natText(c)}, cell{text: short(c.Age)}, cell{text: short(c.Expires)},
			cell{text: strconv.FormatUint(c.Sent.Packets, 10)}, cell{text: strconv.FormatUint(c.Received.Packets, 10)})
	}
	return row
}

// podOf names the pod of one side of a connection, behind its address.
func podOf(side *api.ConnectionSide) string {
	switch {
	case side == nil:
		return ""
	case side.Namespace != "" && side.Pod != "":
		return " (" + side.Namespace + "/" + side.Pod + ")"
	default:
		return " (" + or(side.Pod, side.Endpoint) + ")"
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
		return or(w.Device, "-")
	}
}

func (a *app) flushCommand() *cobra.Command {
	var filter api.ConnectionFilter
	cmd := &cobra.Command{
		Use:   "flush {--all | FILTER}",
		Short: "Forget tracked connections",
		Long: `Forget the connections that the flags choose. Their next packet is decided anew:
where the endpoints still keep a TCP connection that a Service translated, it ends.`,
		Example: "  llcli connections flush --service web\n  llcli connections flush --all",
		Args:    noWords("choose connections with flags"),
		RunE: a.run(func(ctx context.Context, d Daemon, _ []string) error {
			if filter == (api.ConnectionFilter{}) {
				return usagef("which connections? choose them with flags, or all with --all")
			}
			if filter.All && filter != (api.ConnectionFilter{All: true}) {
				return usagef("--all and other flags do not go together")
			}
			filters, err := a.eachFilter(ctx, d, filter)
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
			if !a.isTable() {
				return a.printValue(result)
			}
			a.printf("%s flushed\n", plural(result.Flushed, "connection"))
			return nil
		}),
	}
	a.bindFilter(cmd, &filter)
	cmd.Flags().BoolVar(&filter.All, "all", false, "really all connections")
	return cmd
}

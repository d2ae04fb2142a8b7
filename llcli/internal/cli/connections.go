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
	flags.StringVar(&f.Service, "service", "", "of the Service of this `NAME`")
	flags.StringVar(&f.Backend, "backend", "", "to this `BACKEND`: an address or address:port")
	flags.StringVar(&f.Endpoint, "endpoint", "", "of the Endpoint of this `NAME`")
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
	var params api.ConnectionsListParams
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show tracked connections",
		Long: `Show the connections that the data plane tracks: all of them, or those that the
flags choose. SENT and RECEIVED count the bytes of whole frames from and to the
client.

PATH says how their packets go: tracked, from port to port in one look-up, or
slow, through the kernel's stack. With -o wide, FORTH and BACK tell for each
direction which device its packets leave by, or why they are slow.`,
		Example: "  llcli connections --service web --state established\n  llcli connections --source 203.0.113.0/24 -o wide\n  llcli connections flush --backend 10.0.1.2",
		Args:    noWords("choose connections with flags"),
		RunE: a.run(func(ctx context.Context, d Daemon, _ []string) error {
			if limit < 0 {
				return usagef("--limit %d: want 0 (all) or more", limit)
			}
			return a.repeat(ctx, func() error { return a.connections(ctx, d, params, limit) })
		}),
	}
	a.bindFilter(cmd, &params.Filter)
	a.bindWatch(cmd)
	cmd.Flags().IntVar(&limit, "limit", 0, "show at most `N`, and say so if there are more; 0: all")
	return cmd
}

// connections shows connections page by page, as they come: there may be millions.
func (a *app) connections(ctx context.Context, d Daemon, params api.ConnectionsListParams, limit int) error {
	t := a.connectionTable()
	list := listWriter{app: a}
	shown, more := 0, false
	for {
		var page api.ConnectionsListResult
		if err := d.Call(ctx, api.MethodConnectionsList, params, &page); err != nil {
			return err
		}
		if limit > 0 && shown+len(page.Items) > limit {
			page.Items, more = page.Items[:limit-shown], true
		}
		shown += len(page.Items)
		for i := range page.Items {
			if a.isTable() {
				t.add(a.connectionRow(&page.Items[i])...)
			} else if err := list.add(page.Items[i]); err != nil {
				return err
			}
		}
		if a.isTable() && shown > 0 {
			t.flush()
		}
		if page.Continue == "" || (limit > 0 && shown >= limit) {
			more = more || page.Continue != ""
			break
		}
		if err := a.out.Flush(); err != nil {
			return err
		}
		params.Continue = page.Continue
	}
	switch {
	case !a.isTable():
		list.end()
	case shown == 0:
		a.note("there are none")
	}
	if more {
		a.note("there are more than %d; --limit 0 shows all", shown)
	}
	return nil
}

func (a *app) connectionTable() *table {
	columns := []column{
		{title: "PROTO"}, {title: "SOURCE"}, {title: "DESTINATION"}, {title: "BACKEND", optional: 1}, {title: "SERVICE", flexible: true, optional: 2},
		{title: "STATE"}, {title: "PATH", optional: 6}, {title: "IDLE", right: true, optional: 3},
		{title: "SENT", right: true, optional: 5}, {title: "RECEIVED", right: true, optional: 4},
	}
	if a.output == formatWide {
		columns = append(columns,
			column{title: "FORTH", optional: 8}, column{title: "BACK", optional: 8},
			column{title: "NAT", optional: 7}, column{title: "REPLY TO", optional: 8}, column{title: "AGE", right: true, optional: 9},
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

func (a *app) connectionRow(c *api.Connection) []cell {
	color := ""
	if c.State == "established" || c.State == "replied" {
		color = green
	}
	row := []cell{
		{text: c.Protocol}, {text: c.Original.Source + podOf(c.From)}, {text: c.Original.Destination + podOf(c.To)}, {text: or(c.Backend, "-")}, {text: or(c.Service, "-")},
		{text: c.State, color: color}, {text: c.Path}, {text: short(c.Idle)}, {text: size(c.Sent.Bytes)}, {text: size(c.Received.Bytes)},
	}
	if a.output == formatWide {
		row = append(row,
			cell{text: wayText(&c.Forth)}, cell{text: wayText(&c.Back)},
			cell{text: natText(c)}, cell{text: c.Reply.Destination}, cell{text: short(c.Age)}, cell{text: short(c.Expires)},
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

// wayText is where the packets of a direction leave, or why they are slow.
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
			var result api.ConnectionsFlushResult
			if err := d.Change(ctx, api.MethodConnectionsFlush, "", 0, api.ConnectionsFlushParams{Filter: filter}, &result); err != nil {
				return err
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

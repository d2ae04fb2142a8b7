// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
	"github.com/spf13/cobra"
)

func (a *app) describeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "describe KIND NAME…",
		Aliases: []string{"show"},
		Short:   "Show all about an object: spec, status and counters",
		Example: "  llcli describe service web\n  llcli describe interface eth0",
		Args:    needKind("llcli describe KIND NAME…"),
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			kind, names, err := refArgs(args)
			if err != nil {
				return err
			}
			if len(names) == 0 {
				return usagef("which %s? name it, or list them with llcli get %s", kind, args[0])
			}
			return a.repeat(ctx, func() error { return a.show(ctx, d, kind, names) })
		}),
		ValidArgsFunction: a.completeRefs(0),
	}
	a.bindWatch(cmd)
	return cmd
}

// show writes all about objects of a kind.
func (a *app) show(ctx context.Context, d Daemon, kind string, names []string) error {
	if !a.isTable() {
		return a.getNames(ctx, d, kind, names)
	}
	names, err := a.allInterfaces(ctx, d, kind, names)
	if err != nil {
		return err
	}
	for i, name := range names {
		object, err := a.object(ctx, d, kind, name)
		if err != nil {
			return err
		}
		if i > 0 {
			a.printf("\n")
		}
		if err := a.showObject(ctx, d, &object); err != nil {
			return err
		}
	}
	return nil
}

// field writes one line of a description, unless its text is empty.
func (a *app) field(title, text string) {
	if text != "" && text != "-" {
		a.printf("%-14s%s\n", title, clean(text))
	}
}

func (a *app) showObject(ctx context.Context, d Daemon, o *api.Object) error {
	var status api.Status
	decode(o, &struct{}{}, &status)
	state := or(status.State, api.StatePending)
	paint := a.painter()
	a.printf("%-14s%s\n", o.Kind, paint.paint(bold, clean(o.Name)))
	a.printf("%-14s%s\n", "State", paint.paint(stateColor(state), state)+clean(prefixed(": ", status.Message)))
	a.field("Owner", or(o.Owner, api.OwnerCLI))
	a.field("Labels", labels(o.Labels))
	a.field("Revision", strconv.FormatUint(o.Revision, 10))
	switch o.Kind {
	case api.KindService:
		return a.showService(ctx, d, o)
	case api.KindInterface:
		a.showInterface(o)
		a.showTraffic(ctx, d, o)
		return nil
	}
	if k := findKind(o.Kind); k != nil {
		a.showFields(ctx, d, k, o)
		return nil
	}
	text, err := document.ToYAML(map[string]any{"spec": o.Spec, "status": o.Status}) // of a newer daemon
	a.printf("%s", text)
	return err
}

func (a *app) showInterface(o *api.Object) {
	var spec api.InterfaceSpec
	var status api.InterfaceStatus
	decode(o, &spec, &status)
	a.field("Device", interfaceDevice(&spec, &status)+" in namespace "+or(spec.Netns, "host"))
	a.field("Chosen by", spec.Address)
	a.field("Role", or(spec.Role, "uplink"))
	a.field("XDP", or(spec.XDP, "off"))
	a.field("Index", number(status.Index))
	a.field("MAC", status.MAC)
	a.field("MTU", number(status.MTU))
	a.lines("Addresses", status.Addresses)
	a.lines("Hooks", status.Hooks)
}

// showTraffic shows the packets of a device, and those that were dropped.
func (a *app) showTraffic(ctx context.Context, d Daemon, o *api.Object) {
	counters, err := a.counters(ctx, d, o.Kind, o.Name)
	if isNotFound(err) {
		return
	}
	if err != nil {
		a.note("the counters of %s: %v", o.Name, err)
		return
	}
	a.field("Traffic", fmt.Sprintf("%s in %s", size(counters.Bytes), plural(counters.Packets, "packet")))
	a.showDrops(counters)
}

// showDrops shows how many packets were dropped for which reason.
func (a *app) showDrops(counters *api.CountersResult) {
	for _, reason := range slices.Sorted(maps.Keys(counters.Drops)) {
		if n := counters.Drops[reason]; n > 0 {
			a.field("Dropped", fmt.Sprintf("%s: %s", plural(n, "packet"), reason))
		}
	}
}

// lines writes a field of several values, one a line.
func (a *app) lines(title string, values []string) {
	for _, value := range values {
		a.field(title, value)
		title = ""
	}
}

func (a *app) showService(ctx context.Context, d Daemon, o *api.Object) error {
	var spec api.ServiceSpec
	var status api.ServiceStatus
	decode(o, &spec, &status)
	a.lines("Frontends", spec.Frontends)
	a.field("Algorithm", or(spec.Algorithm, "maglev"))
	if spec.Affinity != nil {
		a.field("Affinity", short(spec.Affinity.Timeout)+" since a client's last new connection")
	}
	a.field("Source", or(spec.Source, "auto"))
	a.lines("Source ranges", spec.SourceRanges)
	for _, divert := range spec.Divert {
		a.field("Diverted", join(divert.Sources)+" to "+divert.Service)
	}
	if spec.NoBackend == "drop" {
		a.field("No backend", "dropped")
	}
	if spec.Announce {
		a.field("Announced", "by the uplinks")
	}
	a.field("Other ports", spec.OtherPorts)
	a.field("Health check", describeHealth(spec.Health))
	a.field("Idle timeout", describeIdle(spec.IdleTimeout))

	counters, err := a.counters(ctx, d, o.Kind, o.Name)
	if err != nil {
		a.note("the counters of %s: %v", o.Name, err)
		counters = &api.CountersResult{}
	}
	a.field("Traffic", fmt.Sprintf("%s, %s in %s", plural(counters.Connections, "connection"), size(counters.Bytes), plural(counters.Packets, "packet")))
	a.showDrops(counters)
	a.section(a.backendTable(&spec, &status, counters.Backends))
	return nil
}

// describeHealth writes a health check as words.
func describeHealth(h *api.HealthCheck) string {
	if h == nil {
		return "none"
	}
	text := h.Type
	if h.Type == "http" || h.Type == "https" {
		text += " " + or(h.Path, "/")
	}
	if h.Port > 0 {
		text += fmt.Sprintf(" on port %d", h.Port)
	}
	return text + describeTimes(h)
}

func describeTimes(h *api.HealthCheck) string {
	text := ""
	for _, part := range []struct {
		word  string
		value string
		set   bool
	}{
		{"every", short(h.Interval), h.Interval > 0}, {"within", short(h.Timeout), h.Timeout > 0},
		{"healthy after", strconv.Itoa(h.Healthy), h.Healthy > 0}, {"unhealthy after", strconv.Itoa(h.Unhealthy), h.Unhealthy > 0},
	} {
		if part.set {
			text += ", " + part.word + " " + part.value
		}
	}
	return text
}

func describeIdle(t *api.IdleTimeout) string {
	if t == nil {
		return ""
	}
	var parts []string
	for _, part := range []struct {
		name string
		d    api.Duration
	}{{"tcp", t.TCP}, {"udp", t.UDP}, {"sctp", t.SCTP}} {
		if part.d > 0 {
			parts = append(parts, part.name+" "+short(part.d))
		}
	}
	return join(parts)
}

// backendTable shows the configuration, the state and the counters of each backend.
func (a *app) backendTable(spec *api.ServiceSpec, status *api.ServiceStatus, counters []api.BackendCounters) *table {
	t := a.table(column{title: "BACKEND"}, column{title: "WEIGHT", right: true}, column{title: "STATE"}, column{title: "HEALTH"},
		column{title: "ACTIVE", right: true}, column{title: "CONNECTIONS", right: true, optional: 1}, column{title: "PACKETS", right: true, optional: 3},
		column{title: "BYTES", right: true, optional: 2}, column{title: "MESSAGE", flexible: true})
	for _, b := range spec.Backends {
		is := api.BackendStatus{State: or(b.State, "active")}
		if i := slices.IndexFunc(status.Backends, func(s api.BackendStatus) bool { return s.Address == b.Address }); i >= 0 {
			is = status.Backends[i]
		}
		var c api.BackendCounters
		if i := slices.IndexFunc(counters, func(c api.BackendCounters) bool { return c.Address == b.Address }); i >= 0 {
			c = counters[i]
		}
		weight := 1
		if b.Weight != nil {
			weight = *b.Weight
		}
		t.add(cell{text: b.Address}, cell{text: strconv.Itoa(weight)}, cell{text: is.State, color: stateColor(is.State)},
			cell{text: or(is.Health, "-"), color: stateColor(is.Health)}, cell{text: count(c.Active)}, cell{text: count(c.Connections)},
			cell{text: count(c.Packets)}, cell{text: size(c.Bytes)}, cell{text: is.Message})
	}
	return t
}

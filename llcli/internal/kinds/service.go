// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
)

func serviceCells(o *api.Object, wide bool) []output.Cell {
	var spec api.ServiceSpec
	var status api.ServiceStatus
	Decode(o, &spec, &status)
	cells := []output.Cell{
		{Text: output.Join(spec.Frontends)}, backendCount(&spec, &status), {Text: cmp.Or(spec.Algorithm, api.Algorithms[0])},
	}
	if wide {
		affinity, health := "-", "-"
		if spec.Affinity != nil {
			affinity = output.Short(spec.Affinity.Timeout)
		}
		if spec.Health != nil {
			health = spec.Health.Type
		}
		cells = append(cells, output.Cell{Text: cmp.Or(spec.Source, api.SourceModes[0])}, output.Cell{Text: affinity}, output.Cell{Text: health}, output.Cell{Text: output.Labels(o.Labels)})
	}
	return cells
}

// backendCount returns how many of the backends take new connections, and how
// many there are.
func backendCount(spec *api.ServiceSpec, status *api.ServiceStatus) output.Cell {
	active := 0
	for _, b := range status.Backends {
		if b.State == "active" {
			active++
		}
	}
	c := output.Cell{Text: fmt.Sprintf("%d/%d", active, len(spec.Backends))}
	switch {
	case active == len(spec.Backends):
	case active == 0:
		c.Color = output.Red
	default:
		c.Color = output.Yellow
	}
	return c
}

var serviceKind = Kind{
	Name:    api.KindService,
	Words:   []string{"service", "services", "svc"},
	Meaning: "addresses whose connections are spread over backends",
	Columns: []output.Column{
		{Title: "FRONTENDS", Flexible: true}, {Title: "BACKENDS", Right: true}, {Title: "ALGORITHM", Optional: 1},
	},
	Wide: []output.Column{
		{Title: "SOURCE", Optional: 3}, {Title: "AFFINITY", Optional: 4}, {Title: "HEALTH", Optional: 4}, {Title: "LABELS", Flexible: true, Optional: 5},
	},
	Cells:    serviceCells,
	Spec:     func() any { return &api.ServiceSpec{} },
	Schema:   fillSchema(serviceSchema),
	Topics:   []string{api.TopicChanges, api.TopicStatus, api.TopicDrops, api.TopicConnections},
	expand:   servicesOf,
	describe: showService,
	hint: func(o *api.Object) string {
		var spec api.ServiceSpec
		Decode(o, &spec, &struct{}{})
		return strings.Join(spec.Frontends, " ")
	},
	flags:      func() SpecFlags { return &serviceFlags{} },
	AddExample: "  llcli service add web --frontend 198.51.100.10:80/tcp --backend 10.0.1.2:8080 --backend 10.0.1.3:8080,weight=2",
	SetExample: "  llcli service set web --algorithm least-connections --affinity 3h\n  llcli service set web --health none",
}

const serviceSchema = `kind: Service
name: web                     # a-z, 0-9 and - . / : inside; unique among Services
labels: {team: web}           # for llcli get -l; no effect in the daemon
spec:
  frontends:                  # what clients connect to: address:port/protocol
    - 198.51.100.10:80/tcp    # protocol: {serviceProtocols}
    - "[2001:db8::10]:80/tcp"
  backends:                   # each serves the frontends of its own address family
    - address: 10.0.1.2:8080
      weight: 1               # share of new connections, 0 to 65535; 0: none
      state: active           # draining: keeps its connections, gets no new ones
                              # down: as draining, and UDP connections end at once
    - address: "[2001:db8:1::2]:8080"
  algorithm: maglev           # or {algorithms}
  affinity:                   # absent: none
    timeout: 3h               # since the client's last new connection, 1s to 24h
  source: auto                # the client's address as backends see it: keep, snat, or
                              # auto: snat if replies would not return through the node
  sourceRanges:               # permitted clients; empty: all
    - 203.0.113.0/24
  health:                     # absent: backends are not checked
    type: http                # {healthTypes}
    path: /healthz            # http and https; default /
    port: 8080                # default: the backend's
    interval: 5s
    timeout: 1s
    healthy: 2                # successes in a row
    unhealthy: 3              # failures in a row
  idleTimeout:                # connections end after this time without packets
    tcp: 2h
    udp: 30s
    sctp: 2h
  noBackend: reject           # action for new connections without a backend; or drop
  divert:                     # clients that another Service handles
    - sources: [10.0.0.0/8]
      service: web-internal
  announce: true              # the frontends' addresses, on the uplinks (ARP, neighbour discovery)
  otherPorts: pass            # action for packets to these addresses on ports without a
                              # Service: or reject (default with announce), drop
`

func showService(ctx context.Context, a *command.App, d command.Daemon, o *api.Object) {
	var spec api.ServiceSpec
	var status api.ServiceStatus
	Decode(o, &spec, &status)
	a.Lines("Frontends", spec.Frontends)
	a.Field("Algorithm", cmp.Or(spec.Algorithm, api.Algorithms[0]))
	if spec.Affinity != nil {
		a.Field("Affinity", output.Short(spec.Affinity.Timeout)+" since a client's last new connection")
	}
	a.Field("Source", cmp.Or(spec.Source, api.SourceModes[0]))
	a.Lines("Source ranges", spec.SourceRanges)
	for _, divert := range spec.Divert {
		a.Field("Diverted", output.Join(divert.Sources)+" to "+divert.Service)
	}
	if spec.NoBackend == "drop" {
		a.Field("No backend", "dropped")
	}
	if spec.Announce {
		a.Field("Announced", "on the uplinks")
	}
	a.Field("Other ports", spec.OtherPorts)
	a.Field("Health check", describeHealth(spec.Health))
	a.Field("Idle timeout", describeIdle(spec.IdleTimeout))

	counters, err := a.Counters(ctx, d, o.Kind, o.Name)
	if err != nil {
		a.Note("the counters of %s: %v", o.Name, err)
		counters = &api.CountersResult{}
	}
	a.Field("Traffic", fmt.Sprintf("%s, %s in %s", output.Plural(counters.Connections, "connection"), output.Bytes(counters.Bytes), output.Plural(counters.Packets, "packet")))
	showDrops(a, counters)
	a.Section(backendTable(a, &spec, &status, counters.Backends))
}

// describeHealth writes a health check as words.
func describeHealth(h *api.HealthCheck) string {
	if h == nil {
		return "none"
	}
	text := h.Type
	if h.Type == "http" || h.Type == "https" {
		text += " " + cmp.Or(h.Path, "/")
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
		{"every", output.Short(h.Interval), h.Interval > 0}, {"within", output.Short(h.Timeout), h.Timeout > 0},
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
			parts = append(parts, part.name+" "+output.Short(part.d))
		}
	}
	return output.Join(parts)
}

// backendTable shows the configuration, the state and the counters of each backend.
func backendTable(a *command.App, spec *api.ServiceSpec, status *api.ServiceStatus, counters []api.BackendCounters) *output.Table {
	t := a.Table(output.Column{Title: "BACKEND"}, output.Column{Title: "WEIGHT", Right: true}, output.Column{Title: "STATE"}, output.Column{Title: "HEALTH"},
		output.Column{Title: "ACTIVE", Right: true}, output.Column{Title: "CONNECTIONS", Right: true, Optional: 1}, output.Column{Title: "PACKETS", Right: true, Optional: 3},
		output.Column{Title: "BYTES", Right: true, Optional: 2}, output.Column{Title: "MESSAGE", Flexible: true})
	for _, b := range spec.Backends {
		is := api.BackendStatus{State: cmp.Or(b.State, "active")}
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
		t.Add(output.Cell{Text: b.Address}, output.Cell{Text: strconv.Itoa(weight)}, output.Cell{Text: is.State, Color: output.StateColor(is.State)},
			output.Cell{Text: cmp.Or(is.Health, "-"), Color: output.StateColor(is.Health)}, output.Cell{Text: output.Count(c.Active)}, output.Cell{Text: output.Count(c.Connections)},
			output.Cell{Text: output.Count(c.Packets)}, output.Cell{Text: output.Size(c.Bytes)}, output.Cell{Text: is.Message})
	}
	return t
}

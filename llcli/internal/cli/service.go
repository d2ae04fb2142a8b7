// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func (a *app) serviceCommand() *cobra.Command {
	cmd := a.nounCommand(findKind(api.KindService), &serviceFlags{},
		"  llcli service add web --frontend 198.51.100.10:80/tcp --backend 10.0.1.2:8080 --backend 10.0.1.3:8080,weight=2")
	cmd.AddCommand(a.setCommand(findKind(api.KindService), &serviceFlags{}, "  llcli service set web --algorithm least-connections --affinity 3h\n  llcli service set web --health none"),
		a.drainCommand(), a.backendCommand())
	return cmd
}

// serviceFlags are a ServiceSpec as flags.
type serviceFlags struct {
	frontends, backends []string
	algorithm, source   string
	sourceRanges        []string
	affinity            time.Duration
	health              api.HealthCheck
	interval, timeout   time.Duration
	idle                map[string]string
	diverts             []string
	noBackend           string
	otherPorts          string
	announce            bool
}

func (f *serviceFlags) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.frontends, "frontend", nil, "`ADDRESS:PORT/PROTOCOL` that clients connect to; protocol: tcp, udp or sctp; may be repeated")
	flags.StringArrayVar(&f.backends, "backend", nil, "`ADDRESS:PORT` of a server, with ,weight=N and ,state=active, draining or down if need be; may be repeated")
	flags.StringVar(&f.algorithm, "algorithm", "", "the `ALGORITHM` that chooses a backend: maglev (default), random, round-robin, least-connections or source-hash")
	flags.DurationVar(&f.affinity, "affinity", 0, "send a client to the same backend for this `TIME` since its last new connection; 0: do not")
	flags.StringVar(&f.source, "source", "", "`HOW` backends see the client's address: keep, snat or auto (default)")
	flags.StringSliceVar(&f.sourceRanges, "source-range", nil, "`PREFIX` of clients let in; may be repeated (default: all)")
	flags.StringVar(&f.health.Type, "health", "", "check backends by this `TYPE`: tcp, http, https or ping (default: not)")
	flags.StringVar(&f.health.Path, "health-path", "", "`PATH` that http and https checks ask for (default /)")
	flags.IntVar(&f.health.Port, "health-port", 0, "`PORT` to check (default: the backend's)")
	flags.DurationVar(&f.interval, "health-interval", 0, "`TIME` between two checks (default 5s)")
	flags.DurationVar(&f.timeout, "health-timeout", 0, "`TIME` for a backend to answer (default 1s)")
	flags.IntVar(&f.health.Healthy, "health-healthy", 0, "`N` successes in a row make a backend healthy (default 2)")
	flags.IntVar(&f.health.Unhealthy, "health-unhealthy", 0, "`N` failures in a row make it unhealthy (default 3)")
	flags.StringToStringVar(&f.idle, "idle-timeout", nil, "end idle connections after `PROTOCOL=TIME,...`; defaults: tcp=2h,udp=30s,sctp=2h")
	hideDefault(flags, "idle-timeout")
	flags.StringVar(&f.noBackend, "no-backend", "", "`WHAT` new connections meet while there is no backend for them: reject (default) or drop")
	flags.StringArrayVar(&f.diverts, "divert", nil, "`SERVICE=PREFIX[,PREFIX…]`: balance connections of these clients as connections to that Service; may be repeated")
	flags.BoolVar(&f.announce, "announce", false, "answer the neighbours, by the uplinks, for the frontends' addresses")
	flags.StringVar(&f.otherPorts, "other-ports", "", "`WHAT` becomes of packets to the frontends' addresses that are no Service's: pass (default), reject (default with --announce) or drop")
	fixed := map[string][]string{
		"algorithm":  {"maglev", "random", "round-robin", "least-connections", "source-hash"},
		"source":     {"keep", "snat", "auto"},
		"health":     {"tcp", "http", "https", "ping"},
		"no-backend": {"reject", "drop"}, "other-ports": {"pass", "reject", "drop"},
	}
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "help" {
			must(cmd.RegisterFlagCompletionFunc(flag.Name, cobra.FixedCompletions(fixed[flag.Name], cobra.ShellCompDirectiveNoFileComp)))
		}
	})
}

// spec returns the spec from the flags; the daemon checks whether it is valid.
func (f *serviceFlags) spec(string) (any, error) {
	if len(f.frontends) == 0 {
		return nil, usagef("the frontend is missing; set --frontend ADDRESS:PORT/PROTOCOL")
	}
	spec, err := f.fields()
	if err == nil && spec.Health != nil && spec.Health.Type == "" {
		return nil, usagef("the --health-… flags need --health tcp, http, https or ping")
	}
	return spec, err
}

// fields returns the fields of the given flags.
func (f *serviceFlags) fields() (*api.ServiceSpec, error) {
	spec := &api.ServiceSpec{
		Frontends: f.frontends, Algorithm: or(foreignAlgorithms[f.algorithm], f.algorithm), Source: f.source, SourceRanges: f.sourceRanges,
		NoBackend: f.noBackend, Announce: f.announce, OtherPorts: f.otherPorts,
	}
	for _, text := range f.diverts {
		if service, sources, ok := strings.Cut(text, "="); ok {
			spec.Divert = append(spec.Divert, api.Divert{Sources: strings.Split(sources, ","), Service: service})
		} else if text != "" {
			return nil, usagef("--divert %s: want SERVICE=PREFIX, such as web=10.0.0.0/8", text)
		}
	}
	for _, text := range f.backends {
		b, err := parseBackend(text)
		if err != nil {
			return nil, err
		}
		spec.Backends = append(spec.Backends, b)
	}
	if f.affinity != 0 {
		spec.Affinity = &api.Affinity{Timeout: api.Duration(f.affinity)}
	}
	f.health.Interval, f.health.Timeout = api.Duration(f.interval), api.Duration(f.timeout)
	if f.health != (api.HealthCheck{}) {
		spec.Health = &f.health
	}
	if len(f.idle) > 0 {
		spec.IdleTimeout = &api.IdleTimeout{}
		into := map[string]*api.Duration{"tcp": &spec.IdleTimeout.TCP, "udp": &spec.IdleTimeout.UDP, "sctp": &spec.IdleTimeout.SCTP}
		for protocol, text := range f.idle {
			d, err := time.ParseDuration(text)
			if into[protocol] == nil || err != nil {
				return nil, usagef("--idle-timeout %s=%s: want tcp, udp or sctp, and a time such as 30s", protocol, text)
			}
			*into[protocol] = api.Duration(d)
		}
	}
	return spec, nil
}

// parseBackend reads ADDRESS:PORT[,weight=N][,state=S].
func parseBackend(text string) (api.Backend, error) {
	parts := strings.Split(text, ",")
	b := api.Backend{Address: parts[0]}
	for _, part := range parts[1:] {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "weight":
			weight, err := strconv.Atoi(value)
			if err != nil {
				return b, usagef("--backend %s: weight %q is not a number", text, value)
			}
			if weight < 0 || weight > math.MaxUint16 {
				return b, usagef("--backend %s: weight %d is not between 0 and %d", text, weight, math.MaxUint16)
			}
			b.Weight = &weight
		case "state":
			b.State = value
		default:
			return b, usagef("--backend %s: %q: want weight=N or state=active, draining or down", text, part)
		}
	}
	return b, nil
}

// drainCommand sets backends of a Service to draining, or back to active.
func (a *app) drainCommand() *cobra.Command {
	var options changeOptions
	var undo bool
	cmd := &cobra.Command{
		Use:   "drain NAME BACKEND…",
		Short: "Take backends out of a Service: they keep their connections and get no new ones",
		Long: `Set the state of backends to draining: they keep the connections that they have and
get no new ones, unless no other backend is left: set the state to down for that.
--undo sets it back to active. BACKEND is an address:port, or an address for all of
its ports.`,
		Example: "  llcli service drain web 10.0.1.2:8080 --wait 5s\n  llcli service drain web 10.0.1.2 --undo",
		Args:    needWords(2, "llcli service drain NAME BACKEND…"),
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			change, err := options.params()
			if err != nil {
				return err
			}
			state := "draining"
			if undo {
				state = "active"
			}
			return a.edit(ctx, d, serviceRef(args[0]), change, func(spec map[string]any) error {
				return setBackends(spec, args[0], args[1:], map[string]any{"state": state})
			})
		}),
		ValidArgsFunction: a.completeServiceBackends,
	}
	options.bind(cmd)
	cmd.Flags().BoolVar(&undo, "undo", false, "give them new connections again")
	return cmd
}

// setBackends sets fields of the backends that are named, in a spec of which
// nothing else is touched, known or not.
func setBackends(spec map[string]any, service string, names []string, fields map[string]any) error {
	chosen, err := chooseBackends(spec, service, names)
	if err != nil {
		return err
	}
	for _, i := range chosen {
		b := spec["backends"].([]any)[i].(map[string]any)
		for field, value := range fields {
			b[field] = value
		}
	}
	return nil
}

// chooseBackends returns which backends of a spec the names name.
func chooseBackends(spec map[string]any, service string, names []string) ([]int, error) {
	backends, _ := spec["backends"].([]any)
	var chosen []int
	for _, name := range names {
		found := false
		for i, item := range backends {
			b, _ := item.(map[string]any)
			address, _ := b["address"].(string)
			if address == name || address != "" && hostOf(address) == strings.Trim(name, "[]") {
				chosen, found = append(chosen, i), true
			}
		}
		if !found {
			return nil, fmt.Errorf("%s has no backend %s; llcli service show %s lists them", serviceRef(service), name, service)
		}
	}
	return chosen, nil
}

func serviceRef(name string) api.ObjectRef { return api.ObjectRef{Kind: api.KindService, Name: name} }

// hostOf returns the address without its port.
func hostOf(address string) string {
	if i := strings.LastIndexByte(address, ':'); i >= 0 {
		address = address[:i]
	}
	return strings.Trim(address, "[]")
}

// backendsOf returns the addresses of a Service's backends, in order.
func backendsOf(o *api.Object) []string {
	var spec api.ServiceSpec
	decode(o, &spec, &struct{}{})
	var addresses []string
	for _, b := range spec.Backends {
		addresses = append(addresses, b.Address)
	}
	slices.Sort(addresses)
	return addresses
}

func (f *serviceFlags) paths() []flagPath {
	return []flagPath{
		{"frontend", "frontends"}, {"backend", "backends"}, {"algorithm", "algorithm"}, {"source", "source"}, {"source-range", "sourceRanges"},
		{"affinity", "affinity"}, {"idle-timeout", "idleTimeout"}, {"divert", "divert"}, {"no-backend", "noBackend"},
		{"other-ports", "otherPorts"}, {"announce", "announce"},
		{"health", "health"}, {"health-path", "health.path"}, {"health-port", "health.port"}, {"health-interval", "health.interval"},
		{"health-timeout", "health.timeout"}, {"health-healthy", "health.healthy"}, {"health-unhealthy", "health.unhealthy"},
	}
}

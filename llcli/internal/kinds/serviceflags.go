// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// serviceFlags are the flags for a ServiceSpec.
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

func (f *serviceFlags) Bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.frontends, "frontend", nil, "`ADDRESS:PORT/PROTOCOL` that clients connect to; protocol: "+AnyOf(api.ServiceProtocols)+"; may be repeated")
	flags.StringArrayVar(&f.backends, "backend", nil, "`ADDRESS:PORT` of a server, with ,weight=N and ,state="+AnyOf(api.BackendStates)+" if needed; may be repeated")
	flags.StringVar(&f.algorithm, "algorithm", "", "the `ALGORITHM` that chooses a backend: "+AnyOf(withDefault(api.Algorithms)))
	flags.DurationVar(&f.affinity, "affinity", 0, "send a client to the same backend for this `TIME` since its last new connection; 0: do not")
	flags.StringVar(&f.source, "source", "", "`HOW` backends see the client's address: keep, snat or auto (default)")
	flags.StringSliceVar(&f.sourceRanges, "source-range", nil, "`PREFIX` of permitted clients; may be repeated (default: all)")
	flags.StringVar(&f.health.Type, "health", "", "check backends by this `TYPE`: "+AnyOf(api.HealthTypes)+" (default: none)")
	flags.StringVar(&f.health.Path, "health-path", "", "`PATH` that http and https checks request (default /)")
	flags.IntVar(&f.health.Port, "health-port", 0, "`PORT` to check (default: the backend's)")
	flags.DurationVar(&f.interval, "health-interval", 0, "`TIME` between two checks (default 5s)")
	flags.DurationVar(&f.timeout, "health-timeout", 0, "`TIME` for a backend to answer (default 1s)")
	flags.IntVar(&f.health.Healthy, "health-healthy", 0, "`N` successes in a row make a backend healthy (default 2)")
	flags.IntVar(&f.health.Unhealthy, "health-unhealthy", 0, "`N` failures in a row make it unhealthy (default 3)")
	flags.StringToStringVar(&f.idle, "idle-timeout", nil, "end idle connections after `PROTOCOL=TIME,...`; defaults: tcp=2h,udp=30s,sctp=2h")
	command.HideDefault(flags, "idle-timeout")
	flags.StringVar(&f.noBackend, "no-backend", "", "`ACTION` for new connections while there is no backend for them: "+AnyOf(withDefault(api.NoBackends)))
	flags.StringArrayVar(&f.diverts, "divert", nil, "`SERVICE=PREFIX[,PREFIX…]`: balance connections of these clients as connections to that Service; may be repeated")
	flags.BoolVar(&f.announce, "announce", false, "announce the frontends' addresses on the uplinks (ARP and neighbour discovery)")
	flags.StringVar(&f.otherPorts, "other-ports", "", "`ACTION` for packets to the frontends' addresses on ports without a Service: pass (default), reject (default with --announce) or drop")
	fixed := map[string][]string{
		"algorithm": api.Algorithms, "source": api.SourceModes, "health": api.HealthTypes,
		"no-backend": api.NoBackends, "other-ports": api.OtherPorts,
	}
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "help" {
			command.Must(cmd.RegisterFlagCompletionFunc(flag.Name, cobra.FixedCompletions(fixed[flag.Name], cobra.ShellCompDirectiveNoFileComp)))
		}
	})
}

// Spec returns the spec from the flags; the daemon checks whether it is valid.
func (f *serviceFlags) Spec(string) (any, error) {
	if len(f.frontends) == 0 {
		return nil, command.Usagef("the frontend is missing; set --frontend ADDRESS:PORT/PROTOCOL")
	}
	spec, err := f.fields()
	if err == nil && spec.Health != nil && spec.Health.Type == "" {
		return nil, command.Usagef("the --health-… flags need --health %s", AnyOf(api.HealthTypes))
	}
	return spec, err
}

// fields returns the fields of the given flags.
func (f *serviceFlags) fields() (*api.ServiceSpec, error) {
	spec := &api.ServiceSpec{
		Frontends: f.frontends, Algorithm: cmp.Or(foreignAlgorithms[f.algorithm], f.algorithm), Source: f.source, SourceRanges: f.sourceRanges,
		NoBackend: f.noBackend, Announce: f.announce, OtherPorts: f.otherPorts,
	}
	for _, text := range f.diverts {
		if service, sources, ok := strings.Cut(text, "="); ok {
			spec.Divert = append(spec.Divert, api.Divert{Sources: strings.Split(sources, ","), Service: service})
		} else if text != "" {
			return nil, command.Usagef("--divert %s: want SERVICE=PREFIX, such as web=10.0.0.0/8", text)
		}
	}
	for _, text := range f.backends {
		b, err := ParseBackend(text)
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
				return nil, command.Usagef("--idle-timeout %s=%s: want %s, and a time such as 30s", protocol, text, AnyOf(api.ServiceProtocols))
			}
			*into[protocol] = api.Duration(d)
		}
	}
	return spec, nil
}

func (f *serviceFlags) Paths() []command.FlagPath {
	return []command.FlagPath{
		{Flag: "frontend", Path: "frontends"}, {Flag: "backend", Path: "backends"}, {Flag: "algorithm", Path: "algorithm"}, {Flag: "source", Path: "source"}, {Flag: "source-range", Path: "sourceRanges"},
		{Flag: "affinity", Path: "affinity"}, {Flag: "idle-timeout", Path: "idleTimeout"}, {Flag: "divert", Path: "divert"}, {Flag: "no-backend", Path: "noBackend"},
		{Flag: "other-ports", Path: "otherPorts"}, {Flag: "announce", Path: "announce"},
		{Flag: "health", Path: "health"}, {Flag: "health-path", Path: "health.path"}, {Flag: "health-port", Path: "health.port"}, {Flag: "health-interval", Path: "health.interval"},
		{Flag: "health-timeout", Path: "health.timeout"}, {Flag: "health-healthy", Path: "health.healthy"}, {Flag: "health-unhealthy", Path: "health.unhealthy"},
	}
}

// Merge puts the values of the given flags into a spec, and leaves the rest unchanged.
func (f *serviceFlags) Merge(spec map[string]any, given *pflag.FlagSet) error {
	flags := *f // it may be called again
	if given.Changed("health") && f.health.Type == "none" {
		delete(spec, "health")
		flags.health.Type = ""
	}
	if given.Changed("affinity") && f.affinity == 0 {
		delete(spec, "affinity")
	}
	said, err := flags.fields()
	if err != nil {
		return err
	}
	if given.Changed("source-range") && len(f.sourceRanges) == 0 {
		delete(spec, "sourceRanges")
	}
	if given.Changed("divert") && len(said.Divert) == 0 {
		delete(spec, "divert")
	}
	if given.Changed("announce") && !f.announce {
		delete(spec, "announce")
	}
	if _, has := spec["health"]; !has && said.Health != nil && said.Health.Type == "" {
		return command.Usagef("it has no health check; set --health %s", AnyOf(api.HealthTypes))
	}
	if health, _ := spec["health"].(map[string]any); health != nil && (f.health.Type == "tcp" || f.health.Type == "ping") {
		delete(health, "path") // left by the previous http check
		if f.health.Type == "ping" {
			delete(health, "port")
		}
	}
	return MergeFields(spec, said)
}

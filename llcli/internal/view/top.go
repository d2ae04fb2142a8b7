// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// maxTop limits the number of Services, and of rules, that top shows: each needs a separate request
// in each round.
const maxTop = 1000

// rate is the traffic of something per second.
type rate struct {
	Name        string  `json:"name"` // empty: the node
	Packets     float64 `json:"packetsPerSecond"`
	Bytes       float64 `json:"bytesPerSecond"`
	Connections float64 `json:"connectionsPerSecond"` // opened
	Drops       float64 `json:"dropsPerSecond"`
	Active      uint64  `json:"active"` // connections now; Services only
}

// rates is one output of top.
type rates struct {
	Node     rate   `json:"node"`
	Services []rate `json:"services"` // busiest first
	Rules    []rate `json:"rules"`    // FirewallRules and NATs, as KIND/NAME; likewise
}

// sample contains the counters at one moment.
type sample struct {
	at       time.Time
	counters map[api.ObjectRef]*api.CountersResult // zero: the node
}

func topCommand(a *command.App) *cobra.Command {
	var rounds, limit int
	cmd := &cobra.Command{
		Use:   "top [SERVICE…]",
		Short: "Show the traffic of Services and rules per second",
		Long: `Show packets, bytes, new connections and drops per second for the node and for Services, and
packets, bytes and new connections for FirewallRules and NATs, the busiest first, repeatedly
until interrupted. With names, show only these Services.`,
		Example: "  llcli top\n  llcli top web dns --interval 1s\n  llcli top --count 1 -o json",
		RunE: a.Run(func(ctx context.Context, d command.Daemon, names []string) error {
			if rounds < 0 || limit < 0 {
				return command.Usagef("--count and --limit: want 0 (no limit) or more")
			}
			return showTop(ctx, a, d, names, rounds, limit)
		}),
		ValidArgsFunction: kinds.CompleteNames(a, api.KindService),
	}
	cmd.Flags().IntVar(&rounds, "count", 0, "end after showing it `N` times; 0: when interrupted")
	cmd.Flags().IntVar(&limit, "limit", 20, "show at most `N` Services and N rules; 0: all")
	cmd.Flags().DurationVar(&a.Interval, "interval", 2*time.Second, "the `TIME` between two outputs")
	for _, flag := range []string{"count", "limit", "interval"} {
		command.Must(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
	return cmd
}

// showTop shows rates: in each round relative to the counters of the previous one.
func showTop(ctx context.Context, a *command.App, d command.Daemon, names []string, rounds, limit int) error {
	a.Repeated = true
	var last *sample
	shown := 0
	return a.Periodically(ctx, func(bool) error {
		now, err := takeSample(ctx, a, d, names)
		if err != nil {
			return err
		}
		if last != nil {
			if err := printRates(a, now.since(last, names), limit); err != nil {
				return err
			}
			shown++
		}
		last = now
		if rounds > 0 && shown == rounds {
			return command.ErrEnough
		}
		return nil
	})
}

// takeSample requests the counters of the node and of Services; without names, of all Services and
// all rules.
func takeSample(ctx context.Context, a *command.App, d command.Daemon, names []string) (*sample, error) {
	s := &sample{counters: map[api.ObjectRef]*api.CountersResult{}}
	refs := []api.ObjectRef{{}}
	given := len(names) > 0
	for _, name := range names {
		refs = append(refs, api.ObjectRef{Kind: api.KindService, Name: name})
	}
	if !given {
		services, err := allRefs(ctx, a, d, api.KindService)
		if err != nil {
			return nil, err
		}
		rules, err := allRefs(ctx, a, d, api.KindFirewallRule, api.KindNAT)
		if err != nil {
			return nil, err
		}
		if len(services) > maxTop {
			return nil, fmt.Errorf("there are %s Services, and top shows at most %s; name the Services to show", output.Count(uint64(len(services))), output.Count(maxTop))
		}
		refs = append(append(refs, services...), rules[:min(len(rules), maxTop)]...)
	}
	for _, ref := range refs {
		c, err := a.Counters(ctx, d, ref.Kind, ref.Name)
		if command.IsNotFound(err) && !given {
			continue // deleted since it was listed
		}
		if err != nil {
			return nil, err
		}
		s.counters[ref] = c
	}
	s.at = a.Now()
	return s, nil
}

// allRefs returns the names of all objects of kinds.
func allRefs(ctx context.Context, a *command.App, d command.Daemon, of ...string) (refs []api.ObjectRef, err error) {
	for _, kind := range of {
		_, err := a.List(ctx, d, api.ListParams{Kind: kind}, func(objects []api.Object) error {
			for i := range objects {
				refs = append(refs, kinds.RefOf(&objects[i]))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return refs, nil
}

// since returns the rates from one sample to this one.
func (s *sample) since(last *sample, names []string) rates {
	seconds := max(s.at.Sub(last.at).Seconds(), 0.001)
	r := rates{Services: []rate{}, Rules: []rate{}}
	for ref, c := range s.counters {
		before := last.counters[ref]
		if before == nil { // it is new: its counters begin with 0
			before = &api.CountersResult{}
		}
		one := rate{
			Name: ref.Name, Packets: per(c.Packets, before.Packets, seconds), Bytes: per(c.Bytes, before.Bytes, seconds),
			Connections: per(c.Connections, before.Connections, seconds), Drops: per(total(c.Drops), total(before.Drops), seconds),
		}
		for _, b := range c.Backends {
			one.Active += b.Active
		}
		switch ref.Kind {
		case "":
			r.Node = one
		case api.KindService:
			r.Services = append(r.Services, one)
		default:
			one.Name = ref.String()
			r.Rules = append(r.Rules, one)
		}
	}
	busiest := func(x, y rate) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name)) }
	slices.SortFunc(r.Rules, busiest)
	slices.SortFunc(r.Services, func(x, y rate) int {
		if len(names) > 0 {
			return cmp.Compare(slices.Index(names, x.Name), slices.Index(names, y.Name))
		}
		return busiest(x, y)
	})
	return r
}

// per returns a rate. Counters that have decreased were reset.
func per(now, before uint64, seconds float64) float64 {
	if now < before {
		before = 0
	}
	return float64(now-before) / seconds
}

func total(counts map[string]uint64) uint64 {
	var sum uint64
	for _, n := range counts {
		sum += n
	}
	return sum
}

// firstOf returns at most limit rates, or all of them if limit is 0, and how many are left out.
func firstOf(all []rate, limit int) ([]rate, int) {
	if limit == 0 || len(all) <= limit {
		return all, 0
	}
	return all[:limit], len(all) - limit
}

func printRates(a *command.App, r rates, limit int) error {
	var services, rules int // left out
	r.Services, services = firstOf(r.Services, limit)
	r.Rules, rules = firstOf(r.Rules, limit)
	if !a.IsTable() {
		return a.PrintLine(r)
	}
	if a.Width() > 0 {
		a.Printf("\x1b[H\x1b[2J") // to the top, and clear
	}
	t := a.Table(output.Column{Title: "SERVICE", Flexible: true}, output.Column{Title: "PACKETS/S", Right: true}, output.Column{Title: "BITS/S", Right: true},
		output.Column{Title: "NEW CONN/S", Right: true}, output.Column{Title: "DROPS/S", Right: true}, output.Column{Title: "ACTIVE", Right: true, Optional: 1})
	row := func(r *rate, active string) {
		name, color := r.Name, ""
		if name == "" {
			name = "(node)"
		}
		if r.Drops > 0 {
			color = output.Red
		}
		t.Add(output.Cell{Text: name}, output.Cell{Text: output.PerSecond(r.Packets)}, output.Cell{Text: output.Bits(r.Bytes * 8)},
			output.Cell{Text: output.PerSecond(r.Connections)}, output.Cell{Text: output.PerSecond(r.Drops), Color: color}, output.Cell{Text: active})
	}
	row(&r.Node, "")
	for i := range r.Services {
		row(&r.Services[i], output.Count(r.Services[i].Active))
	}
	t.Flush()
	printLeftOut(a, services)
	t = a.Table(output.Column{Title: "RULE", Flexible: true}, output.Column{Title: "PACKETS/S", Right: true}, output.Column{Title: "BITS/S", Right: true},
		output.Column{Title: "NEW CONN/S", Right: true})
	for i := range r.Rules {
		rule := &r.Rules[i]
		t.Add(output.Cell{Text: rule.Name}, output.Cell{Text: output.PerSecond(rule.Packets)}, output.Cell{Text: output.Bits(rule.Bytes * 8)}, output.Cell{Text: output.PerSecond(rule.Connections)})
	}
	a.Section(t)
	printLeftOut(a, rules)
	return nil
}

func printLeftOut(a *command.App, n int) {
	if n > 0 {
		a.Printf("… and %d more; --limit 0 shows all\n", n)
	}
}

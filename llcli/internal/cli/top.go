// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/loxilight/loxilight/api"
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

// rates is one showing of top.
type rates struct {
	Node     rate   `json:"node"`
	Services []rate `json:"services"` // the busiest first
	Rules    []rate `json:"rules"`    // FirewallRules and NATs, as KIND/NAME; likewise
}

// sample is the counters of a moment.
type sample struct {
	at       time.Time
	counters map[api.ObjectRef]*api.CountersResult // zero: the node
}

func (a *app) topCommand() *cobra.Command {
	var rounds, limit int
	cmd := &cobra.Command{
		Use:   "top [SERVICE…]",
		Short: "Show the traffic of Services and rules per second",
		Long: `Show packets, bytes, new connections and drops per second of the node and of the
Services, and packets, bytes and new connections of FirewallRules and NATs, the busiest
first, again and again until interrupted. With names, only of these Services.`,
		Example: "  llcli top\n  llcli top web dns --interval 1s\n  llcli top --count 1 -o json",
		RunE: a.run(func(ctx context.Context, d Daemon, names []string) error {
			if rounds < 0 || limit < 0 {
				return usagef("--count and --limit want 0 (no end) or more")
			}
			return a.top(ctx, d, names, rounds, limit)
		}),
		ValidArgsFunction: a.completeNames(api.KindService),
	}
	cmd.Flags().IntVar(&rounds, "count", 0, "end after showing it `N` times; 0: when interrupted")
	cmd.Flags().IntVar(&limit, "limit", 20, "show at most `N` Services and N rules; 0: all")
	cmd.Flags().DurationVar(&a.interval, "interval", 2*time.Second, "the `TIME` from one showing to the next")
	for _, flag := range []string{"count", "limit", "interval"} {
		must(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
	return cmd
}

// top shows rates: each round from the counters of the one before.
func (a *app) top(ctx context.Context, d Daemon, names []string, rounds, limit int) error {
	a.watch = true
	var last *sample
	shown := 0
	return a.periodically(ctx, func(bool) error {
		now, err := a.sample(ctx, d, names)
		if err != nil {
			return err
		}
		if last != nil {
			if err := a.printRates(now.since(last, names), limit); err != nil {
				return err
			}
			shown++
		}
		last = now
		if rounds > 0 && shown == rounds {
			return errEnough
		}
		return nil
	})
}

// sample requests the counters of the node and of Services; without names, of all Services and all
// rules.
func (a *app) sample(ctx context.Context, d Daemon, names []string) (*sample, error) {
	s := &sample{counters: map[api.ObjectRef]*api.CountersResult{}}
	refs := []api.ObjectRef{{}}
	given := len(names) > 0
	for _, name := range names {
		refs = append(refs, api.ObjectRef{Kind: api.KindService, Name: name})
	}
	if !given {
		services, err := a.refs(ctx, d, api.KindService)
		if err != nil {
			return nil, err
		}
		rules, err := a.refs(ctx, d, api.KindFirewallRule, api.KindNAT)
		if err != nil {
			return nil, err
		}
		if len(services) > maxTop {
			return nil, fmt.Errorf("there are %s Services, and top looks at %s at most: name those that matter", count(uint64(len(services))), count(maxTop))
		}
		refs = append(append(refs, services...), rules[:min(len(rules), maxTop)]...)
	}
	for _, ref := range refs {
		c, err := a.counters(ctx, d, ref.Kind, ref.Name)
		if isNotFound(err) && !given {
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

// refs returns the names of all objects of kinds.
func (a *app) refs(ctx context.Context, d Daemon, kinds ...string) (refs []api.ObjectRef, err error) {
	for _, kind := range kinds {
		_, err := a.list(ctx, d, api.ListParams{Kind: kind}, func(objects []api.Object) error {
			for i := range objects {
				refs = append(refs, refOf(&objects[i]))
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

// per returns a rate. Counters that went back were made anew.
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

// firstOf returns at most limit rates, and how many are left out; 0: no limit.
func firstOf(all []rate, limit int) ([]rate, int) {
	if limit == 0 || len(all) <= limit {
		return all, 0
	}
	return all[:limit], len(all) - limit
}

func (a *app) printRates(r rates, limit int) error {
	var services, rules int // left out
	r.Services, services = firstOf(r.Services, limit)
	r.Rules, rules = firstOf(r.Rules, limit)
	if !a.isTable() {
		return a.printLine(r)
	}
	if a.Width() > 0 {
		a.printf("\x1b[H\x1b[2J") // to the top, and clear
	}
	t := a.table(column{title: "SERVICE", flexible: true}, column{title: "PACKETS/S", right: true}, column{title: "BITS/S", right: true},
		column{title: "NEW CONN/S", right: true}, column{title: "DROPS/S", right: true}, column{title: "ACTIVE", right: true, optional: 1})
	row := func(r *rate, active string) {
		name, color := r.Name, ""
		if name == "" {
			name = "(node)"
		}
		if r.Drops > 0 {
			color = red
		}
		t.add(cell{text: name}, cell{text: perSecond(r.Packets)}, cell{text: bits(r.Bytes * 8)},
			cell{text: perSecond(r.Connections)}, cell{text: perSecond(r.Drops), color: color}, cell{text: active})
	}
	row(&r.Node, "")
	for i := range r.Services {
		row(&r.Services[i], count(r.Services[i].Active))
	}
	t.flush()
	a.printLeftOut(services)
	t = a.table(column{title: "RULE", flexible: true}, column{title: "PACKETS/S", right: true}, column{title: "BITS/S", right: true},
		column{title: "NEW CONN/S", right: true})
	for i := range r.Rules {
		rule := &r.Rules[i]
		t.add(cell{text: rule.Name}, cell{text: perSecond(rule.Packets)}, cell{text: bits(rule.Bytes * 8)}, cell{text: perSecond(rule.Connections)})
	}
	a.section(t)
	a.printLeftOut(rules)
	return nil
}

func (a *app) printLeftOut(n int) {
	if n > 0 {
		a.printf("… and %d more; --limit 0 shows all\n", n)
	}
}

// perSecond writes a rate: 0, 0.5, 12, 1,234.
func perSecond(r float64) string {
	if r > 0 && r < 9.95 {
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return count(uint64(r + 0.5))
}

// bits writes a rate in bits with a decimal unit, as networks have them: 512,
// 1.5k, 20M, 9.8G.
func bits(r float64) string {
	unit := 0
	for r >= 999.5 && unit < len(" kMGTPE")-1 {
		r /= 1000
		unit++
	}
	digits := 0
	if unit > 0 && r < 9.95 {
		digits = 1
	}
	text := strconv.FormatFloat(r, 'f', digits, 64)
	if unit > 0 {
		text += string(" kMGTPE"[unit])
	}
	return text
}

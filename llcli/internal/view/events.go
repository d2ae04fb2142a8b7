// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// eventOptions are the flags of the `llcli events` command.
type eventOptions struct {
	count int
	of    string // KIND/NAME
	// past shows the events that the daemon has kept, since a time or, if it is zero, all of them.
	past   bool
	since  time.Time
	follow bool
	// layout is the format of times: with the date if past events may be from a different day.
	layout string
}

// allTopics is the word for every topic. defaultTopics leaves out connections, of which there may
// be thousands a second.
const allTopics = "all"

var defaultTopics = []string{api.TopicChanges, api.TopicStatus, api.TopicDrops, api.TopicFirewall, api.TopicPolicy}

// eventLine is an event in machine-readable form.
type eventLine struct {
	Time  time.Time       `json:"time"` // when llcli received it; for a past event, when it was published
	Topic string          `json:"topic"`
	Lost  uint64          `json:"lost,omitempty"`  // events lost just before this one
	Event json.RawMessage `json:"event,omitempty"` // absent: only Lost is reported
}

func eventsCommand(a *command.App) *cobra.Command {
	var options eventOptions
	var since string
	cmd := &cobra.Command{
		Use:     "events [TOPIC…]",
		Aliases: []string{"monitor"},
		Short:   "Show events as they occur",
		Long: `Show events as they occur, until interrupted; with --since, past events first. The topics are

  changes      objects that were created, updated or deleted
  status       changed states of objects and changed health of backends
  drops        dropped packets (a sample: the counters count all)
  firewall     packets that matched rules with log: true (a sample)
  policy       packets on which Policies with log decided (a sample)
  connections  connections that began or ended (a sample)
  all          all of these

Without a topic, all topics except connections are shown. With --of, all topics with events
that name the object are shown; events of a rule, a NAT, a Service, an Endpoint or a Peer are
found by its name, events of an Interface, a Bridge or a Tunnel also by its devices.

The daemon keeps the latest 2000 events of each topic since its start; of drops, firewall,
policy and connections, at most 5 per second. --follow=false shows these and exits.

Lost events are reported. JSON output has one event per line.`,
		Example:   "  llcli events\n  llcli events --since 10m\n  llcli events status --since 14:30 --follow=false\n  llcli events drops --of service/web\n  llcli events drops --of pod/shop/web-1\n  llcli events changes -o json",
		Args:      topicsOnly,
		ValidArgs: append(slices.Clone(api.Topics), allTopics),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, topics []string) error {
			if options.count < 0 {
				return command.Usagef("--count %d: want 0 (no end) or more", options.count)
			}
			topics, err := options.topics(topics)
			if err == nil {
				err = options.readSince(since, a.Now)
			}
			if err != nil {
				return err
			}
			return showEvents(ctx, a, d, topics, options)
		}),
	}
	cmd.Flags().IntVar(&options.count, "count", 0, "end after `N` events; 0: when interrupted")
	cmd.Flags().StringVar(&options.of, "of", "", "only events of this object: `KIND/NAME`; of a pod or a service of Kubernetes KIND/NAMESPACE/NAME")
	cmd.Flags().StringVar(&since, "since", "", "begin with the events since `TIME`: 10m ago, at 14:30, or at \"2006-01-02 15:04\"")
	cmd.Flags().BoolVarP(&options.follow, "follow", "f", true, "wait for further events; --follow=false ends after the past events")
	command.Must(cmd.RegisterFlagCompletionFunc("since", cobra.NoFileCompletions))
	command.Must(cmd.RegisterFlagCompletionFunc("count", cobra.NoFileCompletions))
	command.Must(cmd.RegisterFlagCompletionFunc("of", kinds.CompleteRef(a)))
	return cmd
}

// readSince reads the flag --since and chooses how times are written.
func (o *eventOptions) readSince(text string, clock func() time.Time) (err error) {
	o.past, o.layout = text != "" || !o.follow, "15:04:05"
	if !o.past {
		return nil
	}
	now := clock()
	if text != "" {
		o.since, err = parseSince(text, now)
	}
	if o.since.In(now.Location()).Format(time.DateOnly) != now.Format(time.DateOnly) {
		o.layout = "2006-01-02 15:04:05"
	}
	return err
}

// topics returns the topics to show, of those that were named.
func (o *eventOptions) topics(named []string) ([]string, error) {
	all := slices.Contains(named, allTopics)
	word, name, slash := strings.Cut(o.of, "/")
	switch {
	case o.of == "" && all:
		return api.Topics, nil
	case o.of == "" && len(named) == 0:
		return defaultTopics, nil
	case o.of == "":
		return named, nil
	case !slash || word == "" || name == "":
		return nil, command.Usagef("--of %s: want KIND/NAME, such as service/web", o.of)
	case all:
		named = nil
	}
	return topicsAbout(o.of, named)
}

func topicsOnly(_ *cobra.Command, args []string) error {
	for _, topic := range args {
		if topic != allTopics && !slices.Contains(api.Topics, topic) {
			return command.Usagef("topic %q: want %s, or %s", topic, strings.Join(api.Topics, ", "), allTopics)
		}
	}
	return nil
}

// showEvents shows events until the user interrupts. If the daemon stops in the meantime,
// showEvents reports that and waits for the daemon.
func showEvents(ctx context.Context, a *command.App, d command.Daemon, topics []string, options eventOptions) error {
	shown := 0
	out := command.Outage{App: a}
	for first := true; ; first = false {
		err := subscribed(ctx, a, d, topics, options, &shown, &out)
		if options.past && shown > 0 {
			options.since = a.Now() // for the next connection: no event is shown twice
		}
		switch {
		case ctx.Err() != nil || err == nil:
			return nil
		case !command.IsUnreachable(err) || first && shown == 0 && !isBroken(err):
			return err
		}
		out.Tell(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// subscribed shows the events of one connection. It returns an error when the connection ends, but
// not after the requested number of events.
func subscribed(ctx context.Context, a *command.App, d command.Daemon, topics []string, options eventOptions, shown *int, out *command.Outage) error {
	events, err := d.Events(ctx, topics...)
	if err != nil {
		return err
	}
	out.Over()
	defer events.Close()
	of, err := newEventsOf(ctx, a, d, &options)
	if err != nil {
		return err
	}
	var seen map[string]uint64
	show := func(at time.Time, e *client.Event) (done bool, err error) {
		if e.Data != nil && (e.Seq != 0 && e.Seq <= seen[e.Topic] || !of.concerns(ctx, e)) {
			e.Data = nil
		}
		if e.Lost == 0 && e.Data == nil {
			return false, nil
		}
		if err := printEvent(a, at, e, options.layout); err != nil {
			return false, err
		}
		if e.Data != nil {
			*shown++
		}
		return *shown == options.count && options.count > 0, a.Flush()
	}
	if options.past {
		last, done, err := pastEvents(ctx, a, d, topics, &options, show)
		if err == nil && !options.follow && *shown == 0 && a.IsTable() {
			a.NoneFound("events")
		}
		if seen = last; err != nil || done || !options.follow {
			return err
		}
	}
	for {
		event, err := events.Next(ctx)
		if err != nil {
			return &brokenError{err}
		}
		if done, err := show(a.Now(), &event); done || err != nil {
			return err
		}
	}
}

// brokenError reports the end of a connection that worked.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

func isBroken(err error) bool {
	_, ok := errors.AsType[*brokenError](err)
	return ok
}

func printEvent(a *command.App, when time.Time, e *client.Event, layout string) error {
	if !a.IsTable() {
		return a.PrintLine(eventLine{Time: when, Topic: e.Topic, Lost: e.Lost, Event: e.Data})
	}
	at := when.Format(layout)
	paint := a.Painter()
	if e.Lost > 0 {
		a.Printf("%s  %-11s  %s\n", at, e.Topic, paint.Paint(output.Yellow, output.Plural(e.Lost, "event")+" lost"))
	}
	if e.Data == nil {
		return nil
	}
	text, color, err := eventText(e)
	if err != nil {
		return err
	}
	a.Printf("%s  %-11s  %s\n", at, e.Topic, paint.Paint(color, output.Clean(text)))
	return nil
}

// packetText describes a packet by its parsed fields.
func packetText(p *api.Packet) string {
	switch p.Protocol {
	case "":
		return "a frame"
	case "arp":
		return fmt.Sprintf("ARP of %s for %s", p.Source, p.Destination)
	default:
		return fmt.Sprintf("%s %s > %s", p.Protocol, p.Source, p.Destination)
	}
}

// eventText writes an event in human-readable form.
func eventText(e *client.Event) (text, color string, err error) {
	switch e.Topic {
	case api.TopicChanges:
		var v api.ChangeEvent
		err = e.Decode(&v)
		return fmt.Sprintf("%s/%s %s at revision %d", v.Kind, v.Name, v.Action, v.Revision), output.ActionColor(v.Action), err
	case api.TopicStatus:
		var v api.StatusEvent
		err = e.Decode(&v)
		of := v.Kind + "/" + v.Name
		if v.Kind == "" {
			return fmt.Sprintf("confirmation of revision %d: %s%s", v.Revision, v.State, output.Prefixed(": ", v.Message)), output.ConfirmColor(v.State), err
		}
		if v.Backend != "" {
			of += " backend " + v.Backend
		}
		return fmt.Sprintf("%s is %s%s", of, v.State, output.Prefixed(": ", v.Message)), output.StateColor(v.State), err
	case api.TopicDrops:
		var v api.DropEvent
		err = e.Decode(&v)
		return fmt.Sprintf("%s: %s, %d bytes, %s of %s%s", v.Reason, packetText(&v.Packet), v.Length, v.Hook, v.Device, output.Prefixed(", endpoint ", v.Endpoint)+output.Prefixed(", service ", v.Service)+output.Prefixed(", rule ", v.Rule)+policyText(v.Policy)), "", err
	case api.TopicFirewall:
		var v api.FirewallEvent
		err = e.Decode(&v)
		return fmt.Sprintf("%s by rule %s: %s %s > %s, %d bytes, %s of %s", v.Action, v.Rule, v.Protocol, v.Source, v.Destination,
			v.Length, v.Hook, v.Device), "", err
	case api.TopicPolicy:
		var v api.PolicyEvent
		err = e.Decode(&v)
		text := fmt.Sprintf("%s: %s, %d bytes%s", v.Action, packetText(&v.Packet), v.Length, policyText(&v.DecidingRule))
		if v.Count > 1 {
			text += fmt.Sprintf(", %s such packets", output.Count(v.Count))
		}
		return text, "", err
	case api.TopicConnections:
		var v api.ConnectionEvent
		err = e.Decode(&v)
		text := fmt.Sprintf("%s: %s %s > %s%s%s", v.Action, v.Protocol, v.Original.Source, v.Original.Destination,
			output.Prefixed(", backend ", v.Backend), output.Prefixed(", service ", v.Service))
		if v.Action == "closed" {
			text += fmt.Sprintf(", after %s, sent %s, received %s", output.Short(v.Age), output.Bytes(v.Sent.Bytes), output.Bytes(v.Received.Bytes))
		}
		return text, "", err
	default:
		return string(e.Data), "", nil
	}
}

// policyText returns which policy decided about a packet.
func policyText(p *api.DecidingRule) string {
	switch {
	case p == nil:
		return ""
	case p.Policy == "":
		return fmt.Sprintf(", no entity for endpoint %s", p.Endpoint)
	}
	of := "endpoint " + p.Endpoint
	if p.Endpoint == api.PolicyNode {
		of = "the node"
	}
	text := fmt.Sprintf(", %s of %s by policy %s%s, tier %s", p.Direction, of, p.Policy, output.Prefixed(" rule ", p.Rule), p.Tier)
	if len(p.FormerNames) > 0 {
		text += fmt.Sprintf(", the address no longer belongs to %s", strings.Join(p.FormerNames, ", "))
	}
	return text
}

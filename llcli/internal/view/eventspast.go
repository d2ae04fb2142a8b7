// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/command"
)

// parseSince parses a point in time in the past: a duration, a time of day, or a date and time. A
// time of day means today, or yesterday if it is still to come today.
func parseSince(text string, now time.Time) (time.Time, error) {
	if days, ok := command.Days(text); ok {
		return now.AddDate(0, 0, -days), nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			t = time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			if t.After(now) {
				t = t.AddDate(0, 0, -1)
			}
			return t, nil
		}
	}
	return time.Time{}, command.Usagef("--since %q: want how long ago (10m, 2h, 1d), a time of day (15:04) "+
		"or a date and time (2006-01-02 15:04)", text)
}

// pastEvents shows the events that the daemon has kept. It returns the number of the last event of
// each topic: events of the subscription up to that number have been shown. The subscription begins
// earlier, so that no event is lost in between.
func pastEvents(ctx context.Context, a *command.App, d command.Daemon, topics []string, o *eventOptions,
	show func(at time.Time, e *client.Event) (done bool, err error)) (last map[string]uint64, done bool, err error) {
	last = map[string]uint64{}
	params := api.EventsListParams{Topics: topics}
	if !o.since.IsZero() {
		params.Since = o.since.UTC().Format(time.RFC3339Nano)
	}
	clock := a.Now().Location()
	for first := true; first || params.Continue != ""; first = false {
		var page api.EventsListResult
		if err := d.Call(ctx, api.MethodEventsList, params, &page); err != nil {
			return nil, false, err
		}
		if first && !o.since.IsZero() {
			noteIncomplete(a, topics, o, clock, page.Complete)
		}
		for _, item := range page.Items {
			at, err := time.Parse(time.RFC3339, item.Time)
			var number api.Event
			if err == nil {
				err = json.Unmarshal(item.Event, &number)
			}
			if err != nil {
				return nil, false, err
			}
			last[item.Topic] = number.Seq
			e := &client.Event{Topic: item.Topic, Seq: number.Seq, Data: item.Event}
			if done, err := show(at.In(clock), e); done || err != nil {
				return last, done, err
			}
		}
		params.Continue = page.Continue
	}
	return last, false, nil
}

// noteIncomplete reports the topics whose earlier events are no longer known.
func noteIncomplete(a *command.App, topics []string, o *eventOptions, clock *time.Location, complete map[string]string) {
	var times []string
	missing := map[string][]string{}
	for _, topic := range topics {
		at, err := time.Parse(time.RFC3339, complete[topic])
		if err != nil || !at.After(o.since) {
			continue
		}
		text := at.In(clock).Format(o.layout)
		if missing[text] == nil {
			times = append(times, text)
		}
		missing[text] = append(missing[text], topic)
	}
	slices.Sort(times)
	for _, text := range times {
		if len(missing[text]) == len(topics) && len(topics) > 1 {
			a.Note("events before %s are not kept", text)
			continue
		}
		a.Note("events of %s before %s are not kept", strings.Join(missing[text], ", "), text)
	}
}

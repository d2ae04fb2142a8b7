// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/command"
)

// testEvents returns the events that the test daemon sends before the user interrupts llcli.
func testEvents(t *testing.T) []client.Event {
	t.Helper()
	connection := testConnections()[0]
	events := []client.Event{
		event(t, api.TopicChanges, &api.ChangeEvent{Event: api.Event{Seq: 7}, Revision: 43, Kind: "Service", Name: "web", Action: "updated"}),
		event(t, api.TopicStatus, &api.StatusEvent{Event: api.Event{Seq: 1}, Kind: "Service", Name: "web", State: "unhealthy",
			Message: "connection refused", Backend: "10.0.1.2:8080"}),
		event(t, api.TopicStatus, &api.StatusEvent{Event: api.Event{Seq: 2}, Kind: "Interface", Name: "eth0", State: "Error", Message: "eth0 is gone"}),
		event(t, api.TopicDrops, &api.DropEvent{Event: api.Event{Seq: 12}, Reason: "no_backend", Service: "web", Length: 74,
			Packet: api.Packet{Device: "eth0", Hook: "ingress", Protocol: "tcp", Tuple: connection.Original}}),
		event(t, api.TopicConnections, &api.ConnectionEvent{Event: api.Event{Seq: 3}, Action: "opened", Connection: connection}),
		event(t, api.TopicConnections, &api.ConnectionEvent{Event: api.Event{Seq: 4}, Action: "closed", Connection: connection}),
		{Topic: api.TopicChanges, Seq: 9, Lost: 2},
	}
	events[3].Lost = 5
	return events
}

func event(t *testing.T, topic string, v any) client.Event {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var number api.Event
	if err := json.Unmarshal(raw, &number); err != nil {
		t.Fatal(err)
	}
	return client.Event{Topic: topic, Seq: number.Seq, Data: raw}
}

// Events implements Daemon.
func (d *testDaemon) Events(_ context.Context, topics ...string) (command.Events, error) {
	if d.away != nil {
		return nil, d.away
	}
	s := &testSubscription{daemon: d}
	for _, e := range d.events {
		if len(topics) == 0 || slices.Contains(topics, e.Topic) {
			s.events = append(s.events, e)
		}
	}
	return s, nil
}

// eventsList returns one event per page. The second status event is also the second event of the
// subscription.
func (d *testDaemon) eventsList(p api.EventsListParams) (any, *api.Error) {
	past := []api.PastEvent{
		{Time: "2026-03-03T23:59:59Z", Topic: "status", Event: []byte(`{"seq":0,"kind":"Service","name":"old","state":"Ready"}`)},
		{Time: "2026-03-04T04:00:01.5Z", Topic: "drops", Event: []byte(`{"seq":11,"reason":"no_backend","device":"eth0","hook":"ingress","service":"web","length":74}`)},
		{Time: "2026-03-04T05:06:01Z", Topic: "status", Event: []byte(`{"seq":1,"kind":"Service","name":"web","state":"Ready"}`)},
	}
	result := api.EventsListResult{Items: []api.PastEvent{}, Complete: map[string]string{}}
	for _, topic := range p.Topics {
		result.Complete[topic] = "2026-03-03T20:00:00Z"
	}
	if result.Complete["drops"] != "" {
		result.Complete["drops"] = "2026-03-04T04:00:00Z"
	}
	from := len(p.Continue)
	for i, e := range past {
		if i < from || p.Since != "" && e.Time < p.Since || !slices.Contains(p.Topics, e.Topic) {
			continue
		}
		result.Items = append(result.Items, e)
		result.Continue = "xxx"[:i+1]
		break
	}
	return result, nil
}

type testSubscription struct {
	daemon *testDaemon
	events []client.Event
}

// Next implements Events. After the last event the user interrupts llcli.
func (s *testSubscription) Next(ctx context.Context) (client.Event, error) {
	if len(s.events) == 0 {
		s.daemon.interrupt()
		<-ctx.Done()
		return client.Event{}, ctx.Err()
	}
	e := s.events[0]
	s.events = s.events[1:]
	return e, nil
}

// Close implements Events.
func (s *testSubscription) Close() {}

// Watch implements Daemon: it yields the existing objects, then deletes the last one, and the user
// interrupts llcli; if quiet is set, nothing more happens.
func (d *testDaemon) Watch(ctx context.Context, o client.WatchOptions) iter.Seq2[client.Watched, error] {
	return func(yield func(client.Watched, error) bool) {
		if d.away != nil {
			yield(client.Watched{}, d.away)
			return
		}
		var last api.ObjectRef
		for _, ref := range slices.SortedFunc(maps.Keys(d.objects), func(a, b api.ObjectRef) int { return cmp.Compare(a.Name, b.Name) }) {
			object := d.objects[ref]
			if slices.Contains(o.Kinds, ref.Kind) && (o.Owner == "" || o.Owner == object.Owner) {
				if !yield(client.Watched{Ref: ref, Object: &object}, nil) {
					return
				}
				last = ref
			}
		}
		if !yield(client.Watched{Synced: true}, nil) {
			return
		}
		if d.quiet {
			<-ctx.Done()
			return
		}
		if last.Name != "" && yield(client.Watched{Ref: last}, nil) {
			d.interrupt()
			<-ctx.Done()
		}
	}
}

// changes keeps the last four revisions, and returns three changes per page.
func (d *testDaemon) changes(p api.ChangesParams) (any, *api.Error) {
	if p.Since+4 < d.revision {
		return api.ChangesResult{Revision: d.revision, Expired: true}, nil
	}
	result := api.ChangesResult{Revision: p.Since, Changes: []api.RevisedChange{}}
	for result.Revision < d.revision {
		if len(result.Changes) == 3 {
			result.More = true
			break
		}
		result.Revision++
		result.Changes = append(result.Changes, api.RevisedChange{
			Revision: result.Revision, ObjectChange: api.ObjectChange{Kind: "Service", Name: "web", Action: api.ActionUpdated}})
	}
	return result, nil
}

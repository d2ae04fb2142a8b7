// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// pastEvents reads all pages of events.list, with at most limit events per page.
func (h *harness) pastEvents(params string, limit int) (items []api.PastEvent, complete map[string]string) {
	h.t.Helper()
	from := ""
	for pages := 0; pages < 1000; pages++ {
		r := result[api.EventsListResult](h, "events.list",
			fmt.Sprintf(`{%s"limit":%d,"continue":%q}`, params, limit, from))
		items = append(items, r.Items...)
		if complete == nil {
			complete = r.Complete
		}
		if from = r.Continue; from == "" {
			return items, complete
		}
	}
	h.t.Fatal("the list has no end")
	return nil, nil
}

// TestPastEvents lists earlier events of two topics: in order, since a given time, for one topic
// only, and page by page.
func TestPastEvents(t *testing.T) {
	h := newHarness(t)
	begin := time.Now()
	for i := range 7 {
		key := state.Key{Kind: "Service", Name: fmt.Sprint("s", i)}
		h.StatusChanged(key, api.Status{State: api.StateReady})
		h.Server.publish(api.TopicChanges, &api.ChangeEvent{Kind: key.Kind, Name: key.Name, Action: "created"})
	}
	for _, limit := range []int{0, 1, 3} {
		items, complete := h.pastEvents("", limit)
		if len(items) != 14 || len(complete) != len(api.Topics) {
			t.Fatalf("limit %d: %d events, want 14; complete %v", limit, len(items), complete)
		}
		for i, e := range items {
			topic := []string{api.TopicStatus, api.TopicChanges}[i%2]
			name := fmt.Sprintf(`"name":"s%d"`, i/2)
			if e.Topic != topic || !strings.Contains(string(e.Event), name) {
				t.Errorf("limit %d: event %d is %s %s, want %s %s", limit, i, e.Topic, e.Event, topic, name)
			}
		}
	}
	if items, complete := h.pastEvents(`"topics":["changes"],`, 0); len(items) != 7 || len(complete) != 1 {
		t.Errorf("of topic changes: %d events, complete %v", len(items), complete)
	}
	if items, _ := h.pastEvents(`"since":"`+begin.Format(time.RFC3339Nano)+`",`, 0); len(items) != 14 {
		t.Errorf("since the begin: %d events", len(items))
	}
	if items, _ := h.pastEvents(`"since":"`+time.Now().Add(time.Hour).Format(time.RFC3339)+`",`, 0); len(items) != 0 {
		t.Errorf("of the future: %d events", len(items))
	}
	for _, c := range [][2]string{
		{`{"since":"10m"}`, "since"}, {`{"topics":["nothing"]}`, "topics[0]"},
		{`{"limit":-1}`, "limit"}, {`{"continue":"x"}`, "continue"},
	} {
		h.wantError("events.list", c[0], api.ReasonInvalid.Code(), "", c[1], "")
	}
}

// TestPastEventsAreBounded: old events are removed, which the reply reports, and only a limited
// number of samples is kept per second.
func TestPastEventsAreBounded(t *testing.T) {
	h := newHarness(t)
	at := time.Now().Add(-time.Hour)
	send := func(string, Event) error { return nil }
	for i := range pastLimit + 100 {
		e := &api.ChangeEvent{Name: fmt.Sprint(i)}
		if err := h.past.publish(api.TopicChanges, e, at.Add(time.Duration(i)*time.Second), send); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		if err := h.past.publish(api.TopicDrops, &api.DropEvent{}, at, send); err != nil {
			t.Fatal(err)
		}
	}
	items, complete := h.pastEvents(`"topics":["changes"],`, 0)
	if len(items) != pastLimit || !strings.Contains(string(items[0].Event), `"name":"100"`) {
		t.Errorf("%d events, the first %s", len(items), items[0].Event)
	}
	if want := at.Add(99 * time.Second).UTC().Format(time.RFC3339Nano); complete[api.TopicChanges] != want {
		t.Errorf("changes are complete since %s, want %s", complete[api.TopicChanges], want)
	}
	if items, _ := h.pastEvents(`"topics":["drops"],`, 0); len(items) != pastRate {
		t.Errorf("%d of 1000 drops of one second are kept, want %d", len(items), pastRate)
	}
}

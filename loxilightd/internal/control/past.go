// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
)

// pastLimit is how many events of each topic are kept. For topics with samples, pastRate is how
// many events from the same second are kept, so that a flood of packets does not push out older
// events.
const pastLimit, pastRate = 2000, 5

// sampledTopics are the topics whose events are samples of packets and connections.
var sampledTopics = []string{api.TopicDrops, api.TopicConnections, api.TopicFirewall, api.TopicPolicy}

// pastEvents keeps the latest events of each topic for later requests. It is safe for concurrent
// use; the zero value keeps nothing.
type pastEvents struct {
	mu     sync.Mutex
	begin  time.Time
	serial uint64 // serial number of the latest event that was kept
	topics map[string]*pastTopic
}

// pastTopic is a ring: events[next] is the oldest event once the ring is full.
type pastTopic struct {
	events   []pastEvent
	next     int
	complete time.Time // all later events are kept; zero: all since the start
	second   int64     // second of the latest event; kept counts the events in that second
	kept     int
}

type pastEvent struct {
	serial uint64
	at     time.Time
	event  Event
}

func newPastEvents(begin time.Time) *pastEvents {
	p := &pastEvents{begin: begin, topics: map[string]*pastTopic{}}
	for _, topic := range api.Topics {
		p.topics[topic] = &pastTopic{}
	}
	return p
}

// publish publishes an event and keeps it. Events are kept in the order of their numbers.
func (p *pastEvents) publish(topic string, event Event, now time.Time, send func(string, Event) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := send(topic, event); err != nil {
		return err
	}
	t := p.topics[topic]
	if t == nil {
		return nil
	}
	if second := now.Unix(); second != t.second {
		t.second, t.kept = second, 0
	}
	if t.kept++; t.kept > pastRate && slices.Contains(sampledTopics, topic) {
		return nil
	}
	p.serial++
	e := pastEvent{serial: p.serial, at: now, event: event}
	if len(t.events) < pastLimit {
		t.events = append(t.events, e)
		return nil
	}
	t.complete = t.events[t.next].at
	t.events[t.next] = e
	t.next = (t.next + 1) % pastLimit
	return nil
}

// list returns the topics' events since the given time whose serial numbers are greater than
// behind, oldest first, and the time since which each topic is complete.
func (p *pastEvents) list(topics []string, since time.Time, behind uint64) (all []topicEvent, complete map[string]time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	complete = map[string]time.Time{}
	for _, topic := range topics {
		t := p.topics[topic]
		complete[topic] = t.complete
		if t.complete.IsZero() {
			complete[topic] = p.begin
		}
		for _, e := range t.events {
			if e.serial > behind && !e.at.Before(since) {
				all = append(all, topicEvent{e, topic})
			}
		}
	}
	slices.SortFunc(all, func(a, b topicEvent) int { return cmp.Compare(a.serial, b.serial) })
	return all, complete
}

type topicEvent struct {
	pastEvent
	topic string
}

// eventsList answers with earlier events.
func (s *Server) eventsList(_ context.Context, _ Caller, p *api.EventsListParams) (any, *api.Error) {
	var since time.Time
	var behind uint64
	var err error
	if p.Limit < 0 {
		return nil, invalid("limit", "%d is negative", p.Limit)
	}
	if p.Since != "" {
		if since, err = time.Parse(time.RFC3339, p.Since); err != nil {
			return nil, invalid("since", "%q is not a time such as 2026-03-04T05:06:07Z", decode.Shorten(p.Since))
		}
	}
	if p.Continue != "" {
		if behind, err = strconv.ParseUint(p.Continue, 10, 63); err != nil {
			return nil, invalid("continue", "%q is not a continue value of this request", decode.Shorten(p.Continue))
		}
	}
	topics := p.Topics
	if len(topics) == 0 {
		topics = api.Topics
	}
	for i, topic := range topics {
		if !slices.Contains(api.Topics, topic) {
			return nil, invalid("topics["+strconv.Itoa(i)+"]", "%q is not a topic: want one of %q", decode.Shorten(topic), api.Topics)
		}
	}
	topics = slices.Compact(slices.Sorted(slices.Values(topics)))
	all, complete := s.past.list(topics, since, behind)
	result := &api.EventsListResult{Items: []api.PastEvent{}, Complete: map[string]string{}}
	for topic, at := range complete {
		result.Complete[topic] = at.UTC().Format(time.RFC3339Nano)
	}
	size := 512
	for _, e := range all {
		text, err := json.Marshal(e.event)
		if err != nil {
			return nil, api.FromError(err)
		}
		item := api.PastEvent{Time: e.at.UTC().Format(time.RFC3339Nano), Topic: e.topic, Event: text}
		if size += sizeOfJSON(item); len(result.Items) > 0 && (size > maxPage || len(result.Items) == p.Limit) {
			result.Continue = strconv.FormatUint(behind, 10)
			break
		}
		result.Items, behind = append(result.Items, item), e.serial
	}
	return result, nil
}

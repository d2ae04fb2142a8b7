// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.nanomsg.org/mangos/v3"
	"go.nanomsg.org/mangos/v3/protocol/sub"

	"github.com/loxilight/loxilight/api"
)

// Event is one message of a [Subscription].
type Event struct {
	Topic string
	Seq   uint64
	// Lost counts the lost events of the topic between the previous event and this one.
	Lost uint64
	// Data is the event's JSON object. Nil: there is no event, only Lost.
	Data json.RawMessage
}

// Decode decodes the event into the type of its topic, such as [api.ChangeEvent].
func (e *Event) Decode(v any) error {
	if err := json.Unmarshal(e.Data, v); err != nil {
		return fmt.Errorf("event %s %d: %w", e.Topic, e.Seq, err)
	}
	return nil
}

// Subscription is one connection to the daemon's events. Close may be called
// at any time; the other methods are for one goroutine at a time.
type Subscription struct {
	path   string
	pipe   mangos.TranPipe
	topics []string
	queue  chan message // the oldest makes room for the newest
	last   map[string]uint64
	told   []Event // returned before the events in the queue
}

type message struct {
	topic string
	data  json.RawMessage
}

// eventQueue is how many events wait for Next before the oldest is dropped.
const eventQueue = 4096

// Subscribe connects to the daemon's events. Everything that happens after it has returned arrives
// as an event if its topic is among topics (without topics: always), or is counted as lost: a
// client that reads the state now and continues with [Subscription.Next] notices every event that
// it misses. The errors are those that [Dial] returns.
func (c *Client) Subscribe(ctx context.Context, topics ...string) (*Subscription, error) {
	ctx, cancel := c.bound(ctx, 0)
	defer cancel()
	for _, t := range topics {
		if !slices.Contains(api.Topics, t) {
			return nil, fmt.Errorf("topic %q: want one of %q", t, api.Topics)
		}
	}
	if len(topics) == 0 {
		topics = api.Topics
	}
	sock, err := sub.NewSocket()
	if err != nil {
		return nil, fmt.Errorf("new SUB socket: %w", err)
	}
	info := sock.Info()
	_ = sock.Close() // needed only for its protocol: the socket would drop events and not report that the daemon has exited
	nc, err := dialUnix(ctx, c.events)
	if err != nil {
		return nil, err
	}
	p, err := handshake(ctx, c.events, nc, info, api.MaxRequest)
	if err != nil {
		_ = nc.Close() // nothing was sent
		return nil, err
	}
	s := &Subscription{path: c.events, pipe: p.TranPipe, topics: topics, queue: make(chan message, eventQueue)}
	if err := s.greeting(ctx); err != nil {
		s.Close()
		return nil, err
	}
	go s.read()
	return s, nil
}

// greeting reads the first message, which contains the numbers of earlier events.
func (s *Subscription) greeting(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.Close)
	m, err := s.receive()
	if !stop() && ctx.Err() != nil {
		return &Error{Socket: s.path, kinds: []error{ErrNotAnswering}, cause: ctx.Err(), hint: "it sent no hello event: see its log"}
	}
	if err != nil {
		return s.ended()
	}
	last, err := lastOf(m)
	if m.topic != api.TopicHello || err != nil {
		return fmt.Errorf("socket %s: the first event is %q, not %q: is the daemon older than the client? %w",
			s.path, m.topic, api.TopicHello, errors.Join(err))
	}
	s.last = last
	return nil
}

func lastOf(m message) (map[string]uint64, error) {
	var hello api.HelloEvent
	err := json.Unmarshal(m.data, &hello)
	last := maps.Clone(hello.Last)
	if last == nil {
		last = map[string]uint64{}
	}
	return last, err
}

func (s *Subscription) ended() error {
	return &Error{Socket: s.path, kinds: []error{ErrNotAnswering}, cause: errBroken,
		hint: "it stopped, or disconnected a subscriber that did not read; later events are lost"}
}

func (s *Subscription) receive() (message, error) {
	m, err := s.pipe.Recv()
	if err != nil {
		return message{}, err
	}
	topic, data, _ := bytes.Cut(m.Body, []byte(" "))
	return message{string(topic), bytes.Clone(data)}, nil // mangos reuses the message
}

// read moves events from the connection to the queue until the daemon closes the connection.
func (s *Subscription) read() {
	defer close(s.queue)
	for {
		m, err := s.receive()
		if err != nil {
			return
		}
		if m.topic != api.TopicHello && !slices.Contains(s.topics, m.topic) {
			continue
		}
		for queued := false; !queued; {
			select {
			case s.queue <- m:
				queued = true
			default:
				select { // Next may have made room in the meantime
				case <-s.queue:
				default:
				}
			}
		}
	}
}

// Next waits for the next event. The error is ctx's, or [ErrNotAnswering] when the connection has
// ended: then subscribe and read the state again.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		if len(s.told) > 0 {
			e := s.told[0]
			s.told = s.told[1:]
			return e, nil
		}
		select {
		case m, ok := <-s.queue:
			if !ok {
				return Event{}, s.ended()
			}
			if err := s.count(m); err != nil {
				return Event{}, err
			}
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// pending reports whether Next would most likely return without waiting.
func (s *Subscription) pending() bool { return len(s.told) > 0 || len(s.queue) > 0 }

// count compares a message's number with the previous one of its topic.
func (s *Subscription) count(m message) error {
	if m.topic == api.TopicHello { // repeated, so that the loss of the last events is noticed
		last, err := lastOf(m)
		if err != nil {
			return fmt.Errorf("socket %s: %s: %w", s.path, m.topic, err)
		}
		for _, topic := range s.topics {
			if last[topic] > s.last[topic] {
				s.told = append(s.told, Event{Topic: topic, Seq: last[topic], Lost: last[topic] - s.last[topic]})
				s.last[topic] = last[topic]
			}
		}
		return nil
	}
	var number api.Event
	if err := json.Unmarshal(m.data, &number); err != nil {
		return fmt.Errorf("socket %s: event %s: %w", s.path, m.topic, err)
	}
	e := Event{Topic: m.topic, Seq: number.Seq, Data: m.data}
	if last := s.last[m.topic]; number.Seq > last {
		e.Lost = number.Seq - last - 1
		s.last[m.topic] = number.Seq
	}
	s.told = append(s.told, e)
	return nil
}

// Close closes the connection.
func (s *Subscription) Close() { _ = s.pipe.Close() } // there is no unsent data

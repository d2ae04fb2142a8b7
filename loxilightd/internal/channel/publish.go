// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"go.nanomsg.org/mangos/v3"

	"github.com/loxilight/loxilight/api"
)

// Numbered is an event that can be numbered: a pointer to one of the event types in package api,
// which have SetSeq from [api.Event].
type Numbered interface{ SetSeq(seq uint64) }

// publisher numbers the events of each topic from 1, without gaps.
type publisher struct {
	sock mangos.Socket // set before the first event

	mu  sync.Mutex // held while sending, so that events are sent in the order of their numbers
	seq map[string]uint64

	latest    time.Time // when the last event was published
	repeating bool      // the hello will be repeated
}

// The hello is repeated every helloEvery, until helloUntil after the last event: otherwise a
// subscriber that was too slow to receive the last events would not detect the gap.
const helloEvery, helloUntil = time.Second, 10 * time.Second

// publish sends one event. An event that cannot be encoded uses no number.
func (p *publisher) publish(topic string, event Numbered) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	seq := p.seq[topic] + 1
	event.SetSeq(seq)
	body, err := encodeEvent(topic, event)
	if err != nil {
		return err
	}
	msg := mangos.NewMessage(0)
	msg.Body = body
	if err := p.sock.SendMsg(msg); err != nil {
		return fmt.Errorf("event %s: send: %w", topic, err)
	}
	p.took(topic, seq)
	return nil
}

// took records that seq, which the hello will report, has been used. The caller holds mu.
func (p *publisher) took(topic string, seq uint64) {
	p.seq[topic] = seq
	p.latest = time.Now()
	if !p.repeating {
		p.repeating = true
		time.AfterFunc(helloEvery, p.repeat)
	}
}

// repeat sends the hello to all subscribers for as long as necessary.
func (p *publisher) repeat() {
	body, err := p.hello()
	if err == nil {
		msg := mangos.NewMessage(0)
		msg.Body = body
		err = p.sock.SendMsg(msg)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repeating = err == nil && time.Since(p.latest) < helloUntil // an error: the socket is closed
	if p.repeating {
		time.AfterFunc(helloEvery, p.repeat)
	}
}

// hello returns the first message for a new subscriber. Events published in the meantime follow the
// hello, and may include events that the hello already counts.
func (p *publisher) hello() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return encodeEvent(api.TopicHello, api.HelloEvent{Last: p.seq})
}

func encodeEvent(topic string, event any) ([]byte, error) {
	body, err := json.Marshal(event)
	if err != nil {
		return nil, fmt.Errorf("event %s: encode: %w", topic, err)
	}
	return append([]byte(topic+" "), body...), nil
}

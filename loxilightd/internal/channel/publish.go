// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"encoding/json"
	"fmt"
	"sync"

	"go.nanomsg.org/mangos/v3"
)

// Numbered is an event that can be given its number, as all events of package api.
type Numbered interface{ SetSeq(seq uint64) }

// publisher numbers the events of each topic from 1, without gaps.
type publisher struct {
	sock mangos.Socket

	mu  sync.Mutex // held while sending, so that events leave in the order of their numbers
	seq map[string]uint64
}

// publish sends one event. Events that fail to encode take no number.
func (p *publisher) publish(topic string, event Numbered) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seq == nil {
		p.seq = map[string]uint64{}
	}
	seq := p.seq[topic] + 1
	event.SetSeq(seq)
	body, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("event %s: encode: %w", topic, err)
	}
	msg := mangos.NewMessage(len(topic) + 1 + len(body))
	msg.Body = append(msg.Body, topic...)
	msg.Body = append(msg.Body, ' ')
	msg.Body = append(msg.Body, body...)
	if err := p.sock.SendMsg(msg); err != nil {
		return fmt.Errorf("event %s: send: %w", topic, err)
	}
	p.seq[topic] = seq
	return nil
}

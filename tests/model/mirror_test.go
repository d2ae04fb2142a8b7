// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// monitorCount is the number of devices that receive copies. Each of them belongs to at most one
// Mirror.
const monitorCount = 2

func monitor(i int) string { return fmt.Sprintf("mon%d", i) }

// mirror copies packets. It does not change what happens to them, so the oracle does not know it.
type mirror struct {
	name    string
	port    int    // whose packets are copied; -1: those of the service or rule
	service string // of its connections
	rule    string // of the connections that it allows
	in, out bool
	match   match
	snaplen int // 0: whole
	target  int
}

func (m *mirror) spec() api.MirrorSpec {
	spec := api.MirrorSpec{Snaplen: m.snaplen, To: api.MirrorTarget{Device: monitor(m.target)}, Match: m.match.spec()}
	switch {
	case m.service != "":
		spec.Source.Service = m.service
	case m.rule != "":
		spec.Source.Rule = m.rule
	default:
		spec.Source.Interface = device(m.port)
	}
	switch {
	case !m.out:
		spec.Direction = "in"
	case !m.in:
		spec.Direction = "out"
	}
	return spec
}

// randomMirrors returns mirrors of ports, and of services and rules of the configuration.
func randomMirrors(rng *rand.Rand, c *config) (all []*mirror) {
	for i := range 1 + rng.IntN(monitorCount) {
		m := &mirror{
			name: fmt.Sprintf("m%d", i), port: rng.IntN(portCount), in: true, out: true, target: i,
			snaplen: pick(rng, 0, 0, 96, 128, 1000),
		}
		switch rng.IntN(4) {
		case 0:
			m.in = false
		case 1:
			m.out = false
		}
		if rng.IntN(3) == 0 {
			full := randomMatch(rng, nil, false)
			m.match = match{src: full.src, dst: full.dst, protos: full.protos, ports: full.ports, sourcePorts: full.sourcePorts}
		}
		if of := rng.IntN(3); of == 0 && len(c.services) > 0 {
			m.port, m.service = -1, c.services[rng.IntN(len(c.services))].name
		} else if at := slices.IndexFunc(c.rules, func(r *rule) bool { return r.action == "allow" && !r.stateless }); of == 1 && at >= 0 {
			m.port, m.rule = -1, c.rules[at].name
		}
		all = append(all, m)
	}
	return all
}

// withoutLostMirrors returns the configuration without the mirrors whose source does not exist.
func (c *config) withoutLostMirrors() *config {
	d := *c
	d.mirrors = slices.DeleteFunc(slices.Clone(c.mirrors), func(m *mirror) bool {
		return m.service != "" && !slices.ContainsFunc(c.services, func(s *service) bool { return s.name == m.service }) ||
			m.rule != "" && !slices.ContainsFunc(c.rules, func(r *rule) bool { return r.name == m.rule })
	})
	return &d
}

// selects reports whether the match of a mirror applies to a frame.
func (m *mirror) selects(c *config, frame []byte) bool {
	k, isIP := tupleOf(frame)
	return isIP && c.matches(&m.match, -1, -1, &pkt{tuple: k})
}

// isCopy reports whether copied is a copy of a frame, cut to snaplen or, where the kernel refuses
// that, to the next longer length.
func (m *mirror) isCopy(frame, copied []byte) bool {
	if m.snaplen == 0 {
		return bytes.Equal(frame, copied)
	}
	isLength := func(n int) bool { return n >= m.snaplen && len(copied) == min(len(frame), n) }
	return bytes.HasPrefix(frame, copied) && slices.ContainsFunc([]int{m.snaplen, 128, 256}, isLength)
}

// arrival is a frame that was sent into the node, and what became of it.
type arrival struct {
	port   int
	frame  []byte
	left   []output   // the packet itself, and the node's answers
	before *direction // the connection to which it belonged before; nil: none
	judged verdict
}

// expected returns the copies that a mirror must make of an arrival, and those that it may make: for
// services and rules, only the packets of known connections of a service are certain.
func (m *mirror) expected(c *config, a *arrival) (must, may [][]byte) {
	if m.port >= 0 {
		if m.in && a.port == m.port && m.selects(c, a.frame) {
			must = append(must, a.frame)
		}
		for _, o := range a.left {
			if m.out && o.port == m.port && m.selects(c, o.frame) {
				must = append(must, o.frame)
			}
		}
		return must, nil
	}
	for _, o := range a.left {
		if m.selects(c, o.frame) {
			may = append(may, o.frame) // the node itself may have sent it
		}
	}
	if !m.selects(c, a.frame) {
		return nil, may
	}
	d := a.before
	certain := d != nil && !d.ended && d.service != "" && d.service == m.service && a.judged.accept != nil && !a.judged.silent &&
		(m.in && !d.reply || m.out && d.reply)
	if certain {
		return [][]byte{a.frame}, may
	}
	return nil, append(may, a.frame)
}

// checkCopies returns how the copies of an arrival differ from the expected ones.
func (s *site) checkCopies(c *config, a *arrival) error {
	for _, m := range c.mirrors {
		must, may := m.expected(c, a)
		got, err := s.copiesOf(m, a, must)
		if err != nil {
			return err
		}
		for _, frame := range must {
			i := slices.IndexFunc(got, func(copied []byte) bool { return m.isCopy(frame, copied) })
			if i < 0 {
				return fmt.Errorf("Mirror %s did not copy %s", m.name, describe([]output{{max(m.port, 0), frame}}, nil))
			}
			got = slices.Delete(got, i, i+1)
		}
		for _, copied := range got {
			i := slices.IndexFunc(may, func(frame []byte) bool { return m.isCopy(frame, copied) })
			if i < 0 {
				k, _ := tupleOf(copied)
				return fmt.Errorf("Mirror %s copied %s (%d bytes), and should not have, or not in this form", m.name, k, len(copied))
			}
			may = slices.Delete(may, i, i+1)
		}
	}
	return nil
}

// copiesOf returns the copies of an arrival that a mirror made. It waits until there are as many as
// there must be.
func (s *site) copiesOf(m *mirror, a *arrival, must [][]byte) (got [][]byte, err error) {
	mark := markOf(a.frame)
	concerns := func(frame []byte) bool {
		if len(frame) > 54 && frame[12] == 0x86 && frame[20] == testpkt.ProtoICMPv6 && frame[54] == 137 {
			return false // a redirect
		}
		return mark != "" && markOf(frame) == mark || m.isCopy(a.frame, frame) ||
			slices.ContainsFunc(a.left, func(o output) bool { return m.isCopy(o.frame, frame) })
	}
	for deadline := time.Now().Add(time.Second); ; time.Sleep(100 * time.Microsecond) {
		err := s.monitors[m.target].Receive(func(frame []byte) {
			if concerns(frame) {
				got = append(got, bytes.Clone(frame))
			}
		})
		if err != nil || len(got) >= len(must) || time.Now().After(deadline) {
			return got, err
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Timeouts in ticks. See [datapath.UnansweredTimeout] and the constants after it.
var (
	unansweredTimeout    = kernel.TicksOf(datapath.UnansweredTimeout)
	handshakeTimeout     = kernel.TicksOf(datapath.HandshakeTimeout)
	exchangeTimeout      = kernel.TicksOf(datapath.ExchangeTimeout)
	oneWayTimeout        = kernel.TicksOf(datapath.OneWayTimeout)
	finTimeout           = kernel.TicksOf(datapath.FINTimeout)
	finLongest           = kernel.TicksOf(datapath.FINLongest)
	timeWaitTimeout      = kernel.TicksOf(datapath.TimeWaitTimeout)
	closedTimeout        = kernel.TicksOf(datapath.ClosedTimeout)
	echoTimeout          = kernel.TicksOf(datapath.EchoTimeout)
	transitoryTimeout    = kernel.TicksOf(datapath.TransitoryTimeout)
	unansweredNATTimeout = kernel.TicksOf(datapath.UnansweredNATTimeout)
)

// plainIdle is the idle timeout of connections without a service.
var plainIdle = idleTicksOf(datapath.PlainIdleTimeout())

// idleTimeouts are the timeouts of all connections.
type idleTimeouts struct {
	services  map[uint32]idleTicks        // by id; 0: of connections without a service
	serviceOf func(backend uint32) uint32 // see [Options]
}

type idleTicks struct{ tcp, udp, sctp uint32 }

func idleTicksOf(t datapath.IdleTimeout) idleTicks {
	return idleTicks{kernel.TicksOf(t.TCP), kernel.TicksOf(t.UDP), kernel.TicksOf(t.SCTP)}
}

// of returns the timeout of a protocol.
func (t idleTicks) of(protocol datapath.Protocol) uint32 {
	switch protocol {
	case datapath.ICMP, datapath.ICMPv6:
		return echoTimeout
	case datapath.TCP:
		return t.tcp
	case datapath.SCTP:
		return t.sctp
	default:
		return t.udp
	}
}

// of returns the timeouts for a connection; ok is false if its service was deleted.
func (idle *idleTimeouts) of(m *kernel.CtMeta) (t idleTicks, ok bool) {
	if m.Flags&kernel.CtService == 0 {
		return idle.services[0], true
	}
	id := idle.serviceOf(m.BackendId)
	if id == 0 {
		return idleTicks{}, false
	}
	t, ok = idle.services[id]
	return t, ok
}

// ticksFor returns the number of idle ticks after which a connection expires, or 0 if it never
// expires because its service has not been configured yet in this run.
func (idle *idleTimeouts) ticksFor(m *kernel.CtMeta, protocol datapath.Protocol) uint32 {
	hasService := m.Flags&kernel.CtService != 0
	if m.NatId != 0 && !hasService {
		if t := translatedIdle(kernel.CtState(m.State), protocol); t != 0 {
			return t
		}
	}
	state := kernel.CtState(m.State)
	if state == kernel.CtStateCT_NEW && isLasting(m) { // the entry of the replies
		state = kernel.CtStateCT_ONE_WAY
	}
	switch state {
	case kernel.CtStateCT_NEW:
		return unansweredTimeout
	case kernel.CtStateCT_ONE_WAY:
		if t, ok := idle.of(m); ok {
			return min(oneWayTimeout, t.udp)
		}
		return closedTimeout
	case kernel.CtStateCT_ANSWERED:
		if protocol == datapath.UDP {
			if t, ok := idle.of(m); ok { // 0: unknown
				return min(exchangeTimeout, t.udp)
			}
			return closedTimeout
		}
		return handshakeTimeout
	case kernel.CtStateCT_FIN:
		if !hasService {
			return finTimeout
		}
		t, _ := idle.of(m)
		return max(finTimeout, min(finLongest, t.of(protocol)))
	case kernel.CtStateCT_TIME_WAIT:
		return timeWaitTimeout
	case kernel.CtStateCT_CLOSED, kernel.CtStateCT_ENDING:
		return closedTimeout
	}
	t, ok := idle.of(m)
	if !ok {
		return closedTimeout // its service was deleted
	}
	return t.of(protocol)
}

// unitsFor returns the idle time of an established connection as the programs need it; ok is false if
// it is unknown, or if the pass ends the connection since its service was deleted.
func (idle *idleTimeouts) unitsFor(m *kernel.CtMeta, protocol datapath.Protocol) (units uint16, ok bool) {
	times, _ := idle.of(m)
	t := times.of(protocol)
	return kernel.IdleUnits(kernel.DurationOf(t)), t != 0
}

// translatedIdle returns the idle time after which a translated connection expires if that time
// differs from the time for other connections; otherwise 0.
func translatedIdle(state kernel.CtState, protocol datapath.Protocol) uint32 {
	switch state {
	case kernel.CtStateCT_NEW, kernel.CtStateCT_ANSWERED, kernel.CtStateCT_FIN:
		if protocol == datapath.TCP {
			return transitoryTimeout
		}
		if protocol == datapath.UDP && state == kernel.CtStateCT_NEW {
			return unansweredNATTimeout
		}
	}
	return 0
}

// idleTimeouts returns the idle times that are in force.
func (o *Options) idleTimeouts() *idleTimeouts {
	times := o.IdleTimes()
	idle := &idleTimeouts{make(map[uint32]idleTicks, len(times)+1), o.ServiceOf}
	for id, t := range times {
		idle.services[id] = idleTicksOf(t)
	}
	idle.services[0] = plainIdle
	return idle
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// Timeouts that end connections besides the idle timeout of their service.
var (
	newTimeout      = ticksOf(30 * time.Second) // no answer
	answeredTimeout = ticksOf(60 * time.Second) // handshake not finished
	exchangeTimeout = ticksOf(30 * time.Second) // UDP: one request and its answers, no stream
	finTimeout      = ticksOf(120 * time.Second)
	finLongest      = ticksOf(time.Hour) // maximum for a service; its server may send on after FIN
	timeWaitTimeout = ticksOf(60 * time.Second)
	closedTimeout   = ticksOf(10 * time.Second)
	echoTimeout     = ticksOf(60 * time.Second) // ICMP (RFC 5508, section 3.2)
)

// plainIdle is the idle timeout of connections without a service: RFC 5382, section 5, for TCP, and
// RFC 4787, section 4.3, for UDP.
var plainIdle = idleTicks{
	tcp: ticksOf(2*time.Hour + 4*time.Minute), udp: ticksOf(5 * time.Minute), sctp: ticksOf(2*time.Hour + 4*time.Minute),
}

// idleTimeouts are the timeouts of the services, by id.
type idleTimeouts map[uint32]idleTicks

type idleTicks struct{ tcp, udp, sctp uint32 }

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

// idleFor returns the idle ticks after which a connection ends; 0: never, since its service is not
// configured yet in this run.
func (idle idleTimeouts) idleFor(m *kernelCtMeta, proto uint8) uint32 {
	if m.NatId != 0 && m.ServiceId == 0 {
		if t := translatedIdle(kernelCtState(m.State), datapath.Protocol(proto)); t != 0 {
			return t
		}
	}
	switch kernelCtState(m.State) {
	case kernelCtStateCT_NEW:
		return newTimeout
	case kernelCtStateCT_ANSWERED:
		if datapath.Protocol(proto) == datapath.UDP {
			if t, ok := idle[m.ServiceId]; ok { // 0: unknown
				return min(exchangeTimeout, t.udp)
			}
			return closedTimeout
		}
		return answeredTimeout
	case kernelCtStateCT_FIN:
		if m.ServiceId == 0 {
			return finTimeout
		}
		return max(finTimeout, min(finLongest, idle[m.ServiceId].of(datapath.Protocol(proto))))
	case kernelCtStateCT_TIME_WAIT:
		return timeWaitTimeout
	case kernelCtStateCT_CLOSED, kernelCtStateCT_ENDING:
		return closedTimeout
	}
	t, ok := idle[m.ServiceId]
	if !ok {
		return closedTimeout // its service was deleted
	}
	return t.of(datapath.Protocol(proto))
}

// forSweep returns the idle timeouts of the services and the dead backends.
func (s *services) forSweep() (idleTimeouts, map[uint32]bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	idle := make(idleTimeouts, len(s.byID)+1)
	idle[0] = plainIdle
	for id, v := range s.byID {
		if v.current {
			t := v.value.IdleTimeout
			idle[id] = idleTicks{ticksOf(t.TCP), ticksOf(t.UDP), ticksOf(t.SCTP)}
		} else {
			idle[id] = idleTicks{}
		}
	}
	dead := make(map[uint32]bool, len(s.backends.dead))
	for id, b := range s.backends.dead {
		dead[id] = b.gone
	}
	return idle, dead
}

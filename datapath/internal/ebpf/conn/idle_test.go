// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// timesOf returns the timeouts of services 1 and later, which have one backend each, with the same
// id. Backend 3 has a service without timeouts. Other backends do not exist.
func timesOf(services ...idleTicks) *idleTimeouts {
	idle := &idleTimeouts{map[uint32]idleTicks{0: plainIdle}, func(backend uint32) uint32 { return backend % 4 }}
	for i, t := range services {
		idle.services[uint32(i+1)] = t
	}
	return idle
}

// flagsOf returns the flag of a connection that has a service, if it has.
func flagsOf(service uint32) uint16 {
	if service == 0 {
		return 0
	}
	return kernel.CtService
}

// TestHalfClosedIdle: a client that has closed its side can receive data for the service's idle
// timeout, but at most for an hour; connections without a service end sooner.
func TestHalfClosedIdle(t *testing.T) {
	idle := timesOf(idleTicks{tcp: kernel.TicksOf(24 * time.Hour), sctp: kernel.TicksOf(10 * time.Minute)}, idleTicks{tcp: kernel.TicksOf(30 * time.Second)})
	for _, tt := range []struct {
		service  uint32
		protocol datapath.Protocol
		want     uint32
	}{
		{0, datapath.TCP, finTimeout}, {1, datapath.TCP, kernel.TicksOf(time.Hour)}, {1, datapath.SCTP, kernel.TicksOf(10 * time.Minute)},
		{2, datapath.TCP, finTimeout}, {3, datapath.TCP, finTimeout}, {4, datapath.TCP, finTimeout},
	} {
		m := &kernel.CtMeta{State: uint8(kernel.CtStateCT_FIN), Flags: flagsOf(tt.service), BackendId: tt.service}
		if got := idle.ticksFor(m, tt.protocol); got != tt.want {
			t.Errorf("%s of service %d ends after %s, want %s", tt.protocol, tt.service, kernel.DurationOf(got), kernel.DurationOf(tt.want))
		}
	}
}

// TestOneWayIdle: a connection in one direction ends after 2 min, or after the service's idle time if
// that is shorter, whichever of its entries is seen first.
func TestOneWayIdle(t *testing.T) {
	idle := timesOf(idleTicks{udp: kernel.TicksOf(30 * time.Second)}, idleTicks{udp: kernel.TicksOf(time.Hour)})
	for service, want := range []uint32{oneWayTimeout, kernel.TicksOf(30 * time.Second), oneWayTimeout, closedTimeout, closedTimeout} {
		id, flags := uint32(service), kernel.CtLasting|flagsOf(uint32(service))
		client := &kernel.CtMeta{State: uint8(kernel.CtStateCT_ONE_WAY), Flags: flags, BackendId: id}
		replies := &kernel.CtMeta{State: uint8(kernel.CtStateCT_NEW), Flags: flags | kernel.CtReply, BackendId: id}
		for _, m := range []*kernel.CtMeta{client, replies} {
			if got := idle.ticksFor(m, datapath.UDP); got != want {
				t.Errorf("service %d, flags %#x: ends after %s, want %s", service, m.Flags, kernel.DurationOf(got), kernel.DurationOf(want))
			}
		}
	}
}

// TestTranslatedIdle compares the timeouts with RFC 4787, 5382 and 5508.
func TestTranslatedIdle(t *testing.T) {
	idle := timesOf()
	for _, tt := range []struct {
		state    kernel.CtState
		protocol datapath.Protocol
		least    time.Duration
	}{
		{kernel.CtStateCT_NEW, datapath.TCP, 4 * time.Minute},
		{kernel.CtStateCT_ANSWERED, datapath.TCP, 4 * time.Minute},
		{kernel.CtStateCT_FIN, datapath.TCP, 4 * time.Minute},
		{kernel.CtStateCT_ESTABLISHED, datapath.TCP, 2*time.Hour + 4*time.Minute},
		{kernel.CtStateCT_NEW, datapath.UDP, 2 * time.Minute},
		{kernel.CtStateCT_ESTABLISHED, datapath.UDP, 5 * time.Minute},
		{kernel.CtStateCT_ESTABLISHED, datapath.ICMP, time.Minute},
	} {
		m := &kernel.CtMeta{State: uint8(tt.state), NatId: 1}
		if got := kernel.DurationOf(idle.ticksFor(m, tt.protocol)); got < tt.least {
			t.Errorf("%s in state %d ends after %s, want %s at least", tt.protocol, tt.state, got, tt.least)
		}
	}
}

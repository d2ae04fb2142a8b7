// SPDX-License-Identifier: Apache-2.0

package datapath

import "time"

// How long connections stay without packets, apart from [IdleTimeout]. The table "Timeouts" in
// docs/pipeline.md has the same values with the reasons for them.
const (
	UnansweredTimeout = 30 * time.Second  // no reply yet
	HandshakeTimeout  = 60 * time.Second  // replied, but not established yet
	ExchangeTimeout   = 30 * time.Second  // UDP: one request and its replies, no stream
	OneWayTimeout     = 2 * time.Minute   // UDP: the client continues to send without an answer
	FINTimeout        = 120 * time.Second // one side has closed
	FINLongest        = time.Hour         // maximum for a service, whose server may send more after a FIN
	TimeWaitTimeout   = 60 * time.Second  // both sides have closed
	ClosedTimeout     = 10 * time.Second  // reset, or its service was deleted
	EchoTimeout       = 60 * time.Second  // ICMP echo: RFC 5508, section 3.2

	// For connections with NAT but without a service.
	TransitoryTimeout    = 4 * time.Minute // TCP not established, or closing: RFC 5382, REQ-5
	UnansweredNATTimeout = 2 * time.Minute // UDP: RFC 4787, REQ-5

	// For mappings and blocks without connections, since the last packet.
	MappingTimeout = 5 * time.Minute // endpoint-independent mapping: RFC 4787, REQ-5
	BlockTimeout   = 2 * time.Minute // port block of an inner address
)

// IdleTimeout contains the times after which connections without packets end.
type IdleTimeout struct{ TCP, UDP, SCTP time.Duration }

// DefaultIdleTimeout returns the idle timeout for a service that sets none. Linux sends the first
// TCP keepalive after 2 h.
func DefaultIdleTimeout() IdleTimeout {
	return IdleTimeout{TCP: 2 * time.Hour, UDP: 30 * time.Second, SCTP: 2 * time.Hour}
}

// PlainIdleTimeout returns the idle timeout for connections without a service: RFC 5382, section 5,
// for TCP, and RFC 4787, section 4.3, for UDP.
func PlainIdleTimeout() IdleTimeout {
	return IdleTimeout{TCP: 2*time.Hour + 4*time.Minute, UDP: 5 * time.Minute, SCTP: 2*time.Hour + 4*time.Minute}
}

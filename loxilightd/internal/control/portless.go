// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

const (
	// portlessReportTime is how long the health stays degraded after the last drop for lack of
	// a port.
	portlessReportTime = 10 * time.Second
	// portlessFresh is how long a count of connections per source is reused.
	portlessFresh = 5 * time.Second
	// portlessCounted limits how many connections are counted.
	portlessCounted = 1 << 14
)

// noPort is the drop reason of packets that would open a connection when no source port is free.
const noPort = "no_port"

// portless records packets that were dropped because no source port was free for their destination.
// It is safe for concurrent use.
type portless struct {
	mu          sync.Mutex
	at          time.Time // time of the last drop
	destination netip.AddrPort
	protocol    datapath.Protocol
	rule        string // the object that translates the source

	counting sync.Mutex
	counted  time.Time      // when connections were last counted
	of       netip.AddrPort // the destination whose connections were counted
	owner    netip.Addr     // source with the most connections; invalid: no connections
	owns     int
	all      bool // all connections were counted
}

// note records a sample of a drop.
func (p *portless) note(d *datapath.Drop) {
	if d.Reason != noPort {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.destination, p.protocol = time.Now(), d.Packet.Tuple.Destination, d.Packet.Protocol
	switch {
	case d.NAT != "":
		p.rule = "NAT " + string(d.NAT)
	case d.Service != "":
		p.rule = "Service " + string(d.Service)
	default:
		p.rule = ""
	}
}

// count finds the source with the most connections to a destination.
func (p *portless) count(ctx context.Context, c datapath.Connections, to netip.AddrPort, proto datapath.Protocol) error {
	if p.of == to && time.Since(p.counted) < portlessFresh {
		return nil
	}
	filter := datapath.ConnectionFilter{
		Destination:     netip.PrefixFrom(to.Addr(), to.Addr().BitLen()),
		DestinationPort: to.Port(),
		Protocol:        proto,
	}
	counts, left := make(map[netip.Addr]int), portlessCounted
	for cursor := ""; left > 0; {
		list, next, err := c.List(ctx, filter, cursor, min(left, 1000))
		if err != nil {
			return err
		}
		for i := range list {
			counts[list[i].Original.Source.Addr()]++
		}
		left -= len(list)
		if cursor = next; cursor == "" {
			break
		}
	}
	p.counted, p.of, p.owner, p.owns, p.all = time.Now(), to, netip.Addr{}, 0, left > 0
	for source, n := range counts {
		if n > p.owns || n == p.owns && source.Less(p.owner) {
			p.owner, p.owns = source, n
		}
	}
	return nil
}

// portless returns a message if connections are being dropped because no source port is free, else
// the empty string.
func (s *Server) portless(ctx context.Context) string {
	p := &s.noPorts
	p.mu.Lock()
	at, to, proto, rule := p.at, p.destination, p.protocol, p.rule
	p.mu.Unlock()
	if at.IsZero() || time.Since(at) > portlessReportTime {
		return ""
	}
	m := fmt.Sprintf("no source port is left for new connections to %s (%s)", to, proto)
	if rule != "" {
		m += " of " + rule
	}
	m += ", so they are dropped (no_port)"
	p.counting.Lock()
	defer p.counting.Unlock()
	if err := p.count(ctx, s.Plane.Connections(), to, proto); err != nil {
		return fmt.Sprintf("%s; its connections cannot be counted: %v", m, err)
	}
	if p.owner.IsValid() {
		least := ""
		if !p.all {
			least = "at least "
		}
		who := p.owner.String()
		if side := s.sideOf(p.owner); side != nil && side.Pod != "" {
			who = fmt.Sprintf("pod %s/%s (%s)", side.Namespace, side.Pod, who)
		}
		m += fmt.Sprintf("; %s has the most of them, %s%d", who, least, p.owns)
	}
	return m + fmt.Sprintf(": see llcli connections --destination %s; more addresses or ports in the NAT help", to)
}

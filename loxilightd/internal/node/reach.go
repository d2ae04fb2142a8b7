// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

const (
	// silentAfter is how long a Peer may be silent while packets are sent to it.
	silentAfter = 15 * time.Second
	// sendsAtLeast is the number of reads with sent packets after which silence counts.
	sendsAtLeast = 3
	// silenceLapses is how long after the last packet to a Peer its silence is ignored.
	silenceLapses = 30 * time.Second
	// maxHops limits how many next hops of Routes are checked, and which Peers are resolved
	// without packets to them.
	maxHops = 64
	// askInterval and askFailed are how often the kernel is asked to resolve a next hop.
	askInterval, askFailed = 10 * time.Second, 5 * time.Second
)

// hop is a next hop of a Route, in the network namespace of the switch or of the host.
type hop struct {
	addr     netip.Addr
	inSwitch bool
}

// peerWatch is the history of a Peer's counters.
type peerWatch struct {
	known          bool
	sent, received uint64
	heard          time.Time // when the counter of received packets last increased; zero: never
	lastSent       time.Time // likewise of sent packets
	silentSince    time.Time // packets have been sent since then, but none was received
	sends          int       // reads since then with sent packets
}

// reach is the reachability of next hops and Peers. It is immutable.
type reach struct {
	problems map[string]string // by Peer/name
	hops     map[hop]string    // next hops with a problem
	peers    map[string]peerWatch
	failed   map[hop]bool // neighbours of next hops and Peers that did not answer the last request
	asked    map[hop]time.Time
}

// readReach checks the next hops and Peers.
func (n *Node) readReach(s *state.Snapshot, before reach) reach {
	now := time.Now()
	r := reach{
		problems: map[string]string{}, hops: map[hop]string{}, peers: map[string]peerWatch{},
		failed: map[hop]bool{}, asked: map[hop]time.Time{},
	}
	telemetry := n.opts.Plane.Telemetry()
	for o := range s.After(state.KindPeer, "") {
		is, ok := telemetry.PeerState(datapath.PeerName(o.Name))
		if !ok {
			continue
		}
		w := before.peers[o.Name].next(is.Traffic, now)
		r.peers[o.Name] = w
		remote := is.Underlay
		if p := o.Value.(*state.Peer); !remote.IsValid() && len(p.Underlay) > 0 {
			remote = p.Underlay[0]
		}
		message := r.look(telemetry, &before, hop{remote, false}, now, len(r.peers) <= maxHops)
		if message != "" {
			message = fmt.Sprintf("underlay address %s is not reached: %s", remote, message)
		} else {
			message = w.problem(now)
		}
		if message != "" {
			r.problems["Peer/"+o.Name] = message
		}
	}
	hops := 0
	for o := range s.After(state.KindRoute, "") {
		v := o.Value.(*state.Route)
		for i := range v.NextHops {
			h := hop{v.NextHops[i].Via, v.Switch}
			if _, seen := r.asked[h]; seen || !h.addr.IsValid() || hops >= maxHops {
				continue
			}
			hops++
			if message := r.look(telemetry, &before, h, now, true); message != "" {
				r.hops[h] = message
				r.problems[fmt.Sprint("hop ", h)] = message
			}
		}
	}
	return r
}

// look returns why a next hop is not reached; empty: it is reached, or unknown. With ask, the
// kernel is asked now and then to resolve the next hop; a failed one is always asked for, so that
// its return is noticed.
func (r *reach) look(telemetry datapath.Telemetry, before *reach, h hop, now time.Time, ask bool) string {
	interval := askInterval
	if before.failed[h] {
		ask, interval = true, askFailed
	}
	last := before.asked[h]
	ask = ask && now.Sub(last) >= interval
	if ask {
		last = now
	}
	r.asked[h] = last
	is := telemetry.HopTo(h.addr, h.inSwitch, ask)
	switch {
	case is.Err != nil:
		return is.Err.Error()
	case is.Link == datapath.LinkDown:
		return fmt.Sprintf("device %q is down: run ip link set %s up", is.Device, is.Device)
	case is.Link == datapath.LinkNoCarrier:
		return fmt.Sprintf("device %q has no carrier", is.Device)
	case is.Failed || before.failed[h] && !is.Resolved:
		r.failed[h] = true
		return fmt.Sprintf("%s does not answer on device %q: check that it is up and on this link", is.Neighbour, is.Device)
	}
	return ""
}

// next updates the watch with the counters of a Peer.
func (w peerWatch) next(c datapath.PeerCounters, now time.Time) peerWatch {
	before := w
	w.known, w.sent, w.received = true, c.SentPackets, c.ReceivedPackets
	if !before.known || c.SentPackets < before.sent || c.ReceivedPackets < before.received {
		return w // the counters were reset
	}
	if c.SentPackets > before.sent {
		w.lastSent = now
		if w.silentSince.IsZero() {
			w.silentSince, w.sends = now, 0
		}
		w.sends++
	}
	if c.ReceivedPackets > before.received {
		w.heard, w.silentSince, w.sends = now, time.Time{}, 0
	}
	if now.Sub(w.lastSent) > silenceLapses {
		w.silentSince, w.sends = time.Time{}, 0
	}
	return w
}

// problem returns a message if a Peer is silent; else the empty string.
func (w *peerWatch) problem(now time.Time) string {
	if w.silentSince.IsZero() || w.sends < sendsAtLeast || now.Sub(w.silentSince) < silentAfter {
		return ""
	}
	return "packets are sent to the node and none comes back: check that it is up, and that type, VNI and port of the Tunnel are the same there"
}

func (r *reach) ofRoute(v *state.Route) string {
	if v.Type != datapath.RouteUnicast {
		return ""
	}
	for i := range v.NextHops {
		h := hop{v.NextHops[i].Via, v.Switch}
		if message := r.hops[h]; message != "" {
			return fmt.Sprintf("next hop %s is not reached: %s", h.addr, message)
		}
	}
	return ""
}

// LastHeard returns when a packet from a Peer was last received, to the second; zero: not since
// the daemon started.
func (n *Node) LastHeard(peer string) time.Time {
	n.conditions.mu.Lock()
	defer n.conditions.mu.Unlock()
	if n.conditions.world == nil {
		return time.Time{}
	}
	return n.conditions.world.reach.peers[peer].heard
}

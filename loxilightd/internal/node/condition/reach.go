// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"fmt"
	"strings"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

const (
	// silentAfter is how long a Peer may be silent while packets are sent to it, before it gets a
	// message.
	silentAfter = 15 * time.Second
	// sendsAtLeast is the number of reads that must show sent packets before silence is reported.
	sendsAtLeast = 3
	// silenceLapses is how long after the last packet sent to a Peer its silence is no longer
	// reported.
	silenceLapses = 30 * time.Second
	// maxHops limits how many next hops of Routes are checked, how many next hops towards backends
	// and NAT targets are checked, and how many Peers are resolved although no packets are sent to
	// them.
	maxHops = 64
	// askHop, askPeer and askFailed are the intervals at which the kernel is made to probe the
	// neighbour of a next hop, of a Peer, and of a Peer or next hop that has failed.
	askHop, askPeer, askFailed = 2 * time.Second, 10 * time.Second, 5 * time.Second
)

// peerWatch is the history of a Peer's counters.
type peerWatch struct {
	known          bool
	sent, received uint64
	lastReceived   time.Time // when the counter of received packets last increased; zero: never
	lastSent       time.Time // the same for sent packets
	silentSince    time.Time // packets have been sent since then, but none received
	sends          int       // reads since then that showed sent packets
}

// reach is the reachability of next hops and Peers. It is immutable.
type reach struct {
	revision uint64                     // revision of the objects
	began    time.Time                  // when reading began
	problems map[string]condition       // by Peer/name, and by next hop or target
	hops     map[datapath.Hop]condition // next hops with a problem
	peers    map[string]peerWatch
	failed   map[datapath.Hop]bool // neighbours of next hops and Peers that did not answer the last request
	open     map[datapath.Hop]bool // neighbours that have not answered the first request yet
	asked    map[datapath.Hop]time.Time
}

// readReach checks the next hops and Peers.
func readReach(opts *Options, s *state.Snapshot, before reach) reach {
	now := time.Now()
	r := reach{
		revision: s.Revision, began: now,
		problems: map[string]condition{}, hops: map[datapath.Hop]condition{}, peers: map[string]peerWatch{},
		failed: map[datapath.Hop]bool{}, open: map[datapath.Hop]bool{}, asked: map[datapath.Hop]time.Time{},
	}
	check := func(h datapath.Hop, every time.Duration) condition {
		return r.checkHop(opts, &before, h, now, every)
	}
	// Routes are read before Peers: the loop skips next hops that were already checked, and would
	// skip the next hop of a Route that a Peer shares.
	for o := range s.After(state.KindRoute, "") {
		for _, h := range hopsOf(o.Value.(*state.Route)) {
			if _, seen := r.asked[h]; seen || len(r.asked) >= maxHops {
				continue
			}
			if is := check(h, askHop); is.message != "" {
				r.hops[h] = is
				r.problems[fmt.Sprint("hop ", h)] = is
			}
		}
	}
	for o := range s.After(state.KindPeer, "") {
		is, ok := opts.Telemetry.PeerState(datapath.PeerName(o.Name))
		if !ok {
			continue
		}
		w := before.peers[o.Name].next(is.Traffic, now)
		r.peers[o.Name] = w
		remote := is.Underlay
		if p := o.Value.(*state.Peer); !remote.IsValid() && len(p.Underlay) > 0 {
			remote = p.Underlay[0]
		}
		every := askPeer
		switch {
		case w.isSilent():
			every = askHop // its silence may be caused by the neighbour
		case len(r.peers) > maxHops:
			every = never
		}
		c := check(datapath.Hop{Addr: remote}, every)
		if c.message != "" {
			c.message = fmt.Sprintf("underlay address %s is unreachable: %s", remote, c.message)
		} else {
			c = w.note(now)
		}
		if c.message != "" {
			r.problems["Peer/"+o.Name] = c
		}
	}
	return r
}

// hopsOf returns the next hops of a Route. A Route to a Peer has no next hop of its own.
func hopsOf(v *state.Route) (hops []datapath.Hop) {
	if v.Type != datapath.RouteUnicast {
		return nil
	}
	for i := range v.NextHops {
		hops = append(hops, datapath.Hop{Addr: v.NextHops[i].Via, Device: v.NextHops[i].Device, Switch: v.Switch})
	}
	return hops
}

// never, as an interval, means that the kernel is not made to probe a neighbour.
const never = time.Duration(0)

// checkHop returns why a next hop is not reached, or no message if it is reached or its state is
// unknown. every is the interval at which the kernel is made to probe the neighbour. A failed
// neighbour is probed in any case, so that its return is detected.
func (r *reach) checkHop(opts *Options, before *reach, h datapath.Hop, now time.Time, every time.Duration) condition {
	switch {
	case before.open[h]:
		every = time.Nanosecond // only a call with ask set returns whether the neighbour is still being resolved
	case before.failed[h] && (every == never || every > askFailed):
		every = askFailed
	}
	r.failed[h] = before.failed[h] // until the neighbour answers
	r.open[h] = before.open[h]
	last := before.asked[h]
	ask := every != never && now.Sub(last) >= every
	if ask {
		last = now
	}
	r.asked[h] = last
	if device := opts.Telemetry.DeviceOf(h.Addr, h.Switch); h.Addr.IsValid() && device != "" {
		return condition{message: fmt.Sprintf("%s is an address of the node itself, on device %q: set the address of another host", h.Addr, device)}
	}
	is := opts.Telemetry.HopTo(h, ask)
	if broken := opts.hopIsLost(is, h.Switch); broken != "" {
		r.open[h] = every != never // so that the neighbour is probed immediately when the link is repaired
		return condition{message: broken}
	}
	r.open[h], r.failed[h] = false, false
	switch {
	case is.Failed || before.failed[h] && !is.Resolved:
		r.failed[h] = true
		return condition{message: fmt.Sprintf("%s does not answer on device %q: check that it is up and on this link", is.Neighbour, is.Device)}
	case is.Resolving:
		r.open[h] = true
		return condition{message: fmt.Sprintf("%s has not answered on device %q yet", is.Neighbour, is.Device), quiet: true, untried: true}
	}
	return condition{}
}

// next returns the watch updated with a Peer's counters.
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
		w.lastReceived, w.silentSince, w.sends = now, time.Time{}, 0
	}
	if now.Sub(w.lastSent) > silenceLapses {
		w.silentSince, w.sends = time.Time{}, 0
	}
	return w
}

// isSilent reports whether packets have been sent to a Peer and none has been received since.
func (w *peerWatch) isSilent() bool { return !w.silentSince.IsZero() && w.sends >= sendsAtLeast }

// note returns a condition with a message if a Peer is silent. Silence alone is not a fault: the
// traffic may be unidirectional.
func (w *peerWatch) note(now time.Time) condition {
	if !w.isSilent() || now.Sub(w.silentSince) < silentAfter {
		return condition{}
	}
	return condition{ready: true, quiet: true, message: "packets are sent to the node, but none are received from it, " +
		"which is normal for traffic in one direction; otherwise check that type, VNI and port of the Tunnel are the same there"}
}

// ofRoute returns the next hops that are not reached. If at least one other next hop is reached,
// the Route is Ready with a message, because some of its connections work.
func (r *reach) ofRoute(v *state.Route) condition {
	var dead []string
	all := condition{quiet: true, untried: true}
	hops := hopsOf(v)
	for _, h := range hops {
		is := r.hops[h]
		if is.message == "" {
			continue
		}
		all.untried, all.quiet = all.untried && is.untried, all.quiet && is.quiet
		dead = append(dead, fmt.Sprintf("next hop %s is unreachable: %s", hopName(h), is.message))
	}
	switch {
	case len(dead) == 0:
		return condition{}
	case len(dead) < len(hops):
		return condition{
			ready: true, quiet: all.quiet, untried: all.untried,
			message: fmt.Sprintf("%d of %d next hops are unreachable, so connections through them fail: %s", len(dead), len(hops), strings.Join(dead, "; ")),
		}
	}
	all.message = strings.Join(dead, "; ")
	return all
}

// hopName returns the address of a next hop, or its device.
func hopName(h datapath.Hop) string {
	if h.Addr.IsValid() {
		return h.Addr.String()
	}
	return h.Device
}

// LastReceived returns when a packet from a Peer was last received, with a precision of one second;
// zero: not since the daemon started.
func (e *Evaluator) LastReceived(peer string) time.Time {
	e.mu.Lock()
	w := e.world
	e.mu.Unlock()
	if w == nil {
		return time.Time{}
	}
	last := w.reach.peers[peer]
	if is, ok := e.opts.Telemetry.PeerState(datapath.PeerName(peer)); ok && last.known && is.Traffic.ReceivedPackets > last.received {
		return time.Now() // it was received since the last reading
	}
	return last.lastReceived
}

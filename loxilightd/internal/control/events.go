// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// sampleRetry is the delay after a failure to read samples.
const sampleRetry = 5 * time.Second

// Run publishes changes and samples until ctx ends.
func (s *Server) Run(ctx context.Context) {
	var samples sync.WaitGroup
	defer samples.Wait()
	samples.Go(func() { s.publishSamples(ctx) })
	samples.Go(func() { s.watchConfirm(ctx) })
	samples.Go(func() { s.followUsage(ctx) })
	w := s.Store.Watch()
	defer w.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.C():
			s.publishChanges(w.Take())
		}
	}
}

// publishChanges publishes the entries in the store's log that have not been published yet. If the
// log does not reach back far enough, it uses keys, the changed objects, instead.
func (s *Server) publishChanges(snapshot *state.Snapshot, keys []state.Key) {
	changes, revision, ok := s.Store.Changes(s.published)
	if !ok {
		changes = changes[:0]
		for _, k := range keys {
			c := state.Change{Key: k, Action: state.Deleted, Revision: snapshot.Revision}
			if o, ok := snapshot.Get(k); ok {
				c.Action, c.Revision = state.Updated, o.Revision
			}
			changes = append(changes, c)
		}
	}
	for _, c := range changes {
		s.publish(api.TopicChanges, &api.ChangeEvent{Revision: c.Revision, Kind: c.Kind, Name: c.Name, Action: c.Action.String()})
	}
	s.published = revision
}

func (s *Server) publish(topic string, event Event) {
	if err := s.past.publish(topic, event, time.Now(), s.Publish); err != nil {
		s.Log.Debug("event not published", "topic", topic, "error", err)
	}
}

// StatusChanged publishes that the state of an object changed.
func (s *Server) StatusChanged(k state.Key, st api.Status) {
	s.publish(api.TopicStatus, &api.StatusEvent{Kind: k.Kind, Name: k.Name, State: st.State, Message: shortMessage(st.Message)})
}

// HealthChanged publishes that the health of a backend changed.
func (s *Server) HealthChanged(service string, backend netip.AddrPort, health, message string) {
	s.publish(api.TopicStatus, &api.StatusEvent{
		Kind: api.KindService, Name: service, State: health, Message: shortMessage(message), Backend: backend.String(),
	})
}

// publishSamples publishes samples of drops and connections until ctx ends.
func (s *Server) publishSamples(ctx context.Context) {
	var logging sync.WaitGroup
	logging.Go(func() { s.policyLog.Run(ctx) })
	defer logging.Wait()
	failed := false
	for ctx.Err() == nil {
		err := s.Plane.Telemetry().Samples(ctx, s.publishSample)
		if ctx.Err() != nil {
			return
		}
		if !failed {
			s.Log.Warn("events of drops and connections are not available; retrying", "error", err)
			failed = true
		}
		rest := time.NewTimer(sampleRetry)
		select {
		case <-ctx.Done():
		case <-rest.C:
		}
		rest.Stop()
	}
}

func (s *Server) publishSample(sample datapath.Sample) {
	if d := sample.Drop; d != nil {
		s.noPorts.note(d)
		s.publish(api.TopicDrops, &api.DropEvent{
			Reason: d.Reason, Packet: droppedPacket(d),
			Service: string(d.Service), Rule: string(d.Rule), NAT: string(d.NAT), Endpoint: string(d.Endpoint), Policy: s.decidingRule(d.Policy), Length: d.Length,
		})
	}
	for i := range sample.Policies {
		s.policyLog.Add(&sample.Policies[i], sample.Packet, time.Now())
	}
	if d := sample.Decision; d != nil {
		s.logRule(d)
		s.publish(api.TopicFirewall, &api.FirewallEvent{
			Rule: string(d.Rule), Action: d.Action.String(), Packet: packetOf(&d.Packet), Length: d.Length,
		})
	}
	if c := sample.Connection; c != nil {
		action := "closed"
		if sample.Opened {
			action = "opened"
		}
		s.publish(api.TopicConnections, &api.ConnectionEvent{Action: action, Connection: *s.nameConnection(connectionOf(c), c)})
	}
}

// spoofed is the drop reason of an Endpoint's source guard, which also checks ARP.
const spoofed = "spoofed"

// droppedPacket describes a packet by the fields that were parsed. Protocol 0 with IPv4 addresses
// is ARP if the source guard dropped the packet; for IP, 0 would be IPv6 hop-by-hop options.
func droppedPacket(d *datapath.Drop) api.Packet {
	p := packetOf(&d.Packet)
	source, destination := d.Packet.Tuple.Source.Addr().Unmap(), d.Packet.Tuple.Destination.Addr().Unmap()
	switch {
	case d.Packet.Protocol != 0:
	case d.Reason == spoofed && source.Is4():
		p.Protocol, p.Tuple = "arp", api.Tuple{Source: source.String(), Destination: destination.String()}
	case source.IsUnspecified() && destination.IsUnspecified():
		p.Protocol, p.Tuple = "", api.Tuple{}
	}
	return p
}

func packetOf(p *datapath.Packet) api.Packet {
	hook := "ingress"
	if p.Egress {
		hook = "egress"
	}
	return api.Packet{Device: p.Device, Hook: hook, Protocol: p.Protocol.String(), Tuple: tupleOf(p.Tuple)}
}

// logRule logs a packet that matched a rule with log: true, or counts it for the next line.
func (s *Server) logRule(d *datapath.Decision) {
	held, ok := s.ruleLines.Take(time.Now())
	if !ok {
		return
	}
	p := packetOf(&d.Packet)
	s.Log.Info("firewall rule matched", slog.String("rule", string(d.Rule)), slog.String("action", d.Action.String()),
		slog.String("protocol", p.Protocol), slog.String("source", p.Source), slog.String("destination", p.Destination),
		slog.String("device", p.Device), slog.String("hook", p.Hook), slog.Int("length", d.Length), slog.Uint64("not_logged", held))
}

// reportPolicy publishes and logs decisions of a Policy.
func (s *Server) reportPolicy(d *datapath.PolicyDecision, p *datapath.Packet, count uint64) {
	event := &api.PolicyEvent{Action: d.Action.String(), DecidingRule: *s.decidingRule(d), Packet: packetOf(p), Length: p.Length, Count: count}
	s.publish(api.TopicPolicy, event)
	held, ok := s.policyLines.Take(time.Now())
	if !ok {
		return
	}
	s.Log.Info("policy decided", slog.String("action", event.Action), slog.String("policy", event.Policy), slog.String("rule", event.Rule),
		slog.String("tier", event.Tier), slog.String("direction", event.Direction), slog.String("endpoint", event.Endpoint),
		slog.String("protocol", event.Protocol), slog.String("source", event.Source), slog.String("destination", event.Destination),
		slog.Uint64("packets", count), slog.Uint64("not_logged", held))
}

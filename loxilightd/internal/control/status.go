// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/control/object"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func (s *Server) version(context.Context, Caller, *none) (any, *api.Error) {
	return &api.VersionResult{Version: s.Version, API: []int{api.Version}, Build: s.Build}, nil
}

func (s *Server) status(ctx context.Context, _ Caller, p *api.StatusParams) (any, *api.Error) {
	ignored := map[string]bool{}
	for i, kind := range p.Ignore {
		kind, err := object.ParseKind(kind, fmt.Sprintf("ignore[%d]", i))
		if err != nil {
			return nil, err
		}
		ignored[kind] = true
	}
	telemetry := s.Plane.Telemetry()
	features, err := telemetry.Features(ctx)
	if err != nil {
		return nil, planeError(err)
	}
	usage, err := s.usage(ctx)
	if err != nil {
		return nil, planeError(err)
	}
	snapshot := s.Store.Snapshot()
	result := &api.StatusResult{
		Instance: s.Instance, StateDir: s.StateDir, Switch: s.SwitchNamespace, PID: os.Getpid(),
		Uptime:   api.Duration(time.Since(s.started).Truncate(time.Millisecond)),
		Revision: snapshot.Revision,
		Datapath: api.DatapathStatus{
			Kernel: features.Kernel, Layout: features.Layout, Hooks: []api.Hook{}, Fallbacks: features.Fallbacks,
		},
		Capacity: map[string]api.Usage{},
		Objects:  snapshot.Counts(),
		Repairs:  s.Progress.Repairs(),
	}
	for _, h := range features.Hooks {
		result.Datapath.Hooks = append(result.Datapath.Hooks, api.Hook(h))
	}
	for table, u := range usage {
		result.Capacity[table] = api.Usage(u)
	}
	some, _ := s.Progress.NotReady(maxNotReady, nil)
	_, count := s.Progress.NotReady(0, ignored)
	for _, k := range slices.SortedFunc(maps.Keys(some), cmpKeys) {
		st := some[k]
		result.NotReady = append(result.NotReady, api.NotReady{Object: k.String(), State: st.State, Message: shortMessage(st.Message)})
	}
	if p, left := s.Store.Pending(); p != nil {
		result.Confirm = pendingConfirm(p, left)
	}
	if m := s.portless(ctx); m != "" {
		features.Warnings = append(slices.Clip(features.Warnings), m)
	}
	result.Health = s.health(features.Warnings, usage, count, ignored)
	fitStatus(result)
	return result, nil
}

// withRules adds the tables that only limit the desired state.
func (s *Server) withRules(usage map[string]datapath.Usage, cost datapath.Cost) map[string]datapath.Usage {
	all := map[string]datapath.Usage{}
	maps.Copy(all, usage)
	t := s.Store.Tables()
	all["rules"] = datapath.Usage{Used: uint64(cost.Rules), Size: uint64(t.Rules)}
	all["prefixes"] = datapath.Usage{Used: uint64(cost.Prefixes), Size: uint64(t.Prefixes)}
	all["entities"] = datapath.Usage{Used: uint64(cost.Entities), Size: uint64(t.Entities)}
	return all
}

// fitStatus shortens a status that does not fit in a reply, and adds a message about what is
// missing.
func fitStatus(r *api.StatusResult) {
	for left := 0; ; {
		text, err := json.Marshal(r)
		if err != nil || len(text) <= maxPage || len(r.Datapath.Hooks) == 0 {
			return
		}
		keep := len(r.Datapath.Hooks) * 3 / 4
		if left > 0 {
			r.Health.Messages = r.Health.Messages[:len(r.Health.Messages)-1]
		}
		left += len(r.Datapath.Hooks) - keep
		r.Datapath.Hooks = r.Datapath.Hooks[:keep]
		r.Health.Messages = append(r.Health.Messages, fmt.Sprintf("%d more hooks do not fit this reply: get the objects of kind Interface", left))
	}
}

// damageReportTime is how long a loss of the desired state degrades the health.
const damageReportTime = 24 * time.Hour

// health returns the health of the daemon.
func (s *Server) health(warnings []string, usage map[string]datapath.Usage, notReady int, ignored map[string]bool) api.Health {
	m := s.storeProblems()
	s.mu.Lock()
	if s.expireFail != nil {
		m = append(m, fmt.Sprintf("an unconfirmed change could not be rolled back yet; the rollback is retried: %v", s.expireFail))
	}
	if s.fileFail != nil {
		m = append(m, fmt.Sprintf("the object files were not applied; their previous objects stay in force: %v", s.fileFail))
	}
	s.mu.Unlock()
	m = append(m, s.Progress.Problems()...)
	m = append(m, s.largeTunnels()...)
	if s.Leases != nil && s.Leases.Problem() != "" {
		m = append(m, s.Leases.Problem())
	}
	if s.PodProblems != nil {
		m = append(m, s.PodProblems()...)
	}
	m = append(m, warnings...)
	m = append(m, sortedMessages(s.fullTables(usage, time.Now()))...)
	switch {
	case notReady == 1:
		m = append(m, "one object is not Ready")
	case notReady > 1:
		m = append(m, fmt.Sprintf("%d objects are not Ready", notReady))
	}
	m = append(m, s.noted(ignored)...)
	for i := range m {
		m[i] = shortMessage(m[i])
	}
	if len(m) == 0 {
		return api.Health{State: "ok"}
	}
	return api.Health{State: "degraded", Messages: m}
}

// storeProblems says what is wrong with the store.
func (s *Server) storeProblems() (m []string) {
	if d := s.Report.Damage; d != nil && time.Since(d.At) < damageReportTime {
		became := "and set aside as " + d.File
		if d.File == "" {
			became = "and a new one started"
		}
		todo := "apply the objects again"
		if d.Restored != 0 {
			todo = fmt.Sprintf("it was replaced by its copy as of revision %d, so changes from the minutes before may be missing: check the objects", d.Restored)
		}
		m = append(m, fmt.Sprintf("the store of the desired state was damaged (%s) %s on %s: %s", d.Cause, became, d.At.Format(time.RFC3339), todo))
	}
	if p := s.Store.Problem(); p != "" {
		m = append(m, p)
	}
	if s.Report.RolledBack {
		m = append(m, "a page of the store was damaged at the start: the last change before it may be lost")
	}
	for _, u := range s.Report.Unreadable[:min(len(s.Report.Unreadable), maxNotReady)] {
		m = append(m, fmt.Sprintf("this version cannot decode the stored %s, so only what an earlier run applied is in force: %v", u.Key, u.Err))
	}
	if p := s.Report.Unconfirmed; p != nil {
		m = append(m, fmt.Sprintf("the change of revision %d was not confirmed and could not be rolled back, since the history was lost: check the configuration", p.Revision))
	}
	return m
}

// noted returns at most maxNotReady messages about objects that are Ready.
func (s *Server) noted(ignored map[string]bool) (list []string) {
	noted := s.Progress.Noted()
	maps.DeleteFunc(noted, func(k state.Key, _ string) bool { return ignored[k.Kind] })
	for _, k := range slices.SortedFunc(maps.Keys(noted), cmpKeys) {
		if len(list) == maxNotReady {
			return append(list, fmt.Sprintf("%d more objects have such messages", len(noted)-maxNotReady))
		}
		list = append(list, k.String()+": "+noted[k])
	}
	return list
}

// shortMessage shortens a message that is one of several in a reply.
func shortMessage(s string) string {
	const most = 500
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// statusOf returns the status of an object.
func (s *Server) statusOf(k state.Key) api.Status {
	if st, ok := s.Progress.Status(k); ok {
		st.Message = decode.ShortenTo(st.Message, maxMessage)
		return st
	}
	return api.Status{State: api.StatePending, Message: "not applied yet"}
}

func (s *Server) notReady(k state.Key) api.NotReady {
	st := s.statusOf(k)
	return api.NotReady{Object: k.String(), State: st.State, Message: shortMessage(st.Message)}
}

// objectStatus returns the encoded status of an object.
func (s *Server) objectStatus(o *state.Object) json.RawMessage {
	var status any
	switch v := o.Value.(type) {
	case *state.Interface:
		status = s.interfaceStatus(o.Key, v)
	case *state.Endpoint:
		status = s.endpointStatus(o.Key, v)
	case *state.Service:
		status = s.serviceStatus(o.Key, v)
	case *state.PodNetwork:
		status = s.podNetworkStatus(o)
	case *state.Tunnel:
		status = s.tunnelStatus(o.Key)
	case *state.Peer:
		status = s.peerStatus(o.Key)
	case *state.Mirror:
		status = s.mirrorStatus(o.Key)
	case *state.Entity:
		status = s.entityStatus(o.Key, v)
	case *state.Policy:
		status = &api.PolicyStatus{Status: s.statusOf(o.Key), Subjects: s.Progress.Subjects(o.Name)}
	default:
		status = s.statusOf(o.Key)
	}
	text, err := json.Marshal(status)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return text
}

// Limits on the lists and texts in a status, so that the status fits in a reply; see [replySize].
const (
	maxAddresses       = 4096     // maximum number of an Interface's addresses
	maxMirrorDevices   = 4096     // maximum number of devices on which a Mirror copies packets
	maxEntityEndpoints = 1024     // maximum number of an Entity's Endpoints
	maxBackendMessages = 16 << 10 // total size, in bytes, of the messages about the backends of a Service
)

func (s *Server) interfaceStatus(k state.Key, v *state.Interface) *api.InterfaceStatus {
	st := &api.InterfaceStatus{Status: s.statusOf(k)}
	p, ok := s.Plane.Telemetry().PortState(datapath.PortName(k.Name))
	if !ok || p.Index == 0 {
		return st
	}
	if v.Address.IsValid() {
		st.Device = p.Device
	}
	st.Index, st.MTU, st.Hooks, st.Link = p.Index, p.MTU, p.Hooks, p.Link.String()
	if len(p.MAC) > 0 {
		st.MAC = p.MAC.String()
	}
	for _, a := range p.Addresses[:min(len(p.Addresses), maxAddresses)] {
		st.Addresses = append(st.Addresses, a.String())
	}
	return st
}

func (s *Server) serviceStatus(k state.Key, v *state.Service) *api.ServiceStatus {
	room := maxBackendMessages
	st := &api.ServiceStatus{Status: s.statusOf(k), Backends: make([]api.BackendStatus, len(v.Backends))}
	for i := range v.Backends {
		b := api.BackendStatus{Address: v.Backends[i].Addr.String(), State: api.BackendStates[v.Backends[i].State]}
		if v.Health != nil {
			b.Health, b.Message = s.Progress.Health(k.Name, v.Backends[i].Addr)
			if b.Message = shortMessage(b.Message); b.Message != "" {
				room -= sizeOfJSON(b.Message) + len(`"message":`)
			}
			if room < 0 {
				b.Message = ""
			}
			if b.Health == "unhealthy" {
				b.State = api.BackendStates[datapath.BackendDown]
			}
		}
		st.Backends[i] = b
	}
	return st
}

func (s *Server) endpointStatus(k state.Key, v *state.Endpoint) *api.EndpointStatus {
	st := &api.EndpointStatus{Status: s.statusOf(k)}
	if p, ok := s.Plane.Telemetry().PortState(datapath.EndpointName(k.Name).Port()); ok && p.Index != 0 {
		st.Index, st.MTU, st.Hooks = p.Index, p.MTU, p.Hooks
	}
	if s.PodRates != nil {
		in, out := s.PodRates(v.Device, k.Name)
		st.IngressRate, st.EgressRate = in.Rate, out.Rate
	}
	return st
}

func (s *Server) tunnelStatus(k state.Key) *api.TunnelStatus {
	st := &api.TunnelStatus{Status: s.statusOf(k)}
	if t, ok := s.Plane.Telemetry().TunnelState(datapath.TunnelName(k.Name)); ok {
		st.MTU, st.Peers, st.Counters = t.MTU, t.Peers, peerCounters(t.Traffic)
	}
	if st.State == api.StateReady {
		st.Message = s.tooLarge(k)
	}
	return st
}

// tooLarge returns a message if a Tunnel has a smaller MTU than configured, because a larger MTU
// does not fit the path to its Peers; empty: the MTU is as configured.
func (s *Server) tooLarge(k state.Key) string {
	o, ok := s.Store.Snapshot().Get(k)
	if !ok {
		return ""
	}
	configured := o.Value.(*state.Tunnel).MTU
	t, ok := s.Plane.Telemetry().TunnelState(datapath.TunnelName(k.Name))
	if !ok || t.MTU == 0 || t.MTU >= configured {
		return ""
	}
	return fmt.Sprintf("packets of mtu %d, once encapsulated, exceed the path MTU to its Peers: the device has %d; omit mtu, or raise the MTU of the path", configured, t.MTU)
}

// largeTunnels returns the messages of tooLarge for all Tunnels.
func (s *Server) largeTunnels() (list []string) {
	for o := range s.Store.Snapshot().After(state.KindTunnel, "") {
		if text := s.tooLarge(o.Key); text != "" {
			list = append(list, o.Key.String()+": "+text)
		}
	}
	return list
}

func (s *Server) peerStatus(k state.Key) *api.PeerStatus {
	st := &api.PeerStatus{Status: s.statusOf(k)}
	p, ok := s.Plane.Telemetry().PeerState(datapath.PeerName(k.Name))
	if !ok || !p.Underlay.IsValid() {
		return st
	}
	st.Local, st.Underlay, st.Device, st.Counters = p.Local.String(), p.Underlay.String(), p.Device, peerCounters(p.Traffic)
	st.PathMTU = p.PathMTU
	if at := s.Progress.LastReceived(k.Name); !at.IsZero() {
		at = at.UTC().Truncate(time.Second)
		st.LastHeard = &at
	}
	return st
}

func (s *Server) mirrorStatus(k state.Key) *api.MirrorStatus {
	st := &api.MirrorStatus{Status: s.statusOf(k)}
	if m, ok := s.Plane.Telemetry().MirrorState(datapath.MirrorName(k.Name)); ok {
		st.Devices = m.Ports[:min(len(m.Ports), maxMirrorDevices)]
		st.Counters = &api.MirrorCounters{Packets: m.Packets, Bytes: m.Bytes, Drops: m.Drops}
	}
	return st
}

func (s *Server) entityStatus(k state.Key, v *state.Entity) *api.EntityStatus {
	st := &api.EntityStatus{Status: s.statusOf(k)}
	if v.Of == (state.EndpointRef{}) {
		return st
	}
	list := s.Store.Snapshot().EndpointsOf(v.Of)
	for _, o := range list[:min(len(list), maxEntityEndpoints)] {
		st.Endpoints = append(st.Endpoints, o.Name)
	}
	return st
}

func peerCounters(c datapath.PeerCounters) *api.PeerCounters {
	x := api.PeerCounters(c)
	return &x
}

func stack() string { return string(debug.Stack()) }

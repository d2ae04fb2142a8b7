// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// harness is a server with its own store, a fake data plane and fake progress.
type harness struct {
	*Server
	t        testing.TB
	plane    *fakePlane
	progress *fakeProgress

	mu     sync.Mutex
	events []string
}

// fakePlane contains the data that a test sets. Its cursors are valid for one use only, like real
// cursors.
type fakePlane struct {
	connections    []datapath.Connection
	cursors        map[string]int
	flushed        datapath.ConnectionFilter
	services       map[datapath.ServiceName]datapath.ServiceCounters
	node           datapath.NodeCounters
	ports          map[datapath.PortName]datapath.PortState
	usage          map[string]datapath.Usage
	features       datapath.Features
	samples        chan datapath.Sample
	policyCounters map[string]datapath.PolicyCounters
	ownersError    error
	usableNames    []string
	formerNames    []string
	addrsOf        map[string][]netip.Addr // by name
}

func (p *fakePlane) Connections() datapath.Connections { return p }
func (p *fakePlane) Telemetry() datapath.Telemetry     { return p }
func (p *fakePlane) DeviceOf(netip.Addr, bool) string  { return "" }
func (p *fakePlane) LocalAddrs() []netip.Addr          { return nil }
func (p *fakePlane) Repairs() uint64                   { return 0 }
func (p *fakePlane) IsIdle() bool                      { return false }

func (p *fakePlane) Devices(bool) map[string]datapath.Device { return nil }
func (p *fakePlane) PolicyNames(string, netip.Addr) (usable, former []string, err error) {
	return p.usableNames, p.formerNames, nil
}
func (p *fakePlane) PolicyAddrs(_, name string) ([]netip.Addr, error) {
	return p.addrsOf[name], nil
}
func (p *fakePlane) Announces(netip.Addr) bool { return true }

func (p *fakePlane) Forwarding(bool) datapath.Forwarding {
	return datapath.Forwarding{IPv4: true, IPv6: true}
}
func (p *fakePlane) Networks(bool) map[string][]netip.Prefix    { return nil }
func (p *fakePlane) HopTo(datapath.Hop, bool) datapath.HopState { return datapath.HopState{} }
func (p *fakePlane) Changed() <-chan struct{}                   { return nil }

func (p *fakePlane) List(_ context.Context, f datapath.ConnectionFilter, cursor string, limit int) ([]datapath.Connection, string, error) {
	at := 0
	if cursor != "" {
		i, ok := p.cursors[cursor]
		if !ok {
			return nil, "", fmt.Errorf("place %q: %w", cursor, datapath.ErrAbsent)
		}
		delete(p.cursors, cursor)
		at = i
	}
	var list []datapath.Connection
	for ; at < len(p.connections) && len(list) < limit; at++ {
		if f.Match(&p.connections[at]) {
			list = append(list, p.connections[at])
		}
	}
	if at == len(p.connections) {
		return list, "", nil
	}
	next := fmt.Sprintf("cursor-%d-%d", at, len(p.cursors))
	p.cursors[next] = at
	return list, next, nil
}

func (p *fakePlane) Each(_ context.Context, each func(*datapath.Connection)) error {
	for i := range p.connections {
		each(&p.connections[i])
	}
	return nil
}

func (p *fakePlane) Flush(_ context.Context, f datapath.ConnectionFilter) (n uint64, err error) {
	p.flushed = f
	for i := range p.connections {
		if f.Match(&p.connections[i]) {
			n++
		}
	}
	return n, nil
}

func (p *fakePlane) NodeCounters(context.Context) (datapath.NodeCounters, error) { return p.node, nil }
func (p *fakePlane) ServiceCounters(_ context.Context, name datapath.ServiceName) (datapath.ServiceCounters, bool, error) {
	c, ok := p.services[name]
	return c, ok, nil
}

func (p *fakePlane) PortCounters(context.Context, datapath.PortName) (datapath.PortCounters, bool, error) {
	return datapath.PortCounters{Packets: 3}, true, nil
}

func (p *fakePlane) PolicyCounters(_ context.Context, name string) (c datapath.PolicyCounters, ok bool, err error) {
	c, ok = p.policyCounters[name]
	return c, ok, nil
}

func (p *fakePlane) PolicyVerdict(endpoint datapath.EndpointName, d policy.Direction, t policy.Traffic) (policy.Verdict, bool) {
	return policy.Verdict{Policy: "np/shop/db", Tier: fmt.Sprintf("%s %s %d %t", endpoint, t.Peer, t.Port, t.Node), Direction: d, Rule: -1}, true
}

func (p *fakePlane) RuleCounters(_ context.Context, name datapath.RuleName) (datapath.RuleCounters, bool, error) {
	return datapath.RuleCounters{Packets: 5, Bytes: uint64(len(name))}, true, nil
}

func (p *fakePlane) NATCounters(context.Context, datapath.NATName) (datapath.NATCounters, bool, error) {
	return datapath.NATCounters{Connections: 8}, true, nil
}

func (p *fakePlane) PortState(name datapath.PortName) (datapath.PortState, bool) {
	s, ok := p.ports[name]
	return s, ok
}

func (p *fakePlane) TunnelState(name datapath.TunnelName) (datapath.TunnelState, bool) {
	return datapath.TunnelState{MTU: 1450, Peers: len(name), Traffic: datapath.PeerCounters{
		SentPackets: 50, SentBytes: 500, ReceivedPackets: 60, ReceivedBytes: 700, Drops: 2}}, name == "known"
}

func (p *fakePlane) PeerState(name datapath.PeerName) (datapath.PeerState, bool) {
	return datapath.PeerState{Underlay: netip.MustParseAddr("192.0.2.2"), Local: netip.MustParseAddr("192.0.2.1"), Device: "eth0",
		Traffic: datapath.PeerCounters{SentPackets: 3, SentBytes: 400, ReceivedPackets: 7, ReceivedBytes: 700, Drops: 1}}, name == "known"
}

func (p *fakePlane) MirrorState(name datapath.MirrorName) (datapath.MirrorState, bool) {
	return datapath.MirrorState{Ports: []string{"eth0", "eth1"}, Packets: 8, Bytes: 900, Drops: 3}, name == "known"
}

func (p *fakePlane) Features(context.Context) (datapath.Features, error)      { return p.features, nil }
func (p *fakePlane) Usage(context.Context) (map[string]datapath.Usage, error) { return p.usage, nil }

// Owners: some entries of each table that packets fill.
func (p *fakePlane) Owners(_ context.Context, add func(string, datapath.Owner, uint64)) error {
	client := netip.MustParseAddr("::ffff:10.1.0.1")
	add("affinity", datapath.Owner{Service: "web", Source: client}, 2)
	add("affinity", datapath.Owner{Service: "web", Source: netip.MustParseAddr("2001:db8::1")}, 1)
	add("natMappings", datapath.Owner{NAT: "PodNetwork/p#ipv4", Source: client}, 3)
	add("natBlocks", datapath.Owner{Source: client}, 4) // its NAT was deleted
	add("nextHops", datapath.Owner{Device: "eth0"}, 5)
	add("nextHops", datapath.Owner{Device: "eth0", InSwitch: true}, 6)
	return p.ownersError
}

func (p *fakePlane) Samples(ctx context.Context, each func(datapath.Sample)) error {
	for {
		select {
		case s := <-p.samples:
			each(s)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fakeProgress reports all objects as Ready, except the objects that a test adds here.
type fakeProgress struct {
	not      map[state.Key]api.Status
	health   map[netip.AddrPort]string
	reason   string // reason reported with backends' health; empty: "refused"
	problems []string
	waited   []state.Key
	revision uint64
	policies func() (*policy.State, *state.Snapshot, string) // nil: unknown
}

func (p *fakeProgress) Status(k state.Key) (api.Status, bool) {
	if st, ok := p.not[k]; ok {
		return st, true
	}
	return api.Status{State: api.StateReady}, true
}
func (p *fakeProgress) NotReady(int, map[string]bool) (map[state.Key]api.Status, int) {
	return p.not, len(p.not)
}
func (p *fakeProgress) Noted() map[state.Key]string   { return nil }
func (p *fakeProgress) LastReceived(string) time.Time { return time.Time{} }
func (p *fakeProgress) PodMTU() int                   { return 1450 }
func (p *fakeProgress) Subjects(string) int           { return 2 }
func (p *fakeProgress) PolicyState() (*policy.State, *state.Snapshot, string) {
	if p.policies != nil {
		return p.policies()
	}
	return nil, nil, "unknown"
}
func (p *fakeProgress) PolicyStateOf(*state.Snapshot) *policy.State { return nil }
func (p *fakeProgress) Repairs() uint64                             { return 3 }
func (p *fakeProgress) Problems() []string                          { return p.problems }
func (p *fakeProgress) Health(_ string, b netip.AddrPort) (string, string) {
	if h, ok := p.health[b]; ok {
		return h, cmp.Or(p.reason, "refused")
	}
	return "unknown", ""
}

// Wait waits until ctx ends if one of keys is not Ready.
func (p *fakeProgress) Wait(ctx context.Context, revision uint64, keys []state.Key) (left []state.Key, err error) {
	p.waited, p.revision = keys, revision
	for _, k := range keys {
		if st, ok := p.not[k]; ok && st.State != api.StateReady {
			left = append(left, k)
		}
	}
	if left == nil {
		return nil, nil
	}
	<-ctx.Done()
	return left, ctx.Err()
}

var (
	admin  = Caller{UID: 0, Admin: true}
	reader = Caller{UID: 1007}
)

func newHarness(t testing.TB) *harness { return newHarnessAt(t, t.TempDir(), datapath.DefaultTables()) }

func newHarnessAt(t testing.TB, dir string, tables datapath.Tables) *harness {
	t.Helper()
	return newHarnessWith(t, state.Config{Dir: dir, Tables: tables})
}

func newHarnessWith(t testing.TB, cfg state.Config) *harness {
	t.Helper()
	cfg.Decode = Decode
	store, report, err := state.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() }) // a test may have closed it
	h := &harness{
		t: t, plane: &fakePlane{cursors: map[string]int{}, samples: make(chan datapath.Sample)},
		progress: &fakeProgress{not: map[state.Key]api.Status{}, health: map[netip.AddrPort]string{}},
	}
	h.Server = New(Options{
		Instance: "test", Version: "1.2.3", Build: "go", Store: store, Report: report, Plane: h.plane, Progress: h.progress,
		ObjectDir: t.TempDir(), Publish: h.publish, Log: slog.New(slog.DiscardHandler),
	})
	return h
}

func (h *harness) publish(topic string, event Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	text, err := json.Marshal(event)
	h.events = append(h.events, topic+" "+string(text))
	return err
}

// ask sends a request and returns the result, or the error, as text.
func (h *harness) ask(c Caller, method, params string) string {
	h.t.Helper()
	request := fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":%s}`, method, params)
	text := h.Handle(context.Background(), c, []byte(request))
	if len(text) > api.MaxReply {
		h.t.Errorf("%s: a reply of %d bytes", method, len(text))
	}
	var r api.Reply
	if err := json.Unmarshal(text, &r); err != nil || r.JSONRPC != "2.0" || string(r.ID) != "7" {
		h.t.Fatalf("%s: reply %s: %v", method, text, err)
	}
	if r.Error != nil {
		out, _ := json.Marshal(r.Error)
		return string(out)
	}
	return string(r.Result)
}

// want sends a request as an admin, and fails the test unless it gets exactly this answer.
func (h *harness) want(method, params, answer string) {
	h.t.Helper()
	if got := h.ask(admin, method, params); got != answer {
		h.t.Errorf("%s %s:\n got %s\nwant %s", method, params, got, answer)
	}
}

// wantError sends a request as an admin, and fails the test unless it gets this error.
func (h *harness) wantError(method, params string, code int, object, field, text string) {
	h.t.Helper()
	checkError(h.t, method+" "+decode.Shorten(params), h.ask(admin, method, params), code, object, field, text)
}

func checkError(t testing.TB, what, answer string, code int, object, field, text string) {
	t.Helper()
	var e api.Error
	if err := json.Unmarshal([]byte(answer), &e); err != nil || e.Data == nil {
		t.Fatalf("%s: no error, but %s", what, decode.Shorten(answer))
	}
	if e.Code != code || e.Data.Object != object || e.Data.Field != field || !strings.Contains(e.Message, text) {
		t.Errorf("%s:\n got %d at %q %q: %s\nwant %d at %q %q: …%s…", what, e.Code, e.Data.Object, e.Data.Field, e.Message, code, object, field, text)
	}
	if field != "" && strings.Contains(e.Message, field+": "+field+": ") {
		t.Errorf("%s: the message names %s twice: %s", what, field, e.Message)
	}
	for _, part := range []string{object, field} {
		if !strings.Contains(e.Message, part) {
			t.Errorf("%s: the message does not name %s: %s", what, part, e.Message)
		}
	}
}

// result sends a request as an admin, and decodes the result.
func result[R any](h *harness, method, params string) *R {
	h.t.Helper()
	answer := h.ask(admin, method, params)
	var r R
	d := json.NewDecoder(strings.NewReader(answer))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		h.t.Fatalf("%s: %v in %s", method, err, decode.Shorten(answer))
	}
	return &r
}

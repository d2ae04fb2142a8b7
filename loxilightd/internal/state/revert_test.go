// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// small makes objects of all kinds with references, from so few values that they often conflict.
type small struct {
	*rand.Rand
	values map[string]Value // by kind and spec
}

func newSmall(seed uint64) *small {
	return &small{rand.New(rand.NewPCG(seed, 7)), map[string]Value{}}
}

func (m *small) decode(kind string, spec []byte) (Value, error) {
	if v := m.values[kind+string(spec)]; v != nil {
		return v, nil
	}
	return nil, errors.New("not understood")
}

func pick[T any](m *small, list ...T) T { return list[m.IntN(len(list))] }

// some returns up to most of them, none twice.
func some[T comparable](m *small, most int, list ...T) (picked []T) {
	for _, i := range m.Perm(len(list))[:m.IntN(most+1)] {
		picked = append(picked, list[i])
	}
	return picked
}

func (m *small) addr() netip.Addr {
	return netip.AddrFrom4([4]byte{10, 7, byte(1 + m.IntN(2)), byte(1 + m.IntN(9))})
}

func (m *small) prefix() netip.Prefix {
	return netip.MustParsePrefix(pick(m, "10.7.1.0/29", "10.7.1.0/28", "10.7.2.0/29", "10.7.2.0/28", "10.7.1.4/32", "10.7.2.8/29", "10.7.0.0/16"))
}

func (m *small) device() string { return pick(m, "br0", "br1", "hs-t", "hs-t-e", "hsvlan110", "eth1") }

func (m *small) object(owner string) *Object {
	var v Value
	kind, n := pick(m, Kinds...), m.IntN(3)
	groups := func() []datapath.GroupName { return some(m, 2, datapath.GroupName("0"), "1", "2") }
	switch kind {
	case KindBridge:
		b := datapath.Bridge{Device: m.device(), Addresses: []netip.Prefix{netip.PrefixFrom(m.addr(), 24)}}
		for _, device := range some(m, 1, "eth1", "eth2", "hs-t") {
			b.Ports = append(b.Ports, datapath.BridgePort{Device: device})
		}
		v = &Bridge{b}
	case KindInterface:
		v = &Interface{datapath.Port{Device: m.device(), Switch: m.IntN(2) == 0}}
	case KindEndpoint:
		n += 10 * m.IntN(2)
		e := datapath.Endpoint{Device: fmt.Sprint("hs", n), MAC: [6]byte{2, 0, 0, 0, 0, byte(n)}, Network: pick(m, "", "0", "1")}
		v = &Endpoint{Endpoint: datapath.Endpoint{Device: e.Device, MAC: e.MAC, Network: e.Network, Addresses: []netip.Addr{m.addr()}}}
	case KindRoute:
		v = &Route{Route: datapath.Route{Prefix: m.prefix(), Switch: true}, Peer: pick(m, "", "0", "1")}
	case KindPodNetwork:
		v = &PodNetwork{Bridge: pick(m, "hsvlan110", "br0"), Subnets: []netip.Prefix{netip.MustParsePrefix(pick(m, "10.7.1.0/29", "10.7.1.0/28", "10.7.2.0/29", "10.7.2.0/28"))}}
	case KindAddressGroup:
		v = &AddressGroup{Groups: groups()}
	case KindNAT:
		v = &NAT{datapath.NAT{Match: datapath.Match{DestinationGroups: groups()}}}
	case KindFirewallRule:
		v = &FirewallRule{datapath.FirewallRule{Match: datapath.Match{SourceGroups: groups()}}}
	case KindService:
		s := datapath.Service{}
		for _, port := range some(m, 2, 80, 81, 82) {
			s.Frontends = append(s.Frontends, datapath.Frontend{Addr: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(port)), Protocol: datapath.TCP})
		}
		for _, other := range some(m, 1, datapath.ServiceName("0"), "1", "2") {
			s.Diverts = append(s.Diverts, datapath.Divert{Service: other})
		}
		v = &Service{Service: s}
	case KindTunnel:
		v = &Tunnel{datapath.Tunnel{Device: pick(m, "hs-t", "hs-u"), VNI: uint32(m.IntN(2))}}
	case KindPeer:
		v = &Peer{datapath.Peer{Tunnel: datapath.TunnelName(pick(m, "", "0", "1")), Prefixes: []netip.Prefix{m.prefix()}, Underlay: some(m, 1, m.addr())}}
	}
	spec := fmt.Sprintf("%+v", v)
	m.values[kind+spec] = v
	return &Object{Key: Key{kind, fmt.Sprint(n)}, Owner: owner, Spec: spec, Value: v}
}

// transaction returns a transaction of one owner.
func (m *small) transaction(s *Store, owner string, most int) *Transaction {
	t := &Transaction{By: root, Owner: owner}
	seen := map[Key]bool{}
	for range 1 + m.IntN(most) {
		o := m.object(owner)
		if seen[o.Key] {
			continue
		}
		seen[o.Key] = true
		if is, ok := s.Snapshot().Get(o.Key); ok && (is.Owner != owner || m.IntN(3) == 0) {
			if is.Owner != OwnerFile || owner == OwnerFile {
				t.Delete = append(t.Delete, o.Key)
			}
		} else {
			t.Put = append(t.Put, o)
		}
	}
	return t
}

// TestEveryPendingChangeIsReverted: whatever happens while a change waits, the rollback undoes all
// of that change and nothing else; and each refused change would have conflicted with the rollback.
func TestEveryPendingChangeIsReverted(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := newSmall(seed)
	cfg, c := clockConfig(t)
	cfg.Decode = m.decode
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	empty := testConfig(t.TempDir())
	oracle, _ := open(t, empty)
	owners := []string{"team", "k8s", "cni", OwnerFile}
	waited, made, refused, of := 0, 0, 0, map[string]int{}
	for range 60 {
		for o := range s.Snapshot().All() { // make room
			if m.IntN(3) == 0 {
				_, _ = s.Commit(&Transaction{Delete: []Key{o.Key}, Owner: OwnerFile}) // may be refused
			}
		}
		for range m.IntN(12) {
			_, _ = s.Commit(m.transaction(s, pick(m, append(owners, "cli")...), 3)) // may be refused
		}
		before := s.Snapshot()
		w, changed := &Transaction{}, []Change(nil)
		for len(changed) == 0 {
			w = m.transaction(s, "cli", 6)
			w.Confirm = time.Minute
			if r, err := s.Commit(w); err == nil {
				changed = slices.DeleteFunc(r.Changes, func(c Change) bool { return c.Action > Deleted })
			}
		}
		waited++
		others := map[Key]*Object{}
		for o := range before.All() {
			others[o.Key] = o
		}
		for range m.IntN(40) {
			other := m.transaction(s, pick(m, owners...), 2)
			goal := goal(s, changed, before, other)
			_, err := s.Commit(other)
			if err == nil {
				made++
				others = goal
			} else if strings.Contains(err.Error(), "after the rollback") {
				refused++
				of[refusalKey(err).Kind]++
				wantNeedful(t, oracle, goal, w, err)
			}
		}
		if m.IntN(4) == 0 {
			s, _ = reopen(t, s, cfg)
		}
		c.pass(time.Minute)
		_, r, err := s.Expire()
		if err != nil || r == nil || len(r.Left) != 0 {
			t.Fatalf("rolled back as %+v, %v", r, err)
		}
		for o := range s.Snapshot().All() {
			if want := others[o.Key]; want == nil || !o.same(want) {
				t.Fatalf("there is %+v, want %+v", o, want)
			}
			delete(others, o.Key)
		}
		if len(others) > 0 {
			t.Fatalf("there is no %v", others)
		}
	}
	closed(t, s)
	if t.Logf("%d waited; %d made and %d refused meanwhile, %v", waited, made, refused, of); made < 200 || refused < 2 {
		t.Error("that is no good test")
	}
}

// goal returns the expected state after a rollback of the changes w, with other applied.
func goal(s *Store, w []Change, before *Snapshot, other *Transaction) map[Key]*Object {
	all := map[Key]*Object{}
	for o := range s.Snapshot().All() {
		all[o.Key] = o
	}
	for _, o := range other.Put {
		all[o.Key] = o
	}
	for _, k := range other.Delete {
		delete(all, k)
	}
	for _, c := range w {
		if was, ok := before.Get(c.Key); ok {
			all[c.Key] = was
		} else {
			delete(all, c.Key)
		}
	}
	return all
}

func refusalKey(err error) Key {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.Key
	}
	return Key{}
}

// wantNeedful requires that a refused change could not have stayed: it is invalid itself, or in a
// network that the rollback deletes.
func wantNeedful(t *testing.T, oracle *Store, goal map[Key]*Object, w *Transaction, err error) {
	t.Helper()
	all := &Transaction{DryRun: true, Owner: OwnerFile}
	for _, o := range goal {
		all.Put = append(all.Put, o)
	}
	if _, invalid := oracle.Commit(all); invalid != nil {
		return
	}
	other, lives := map[string]string{KindEndpoint: KindPodNetwork, KindPodNetwork: KindEndpoint}[refusalKey(err).Kind]
	touches := slices.ContainsFunc(w.Put, func(o *Object) bool { return o.Kind == other }) ||
		slices.ContainsFunc(w.Delete, func(k Key) bool { return k.Kind == other })
	if lives && touches {
		return
	}
	t.Errorf("refused needlessly: %v", err)
}

// TestOnePendingChange: a second change with confirmation is refused, for every owner, and does not
// replace the first.
func TestOnePendingChange(t *testing.T) {
	cfg, c := clockConfig(t)
	s, _ := open(t, cfg)
	before := change(t, s)
	theirs := object(t, "team", "Service/theirs", "192.0.2.5:80 7")
	wantRefusal(t, s, &Transaction{Confirm: time.Hour, Put: []*Object{theirs}}, Conflict, "", "confirm", "one change waits at a time")
	c.pass(time.Minute)
	if expire(t, s); wanted(s, false) != before {
		t.Errorf("rolled back to\n%swant\n%s", wanted(s, false), before)
	}
}

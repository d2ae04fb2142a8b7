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
	"github.com/loxilight/loxilight/datapath/policy"
)

// small generates objects of all kinds, with references, from so few values that they often
// conflict.
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

// some picks distinct elements of list; most is the maximum number.
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
		v = &Bridge{Bridge: b}
	case KindInterface:
		v = &Interface{datapath.Port{Device: m.device(), Switch: m.IntN(2) == 0}}
	case KindEndpoint:
		n += 10 * m.IntN(2)
		e := datapath.Endpoint{Device: fmt.Sprint("hs", n), MAC: [6]byte{2, 0, 0, 0, 0, byte(n)}, Network: pick(m, "", "0", "1")}
		x := &Endpoint{Endpoint: datapath.Endpoint{Device: e.Device, MAC: e.MAC, Network: e.Network, Addresses: []netip.Addr{m.addr()}}, Pod: pick(m, "0", "1")}
		if m.IntN(3) == 0 {
			x.Labels = map[string]string{"app": "web"}
		}
		v = x
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
	case KindMirror:
		x := &Mirror{Source: Key{pick(m, KindInterface, KindEndpoint, KindService, KindFirewallRule), fmt.Sprint(m.IntN(3))}}
		if x.To.Device = m.device(); m.IntN(2) == 0 {
			x.To = datapath.MirrorTarget{Peer: datapath.PeerName(pick(m, "0", "1")), VNI: uint32(1 + m.IntN(2))}
		}
		v = x
	case KindNamespace:
		v = &Namespace{policy.Namespace{Labels: map[string]string{"team": pick(m, "0", "1")}}}
	case KindTier:
		v = &Tier{Order: int32(m.IntN(3))}
	case KindPolicy:
		x := &Policy{Policy: policy.Policy{Tier: fmt.Sprint(m.IntN(3))}}
		if names := groups(); len(names) > 0 {
			x.Groups = []PeerGroups{{Names: names}}
		}
		v = x
	case KindEntity:
		v = &Entity{Entity: policy.Entity{Addrs: []netip.Addr{m.addr()}}}
		if which := m.IntN(4); which < 3 {
			v = []*Entity{{Entity: policy.Entity{Here: true}}, {Of: EndpointRef{Name: fmt.Sprint(m.IntN(3))}}, {Of: EndpointRef{Pod: pick(m, "0", "1")}}}[which]
		}
	}
	spec := fmt.Sprintf("%+v", v)
	m.values[kind+spec] = v
	return &Object{Key: Key{kind, fmt.Sprint(n)}, Owner: owner, Spec: spec, Value: v}
}

// transaction returns a transaction by one owner.
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

// TestEveryPendingChangeIsReverted: whatever happens while a change is pending, the rollback undoes
// all of that change, along with the changes that joined it, and nothing else; and each rejected
// change would have conflicted with the rollback.
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
	waited, joined, made, refused, of := 0, 0, 0, 0, map[string]int{}
	for range 60 {
		for o := range s.Snapshot().All() { // make room
			if m.IntN(3) == 0 {
				_, _ = s.Commit(&Transaction{Delete: []Key{o.Key}, Owner: OwnerFile}) // may be rejected
			}
		}
		for range m.IntN(12) {
			_, _ = s.Commit(m.transaction(s, pick(m, append(owners, "cli")...), 3)) // may be rejected
		}
		before := s.Snapshot()
		w, was := &Transaction{}, map[Key]*Object{} // the pending change, and its objects as they were before it
		for len(was) == 0 {
			w = m.transaction(s, "cli", 6)
			w.Confirm = time.Minute
			_ = pend(s, w, was) // may be rejected
		}
		waited++
		others := map[Key]*Object{}
		for o := range before.All() {
			others[o.Key] = o
		}
		for range m.IntN(40) {
			other := m.transaction(s, pick(m, owners...), 2)
			if m.IntN(8) == 0 {
				other = m.transaction(s, pick(m, "cli", "team", "k8s"), 3)
				other.Confirm = time.Hour
				if pend(s, other, was) == nil {
					joined++
					w.Put, w.Delete = append(w.Put, other.Put...), append(w.Delete, other.Delete...)
				}
				continue
			}
			goal := goal(s, was, other)
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
	if t.Logf("%d waited, %d joined; %d made and %d refused meanwhile, %v", waited, joined, made, refused, of); made < 200 || refused == 0 || joined < 20 {
		t.Error("that is no good test")
	}
}

// pend commits a transaction that requires confirmation. For each object that the transaction
// changes, it records the previous state in was, unless was already contains the object.
func pend(s *Store, w *Transaction, was map[Key]*Object) error {
	before := s.Snapshot()
	r, err := s.Commit(w)
	if err != nil {
		return err
	}
	for _, c := range r.Changes {
		if _, again := was[c.Key]; !again && c.Action <= Deleted {
			was[c.Key], _ = before.Get(c.Key)
		}
	}
	return nil
}

// goal returns the expected state after a rollback of the pending change if other is applied before
// the rollback. was contains the objects that the pending change has changed, as they were.
func goal(s *Store, was map[Key]*Object, other *Transaction) map[Key]*Object {
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
	for k, o := range was {
		if o != nil {
			all[k] = o
		} else {
			delete(all, k)
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

// wantNeedful checks that a rejection was necessary: otherwise, the state after the rollback would
// be invalid, or an Endpoint would be in a pod network that the rollback deletes or changes.
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

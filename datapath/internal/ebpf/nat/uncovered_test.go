// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// someOf returns each element of a list with probability 1/2.
func someOf[T any](r *rand.Rand, list ...T) (some []T) {
	for _, x := range list {
		if r.IntN(2) == 0 {
			some = append(some, x)
		}
	}
	return some
}

var openGroups = map[datapath.GroupName]datapath.AddressGroup{
	"wide": {Prefixes: prefixes("10.0.0.0/8", "10.2.0.0/16", "2001:db8:1::/48")}, "narrow": {Prefixes: prefixes("10.1.2.0/24")}, "none": {},
}

// openRule returns a random rule with endpoint-independent mapping.
func openRule(r *rand.Rand) datapath.NAT {
	v := datapath.NAT{Type: datapath.Masquerade, Mapping: datapath.EndpointIndependent}
	if r.IntN(4) > 0 {
		v.Filtering = datapath.EndpointIndependent
	}
	v.Match.Source = someOf(r, prefixes("10.1.0.0/16", "10.1.2.0/24", "192.0.2.0/25", "2001:db8::/64")...)
	if r.IntN(2) == 0 {
		v.Match.SourceGroups = someOf(r, datapath.GroupName("wide"), "narrow", "none")
	}
	if r.IntN(2) == 0 {
		v.Match.Protocols = someOf(r, datapath.TCP, datapath.UDP)
	}
	if r.IntN(2) == 0 {
		v.Type, v.Addresses = datapath.SNAT, append(someOf(r, prefixes("203.0.113.0/25", "2001:db8:cb00::/48", "203.0.112.0/24")...), prefixes("203.0.113.192/26")...)
	}
	return v
}

// admits reports whether a rule that is open to any remote may have a mapping, by a comparison with
// each prefix.
func admits(v datapath.NAT, m translated, local bool) bool {
	in := func(list []netip.Prefix, a netip.Addr) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	sources := slices.Clone(v.Match.Source)
	for _, name := range v.Match.SourceGroups {
		sources = append(sources, openGroups[name].Prefixes...)
	}
	given := local
	if v.Type == datapath.SNAT {
		given = in(v.Addresses, m.outer.Addr())
	}
	any := len(v.Match.Source)+len(v.Match.SourceGroups) == 0
	if any && v.Type == datapath.SNAT { // a rule with a pool of one family is about that family only
		any = slices.ContainsFunc(v.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() == m.inner.Addr().Is4() })
	}
	return given && (any || in(sources, m.inner.Addr())) && (len(v.Match.Protocols) == 0 || slices.Contains(v.Match.Protocols, datapath.Protocol(m.proto)))
}

// wantAdmitted compares the mappings with those that rules admit. If the change failed, others may
// be left, but none without its outer side.
func (s *passSite) wantAdmitted(what string, all map[translated]uint8, failed bool) {
	s.t.Helper()
	haveInner, haveOuter := entriesOf(&s.all.Mapping), entriesOf(&s.all.MappingOuter)
	for m, namespace := range all {
		inner, outer := m.keys()
		inner.Netns, outer.Netns = namespace, namespace
		local := m.outer.Addr() == netip.MustParseAddr("203.0.113.1") && namespace == 0
		rule := s.desired.Rules[s.nameOf[m.nat]]
		stays := rule.Filtering != datapath.EndpointIndependent || admits(rule, m, local)
		_, hasInner := haveInner[inner]
		_, hasOuter := haveOuter[outer]
		if stays && !(hasInner && hasOuter) || !stays && !failed && (hasInner || hasOuter) || hasInner && !hasOuter {
			s.t.Errorf("%s: %+v in namespace %d: has inner side %t, outer %t, stays %t; rule %+v", what, m, namespace, hasInner, hasOuter, stays, rule)
		}
	}
}

// openMappings returns mappings of the rules a and b, with their namespaces.
func (s *passSite) openMappings() map[translated]uint8 {
	r := s.Random
	inners := []string{"10.0.0.1", "10.1.0.1", "10.1.2.3", "10.255.255.255", "11.0.0.0", "192.0.2.127", "192.0.2.128", "2001:db8::1", "2001:db8:1::1", "2001:db8:2::1"}
	outers := []string{"203.0.113.1", "203.0.113.127", "203.0.113.128", "203.0.113.192", "203.0.112.9", "2001:db8:cb00::1", "2001:db8:cb01::1"}
	all := map[translated]uint8{}
	for port := range uint16(60) {
		inner, outer := netip.MustParseAddr(inners[r.IntN(len(inners))]), netip.MustParseAddr(outers[r.IntN(len(outers))])
		if inner.Is4() == outer.Is4() {
			id, proto := s.ids[[]datapath.NATName{"a", "b"}[r.IntN(2)]], []uint8{6, 17}[r.IntN(2)]
			all[translated{nat: id, proto: proto, inner: netip.AddrPortFrom(inner, 1024+port), outer: netip.AddrPortFrom(outer, 2048+port)}] = uint8(r.IntN(2))
		}
	}
	return all
}

// insert inserts mappings, as the programs do.
func (s *passSite) insert(all map[translated]uint8) {
	s.t.Helper()
	for m, namespace := range all {
		inner, outer := m.keys()
		inner.Netns, outer.Netns = namespace, namespace
		s.must(s.all.MappingOuter.Put(outer, kernel.Mapping{Addr: inner.Addr, Port: inner.Port, NatId: m.nat}))
		s.must(s.all.Mapping.Put(inner, kernel.Mapping{Addr: outer.Addr, Port: outer.Port, NatId: m.nat}))
	}
}

// TestMappingsOfChangedRules: when rules change, the mappings that are open to any remote and that
// no longer belong to their rule end, and all others stay. That is so after a retry too, if the
// change fails at any of its steps, or the daemon is killed there.
func TestMappingsOfChangedRules(t *testing.T) {
	ended := 0
	for seed := range uint64(8) {
		s := newPassSite(t, seed)
		rules := func() map[datapath.NATName]datapath.NAT {
			return map[datapath.NATName]datapath.NAT{"a": openRule(s.Random), "b": openRule(s.Random)}
		}
		before, after := rules(), rules()
		s.desired.Rules, s.desired.Groups = before, openGroups
		s.must(s.all.Local.Put(kernel.LocalKey{Addr: kernel.AddrOf(netip.MustParseAddr("203.0.113.1"))}, 1))
		s.configure()
		all := s.openMappings()
		for n, failed := 1, true; failed; n++ {
			s.desired.Rules = before
			s.configure()
			s.insert(all)
			s.desired.Rules = after
			s.steps, s.failing, s.kills = 0, n, seed%2 == 1
			err := s.apply()
			what := fmt.Sprintf("seed %d, step %d", seed, n)
			if failed = s.steps >= n; failed != (err != nil) {
				t.Fatalf("%s of %d: error %v", what, s.steps, err)
			}
			s.failing = 0
			s.wantAdmitted(what, all, failed)
			if s.Killed {
				s.again()
			}
			s.configure()
			if s.wantAdmitted(what+" again", all, false); t.Failed() {
				t.FailNow()
			}
		}
		ended += len(all) - len(entriesOf(&s.all.MappingOuter))
	}
	if t.Logf("%d mappings have ended", ended); ended < 50 {
		t.Error("too few mappings have ended")
	}
}

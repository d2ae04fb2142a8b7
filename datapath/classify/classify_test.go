// SPDX-License-Identifier: Apache-2.0

package classify_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
	"github.com/loxilight/loxilight/internal/testrules"
)

var (
	seed  = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of random rules and packets")
	cases = flag.Int("cases", 100, "random sets of rules")
)

func compile(t testing.TB, rules []classify.Rule, groups map[datapath.GroupName]datapath.AddressGroup) *classify.Image {
	t.Helper()
	m, err := classify.Compile(rules, groups)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestRandomRules compares lookups with a linear evaluation of the rules.
func TestRandomRules(t *testing.T) {
	t.Logf("-seed %d", *seed)
	matched, none := 0, 0
	for i := range *cases {
		w := testrules.NewWorld(*seed + uint64(i))
		rules := make([]classify.Rule, []int{0, 1, 2, 10, 63, 64, 65, 200, 600}[w.IntN(9)])
		for j := range rules {
			rules[j] = w.Rule()
		}
		image := compile(t, rules, w.Groups)
		if again := compile(t, rules, w.Groups); !bytes.Equal(image.Bytes(), again.Bytes()) {
			t.Fatalf("-seed %d: two images of the same rules differ", *seed+uint64(i))
		}
		for range 100 {
			p := w.Packet()
			want := testrules.Linear(rules, w.Groups, &p)
			got, ok := image.Lookup(&p)
			if got != want || ok != (want >= 0) {
				t.Fatalf("-seed %d, %d rules, packet %+v: rule %d (%v), want %d%s", *seed+uint64(i), len(rules), p, got, ok, want, describe(rules, want))
			}
			if ok {
				matched++
			} else {
				none++
			}
		}
	}
	t.Logf("%d packets matched a rule, %d none", matched, none)
	if matched < 10**cases || none < 10**cases {
		t.Error("the packets are not of both kinds")
	}
}

func describe(rules []classify.Rule, i int) string {
	if i < 0 {
		return ""
	}
	return fmt.Sprintf(": hooks %d, %+v", rules[i].Hooks, *rules[i].Match)
}

// TestManyRules does the same with sets of 10,000 rules that are hard to search.
func TestManyRules(t *testing.T) {
	t.Logf("-seed %d", *seed)
	for name, rules := range testrules.HardSets(10_000) {
		t.Run(name, func(t *testing.T) {
			w := testrules.NewWorld(*seed)
			begin := time.Now()
			image := compile(t, rules, w.Groups)
			t.Logf("compiled in %v, %d KiB", time.Since(begin), len(image.Bytes())>>10)
			for range 300 {
				p := w.Aim(rules)
				want := testrules.Linear(rules, w.Groups, &p)
				if got, _ := image.Lookup(&p); got != want {
					t.Fatalf("packet %+v: rule %d, want %d%s", p, got, want, describe(rules, want))
				}
				if r, ok := image.Find(&p); ok != (want >= 0) || ok && r.ID != rules[want].ID {
					t.Fatalf("packet %+v: rule of id %d (%v), want rule %d", p, r.ID, ok, want)
				}
			}
		})
	}
}

// TestMostRules does the same with the maximum number of random rules, of all shapes.
func TestMostRules(t *testing.T) {
	t.Logf("-seed %d", *seed)
	w := testrules.NewWorld(*seed)
	for _, n := range []int{classify.MaxRules, classify.MaxRules - 63} {
		rules := make([]classify.Rule, n)
		for i := range rules {
			rules[i] = w.Rule()
			if i%2 == 0 { // many shapes, with a few rules each
				rules[i].Match.TCPFlags = datapath.TCPFlagsMatch{Mask: 0xff, Flags: uint8(i)}
			}
		}
		image := compile(t, rules, w.Groups)
		if image.RuleCount() != n {
			t.Errorf("%d rules, want %d", image.RuleCount(), n)
		}
		for range 300 {
			p := w.Packet()
			want := testrules.Linear(rules, w.Groups, &p)
			if got, _ := image.Lookup(&p); got != want {
				t.Fatalf("packet %+v: rule %d, want %d%s", p, got, want, describe(rules, want))
			}
		}
	}
}

func TestGroups(t *testing.T) {
	groups := map[datapath.GroupName]datapath.AddressGroup{"blocked": testrules.ManyPrefixes(100_000)}
	rules := []classify.Rule{
		{Name: "hole", Hooks: datapath.HookAll, Match: &datapath.Match{Source: groups["blocked"].Prefixes[500:501]}},
		{Name: "blocked", Hooks: datapath.HookAll, Match: &datapath.Match{SourceGroups: []datapath.GroupName{"blocked"}}},
		{Name: "blocked-too", Hooks: datapath.HookAll, Match: &datapath.Match{DestinationGroups: []datapath.GroupName{"blocked"}}},
	}
	begin := time.Now()
	image := compile(t, rules, groups)
	t.Logf("compiled in %v, %d KiB", time.Since(begin), len(image.Bytes())>>10)
	set := make(map[netip.Prefix]bool)
	for _, p := range groups["blocked"].Prefixes {
		set[p] = true
	}
	contains := func(a netip.Addr) bool {
		for bits := range a.BitLen() + 1 {
			if p, _ := a.Prefix(bits); set[p] {
				return true
			}
		}
		return false
	}
	for i, p := range groups["blocked"].Prefixes {
		for _, a := range []netip.Addr{p.Addr(), p.Addr().Next(), p.Addr().Prev(), testrules.Within(p, ^uint64(0), ^uint64(0))} {
			packet := classify.Packet{Source: a, Destination: netip.IPv6Unspecified(), Hook: datapath.HookInput}
			if a.Is4() {
				packet.Destination = netip.IPv4Unspecified()
			}
			want := -1
			if rules[0].Match.Source[0].Contains(a) {
				want = 0
			} else if contains(a) {
				want = 1
			}
			if got, _ := image.Lookup(&packet); got != want {
				t.Fatalf("prefix %d, %v from %v: rule %d, want %d", i, p, a, got, want)
			}
			packet.Source, packet.Destination = packet.Destination, packet.Source
			if got, _ := image.Lookup(&packet); (got == 2) != contains(a) {
				t.Fatalf("prefix %d, %v to %v: rule %d", i, p, a, got)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	one := func(m datapath.Match) []classify.Rule {
		return []classify.Rule{{Name: "web", Hooks: datapath.HookAll, Match: &m}}
	}
	for _, c := range []struct {
		rules []classify.Rule
		want  error
		text  string
	}{
		{make([]classify.Rule, classify.MaxRules+1), datapath.ErrCapacity, "16385 rules, at most 16384: table full"},
		{one(datapath.Match{SourceGroups: []datapath.GroupName{"absent"}}), datapath.ErrAbsent, "rule web: sourceGroups: group absent: does not exist"},
		{one(datapath.Match{Ports: []datapath.PortRange{{First: 80, Last: 79}}}), nil, "rule web: ports: 80-79 is not a valid range"},
		{one(datapath.Match{DSCP: []uint8{64}}), nil, "rule web: dscp: 64 is not between 0 and 63"},
		{one(datapath.Match{VLANs: []datapath.VLANRange{{First: 1, Last: 4095}}}), nil, "rule web: vlans: 1-4095 is not a valid range (1 to 4094)"},
		{one(datapath.Match{In: []string{"a-device-16-long"}}), nil, `rule web: in: "a-device-16-long" is not a valid device name`},
		{one(datapath.Match{Source: []netip.Prefix{{}}}), nil, "rule web: source: invalid Prefix is not a valid prefix"},
	} {
		_, err := classify.Compile(c.rules, nil)
		if err == nil || err.Error() != c.text {
			t.Errorf("error %v, want %s", err, c.text)
		}
		if c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%v is not %v", err, c.want)
		}
	}
	rules := make([]classify.Rule, 2)
	for i := range rules {
		rules[i] = classify.Rule{Name: fmt.Sprint(i), Hooks: datapath.HookAll, Match: &datapath.Match{DestinationGroups: []datapath.GroupName{"all"}}}
	}
	group := datapath.AddressGroup{Prefixes: make([]netip.Prefix, classify.MaxPrefixes+1)}
	for i := range group.Prefixes {
		group.Prefixes[i] = netip.PrefixFrom(testrules.Addr4(uint32(i)), 32)
	}
	refused(t, rules, map[datapath.GroupName]datapath.AddressGroup{"all": group}, "group all: the rules and their groups have more than 1048576 prefixes")
}

func refused(t *testing.T, rules []classify.Rule, groups map[datapath.GroupName]datapath.AddressGroup, text string) {
	t.Helper()
	if _, err := classify.Compile(rules, groups); !errors.Is(err, datapath.ErrCapacity) || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %s", err, text)
	}
}

// TestTooMuch: rules that need more memory than permitted are rejected.
func TestTooMuch(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	// Each address is in about three of the thousand groups, and many rules use each group.
	groups := make(map[datapath.GroupName]datapath.AddressGroup)
	name := func() datapath.GroupName { return datapath.GroupName(fmt.Sprint(r.IntN(1000))) }
	for i := range 1000 {
		g := groups[datapath.GroupName(fmt.Sprint(i))]
		for range 60 {
			g.Prefixes = append(g.Prefixes, netip.PrefixFrom(testrules.Addr4(r.Uint32N(20_000)), 32))
		}
		groups[datapath.GroupName(fmt.Sprint(i))] = g
	}
	rules := make([]classify.Rule, classify.MaxRules)
	for i := range rules {
		m := &datapath.Match{}
		for range 30 {
			m.SourceGroups = append(m.SourceGroups, name())
		}
		rules[i] = classify.Rule{Name: fmt.Sprint(i), Hooks: datapath.HookAll, Match: m}
	}
	refused(t, rules, groups, "the rules have too many combinations")

	group := datapath.AddressGroup{}
	for range classify.MaxPrefixes - 100 {
		b := [16]byte{0x20}
		for i := 1; i < 16; i++ {
			b[i] = byte(r.Uint32())
		}
		group.Prefixes = append(group.Prefixes, netip.PrefixFrom(netip.AddrFrom16(b), 128))
	}
	rules = rules[:1]
	rules[0].Match = &datapath.Match{SourceGroups: []datapath.GroupName{"all"}, DestinationGroups: []datapath.GroupName{"all"}}
	refused(t, rules, map[datapath.GroupName]datapath.AddressGroup{"all": group}, "1 rules (0 MiB), and the prefixes")
}

func TestOpen(t *testing.T) {
	image := compile(t, []classify.Rule{{Name: "a", Hooks: datapath.HookAll, Match: &datapath.Match{}}}, nil)
	if same, err := classify.Open(append(image.Bytes(), 0, 0)); err != nil || same.RuleCount() != 1 {
		t.Errorf("%v, %v", same, err)
	}
	other := bytes.Clone(image.Bytes())
	other[0]++
	for _, b := range [][]byte{nil, other, image.Bytes()[:len(image.Bytes())-1]} {
		if _, err := classify.Open(b); err == nil {
			t.Errorf("%d bytes are taken for an image", len(b))
		}
	}
}

// BenchmarkCompile compiles 10,000 rules and a group of 100,000 prefixes.
func BenchmarkCompile(b *testing.B) {
	groups := map[datapath.GroupName]datapath.AddressGroup{"blocked": testrules.ManyPrefixes(100_000)}
	for name, rules := range testrules.HardSets(10_000) {
		b.Run(name, func(b *testing.B) {
			rules[77].Match = &datapath.Match{SourceGroups: []datapath.GroupName{"blocked"}}
			b.ReportAllocs()
			for b.Loop() {
				m, err := classify.Compile(rules, groups)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(len(m.Bytes()))/(1<<20), "MiB")
			}
		})
	}
}

// TestRules reads the IDs and flags of the rules from images of several sizes.
func TestRules(t *testing.T) {
	for _, count := range []int{0, 1, 63, 64, 65, 500} {
		var rules []classify.Rule
		want := map[uint32]uint8{}
		for i := range count {
			rules = append(rules, classify.Rule{ID: uint32(i + 1), Flags: uint8(i % 4), Hooks: datapath.HookAll, Match: &datapath.Match{
				Source: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i / 250), byte(i % 250), 1}), 32)},
			}})
			want[uint32(i+1)] = uint8(i % 4)
		}
		image, err := classify.Compile(rules, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := map[uint32]uint8{}
		for _, r := range image.Rules() {
			got[r.ID] = r.Flags
		}
		if !maps.Equal(got, want) || len(image.Rules()) != count {
			t.Errorf("%d rules: got %d: %v", count, len(image.Rules()), got)
		}
	}
}

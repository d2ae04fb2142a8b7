// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testrules"
)

var rulesSeed = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of random rules and packets")

// compare compiles rules, evaluates packets in the kernel, and compares the results with a
// rule-by-rule evaluation.
func (a *asker) compare(rules []classify.Rule, groups map[datapath.GroupName]datapath.AddressGroup, packets []classify.Packet, devices map[string]uint32) (matched int) {
	a.t.Helper()
	for i := range rules {
		rules[i].ID = uint32(i + 1)
	}
	image, err := classify.Compile(rules, groups)
	a.ok(err)
	_, err = a.images.Publish(kernel.RulesDNAT, image)
	a.ok(err)
	a.put(packets, devices)
	said, _ := a.ask(kernel.RulesDNAT, len(packets))
	for i, answer := range a.answers(len(packets)) {
		want := testrules.Linear(rules, groups, &packets[i])
		got := -1
		if answer.Result == 1 {
			matched++
			got = int(answer.Key.Rule.Id) - 1
			if r := rules[got]; answer.Key.Rule.Action != r.Action || answer.Key.Rule.Flags != r.Flags {
				a.t.Errorf("rule %d has action %d and flags %d, want %d and %d", got, answer.Key.Rule.Action, answer.Key.Rule.Flags, r.Action, r.Flags)
			}
		}
		if got != want || answer.Result < 0 {
			a.t.Fatalf("packet %+v: rule %d (%d), want %d of %d; %d KiB", packets[i], got, answer.Result, want, len(rules), len(image.Bytes())>>10)
		}
	}
	if said != matched {
		a.t.Errorf("%d packets matched, %d were counted", matched, said)
	}
	return matched
}

// TestClassifyRandomRules compares the results of the program in the kernel with a rule-by-rule
// evaluation.
func TestClassifyRandomRules(t *testing.T) {
	t.Logf("-seed %d", *rulesSeed)
	a := newAsker(t)
	all, matched := 0, 0
	for i := range uint64(150) {
		w := testrules.NewWorld(*rulesSeed + i)
		rules := make([]classify.Rule, []int{1, 2, 10, 63, 64, 65, 200, 600}[w.IntN(8)])
		for j := range rules {
			rules[j] = w.Rule()
		}
		packets := make([]classify.Packet, 200)
		for j := range packets {
			packets[j] = w.Packet()
			if !slices.Contains(w.Devices, packets[j].Out) {
				packets[j].Out = ""
			}
		}
		all += len(packets)
		matched += a.compare(rules, w.Groups, packets, a.devices(w.Devices))
		if t.Failed() {
			t.Fatalf("-seed %d", *rulesSeed+i)
		}
	}
	t.Logf("%d of %d packets matched a rule", matched, all)
	if matched < all/20 || matched > all*19/20 {
		t.Error("the packets are not of both kinds")
	}
}

// TestClassifyManyRules does the same with 10,000 rules, and with a group of 100,000 prefixes.
func TestClassifyManyRules(t *testing.T) {
	a := newAsker(t)
	w := testrules.NewWorld(1)
	for name, rules := range testrules.HardSets(10_000) {
		t.Run(name, func(t *testing.T) {
			a.t = t
			packets := make([]classify.Packet, 500)
			for i := range packets {
				packets[i] = w.Aim(rules)
			}
			a.compare(rules, w.Groups, packets, nil)
		})
	}
	t.Run("a group of 100,000", func(t *testing.T) {
		a.t = t
		groups := map[datapath.GroupName]datapath.AddressGroup{"all": testrules.ManyPrefixes(100_000)}
		rules := []classify.Rule{
			{Hooks: datapath.HookAll, Match: &datapath.Match{SourceGroups: []datapath.GroupName{"all"}}},
			{Hooks: datapath.HookAll, Match: &datapath.Match{DestinationGroups: []datapath.GroupName{"all"}}},
		}
		packets := make([]classify.Packet, 100)
		for i := range packets {
			p := groups["all"].Prefixes[w.IntN(100_000)]
			packets[i] = classify.Packet{Hook: datapath.HookInput, Source: testrules.Within(p, w.Uint64(), w.Uint64())}
			packets[i].Destination = packets[i].Source.Next()
			if i%2 == 0 {
				packets[i].Source, packets[i].Destination = p.Addr().Prev(), packets[i].Source
			}
		}
		a.compare(rules, groups, packets, nil)
	})
}

// TestClassifyFailsClosed makes the rules of a set unreadable in every way: evaluation must fail.
func TestClassifyFailsClosed(t *testing.T) {
	a := newAsker(t)
	rules := []classify.Rule{{Hooks: datapath.HookAll, Match: &datapath.Match{}}}
	image, err := classify.Compile(rules, nil)
	a.ok(err)
	a.put([]classify.Packet{{Source: netip.MustParseAddr("192.0.2.1"), Destination: netip.MustParseAddr("192.0.2.2"), Hook: datapath.HookInput}}, nil)
	expect := func(what string, result int32) {
		t.Helper()
		a.ask(kernel.RulesFirewall, 1)
		if got := a.answers(1)[0].Result; got != result {
			t.Errorf("%s: %d, want %d", what, got, result)
		}
	}
	expect("no rules", 0)
	_, err = a.images.Publish(kernel.RulesFirewall, image)
	a.ok(err)
	expect("a rule for all", 1)
	a.ok(a.maps[kernel.MapLlImage128k].Delete(uint32(kernel.RulesFirewall)))
	expect("the image is gone", -1)
	for which := range uint32(8) {
		if which > 0 {
			a.ok(a.maps[kernel.MapLlRules].Put(uint32(kernel.RulesFirewall), kernel.Rules{Image: which}))
			expect(fmt.Sprint("there is no image ", which), -1)
		}
	}
	if ok, err := a.images.Verify(kernel.RulesFirewall); ok || err != nil {
		t.Errorf("the check misses that the image is gone: %v", err)
	}
	other := image.Clone()
	other.Bytes()[0]++
	inner, err := a.images.write(1, other)
	a.ok(err)
	defer inner.Close()
	a.ok(a.images.insert(kernel.RulesFirewall, 1, inner))
	a.ok(a.maps[kernel.MapLlRules].Put(uint32(kernel.RulesFirewall), kernel.Rules{Image: 1}))
	expect("of another version", -1)
	changed, err := a.images.Publish(kernel.RulesFirewall, image)
	if a.ok(err); !changed {
		t.Error("nothing was changed")
	}
	expect("published again", 1)
	if changed, err = a.images.Publish(kernel.RulesFirewall, image); !changed || err != nil {
		t.Errorf("the changes that follow were neither made nor reported (%v)", err)
	}
	a.ok(a.images.Settle(kernel.RulesFirewall))
	if changed, err = a.images.Publish(kernel.RulesFirewall, image); changed || err != nil {
		t.Errorf("published again without need (%v)", err)
	}
	changed, err = a.images.Publish(kernel.RulesFirewall, nil)
	if a.ok(err); !changed {
		t.Error("nothing was changed")
	}
	expect("no rules any more", 0)
}

// BenchmarkClassify evaluates 65,536 different packets at a time.
func BenchmarkClassify(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		for name, rules := range testrules.HardSets(n) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				w := testrules.NewWorld(1)
				benchmarkClassify(b, rules, nil, func() classify.Packet { return w.Aim(rules) })
			})
		}
	}
	groups := map[datapath.GroupName]datapath.AddressGroup{"all": testrules.ManyPrefixes(100_000)}
	for _, n := range []int{10, 10_000} {
		rules := testrules.HardSets(n)["distinct pairs"]
		rules[n/2].Match = &datapath.Match{SourceGroups: []datapath.GroupName{"all"}}
		b.Run(fmt.Sprintf("a group of 100000/%d", n), func(b *testing.B) {
			w := testrules.NewWorld(1)
			benchmarkClassify(b, rules, groups, func() classify.Packet {
				p := w.Aim(rules)
				if g := groups["all"].Prefixes[w.IntN(100_000)]; g.Addr().Is4() && w.IntN(2) == 0 {
					p.Source = g.Addr()
				}
				return p
			})
		})
	}
}

func benchmarkClassify(b *testing.B, rules []classify.Rule, groups map[datapath.GroupName]datapath.AddressGroup, draw func() classify.Packet) {
	a := newAsker(b)
	image, err := classify.Compile(rules, groups)
	a.ok(err)
	_, err = a.images.Publish(kernel.RulesFirewall, image)
	a.ok(err)
	packets := make([]classify.Packet, 65536)
	for i := range packets {
		packets[i] = draw()
	}
	a.put(packets, nil)
	var best time.Duration
	for b.Loop() {
		if _, took := a.ask(kernel.RulesFirewall, len(packets)); best == 0 || took < best {
			best = took
		}
	}
	b.ReportMetric(float64(best.Nanoseconds())/float64(len(packets)), "ns/packet")
	b.ReportMetric(float64(len(image.Bytes()))/1024, "KiB")
	b.ReportMetric(0, "ns/op")
}

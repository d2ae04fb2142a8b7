// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// ruleFor returns a rule for packets to one address.
func ruleFor(priority int32, addr string, action datapath.FirewallAction) datapath.FirewallRule {
	p, err := netip.MustParseAddr(addr).Prefix(32)
	if err != nil {
		panic(err)
	}
	return datapath.FirewallRule{Priority: priority, Hooks: datapath.HookAll, Action: action, Match: datapath.Match{Destination: []netip.Prefix{p}}}
}

// rulesInForce returns the ids of the rules in force for packets to some addresses.
func (n *network) rulesInForce(addrs ...string) (ids []uint32) {
	n.t.Helper()
	image, err := n.d.images.InForce(kernel.RulesFirewall)
	n.ok(err)
	for _, a := range addrs {
		ids = append(ids, 0)
		if image == nil {
			continue
		}
		to := netip.MustParseAddr(a)
		if r, ok := image.Find(&classify.Packet{Source: to, Destination: to, Hook: datapath.HookForward, In: "in0"}); ok {
			ids[len(ids)-1] = r.ID
		}
	}
	return ids
}

func (n *network) epoch() (v uint32) {
	n.t.Helper()
	var epoch kernel.Epoch
	n.ok(n.d.maps[kernel.MapLlEpoch].Lookup(uint32(0), &epoch))
	v = epoch.Count
	return v
}

// hit counts packets for a rule as the programs do.
func (n *network) hit(id uint32, packets uint64) {
	n.t.Helper()
	hits := make([]kernel.RuleHits, ebpf.MustPossibleCPU())
	hits[len(hits)-1] = kernel.RuleHits{PacketCount: packets, ByteCount: 100 * packets}
	n.ok(n.d.maps[kernel.MapLlRuleHits].Update(id, hits, ebpf.UpdateExist))
}

// wantInForce fails the test unless want are the rules in force for packets to three addresses (0:
// no rule), and the epoch is epoch.
func (n *network) wantInForce(what string, epoch uint32, want ...uint32) {
	n.t.Helper()
	if got := n.rulesInForce("10.0.1.11", "10.0.1.12", "10.0.1.13"); !slices.Equal(got, want) {
		n.t.Errorf("%s: rules %v decide, want %v", what, got, want)
	}
	if got := n.epoch(); got != epoch {
		n.t.Errorf("%s: epoch %d, want %d", what, got, epoch)
	}
}

// wantCounted fails the test unless a rule has counted want packets.
func (n *network) wantCounted(name datapath.RuleName, want uint64) {
	n.t.Helper()
	got, ok, err := n.d.Telemetry().RuleCounters(context.Background(), name)
	if err != nil || !ok || got != (datapath.RuleCounters{Packets: want, Bytes: 100 * want}) {
		n.t.Errorf("rule %s: %+v (%v, %v), want %d packets", name, got, ok, err, want)
	}
}

// putRules puts a set of rules in force.
func (n *network) putRules(set datapath.FirewallSet) {
	n.t.Helper()
	ctx := context.Background()
	n.ok(n.d.firewall.Update(ctx, datapath.NodeSet, set))
	if ok, err := n.d.firewall.Verify(ctx, datapath.NodeSet); !ok || err != nil {
		n.t.Errorf("the sets differ from the ones just written: %v", err)
	}
}

// ruleSets returns the existing sets of rules.
func (n *network) ruleSets() (all []datapath.SetName) {
	n.t.Helper()
	for key, err := range n.d.firewall.Keys(context.Background()) {
		n.ok(err)
		all = append(all, key)
	}
	return all
}

// threeRules returns two rules for one address, and one for another.
func threeRules() datapath.FirewallSet {
	return datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{
		"b": ruleFor(10, "10.0.1.11", datapath.ActionDeny), "a": ruleFor(10, "10.0.1.11", datapath.ActionAllow),
		"c": ruleFor(5, "10.0.1.12", datapath.ActionReject),
	}}
}

// TestFirewallSetRestarts checks a rule set across a restart: the rules in force, their ids and
// counters, and whether connections are evaluated again.
func TestFirewallSetRestarts(t *testing.T) {
	n := newNetwork(t)
	n.wantInForce("no rules", 0, 0, 0, 0)
	if got := n.ruleSets(); len(got) != 0 {
		t.Errorf("sets %v, want none", got)
	}
	n.putRules(threeRules())
	a, c := n.ruleID("a"), n.ruleID("c")
	n.wantInForce("rules", 1, a, c, 0)
	n.hit(c, 7)
	n.wantCounted("c", 7)
	n.putRules(threeRules())
	n.wantInForce("the same rules", 1, a, c, 0)
	n.wantCounted("c", 7)

	n.ok(n.d.Close())
	n.restart("tcx")
	n.wantInForce("after a restart", 1, a, c, 0)
	if got := n.ruleSets(); !slices.Equal(got, []datapath.SetName{datapath.NodeSet}) {
		t.Errorf("sets %v, want the node's set", got)
	}
	n.wantCounted("c", 7)
	n.putRules(threeRules())
	n.wantInForce("the same rules after a restart", 1, a, c, 0)
}

// TestFirewallSetChanges adds and removes rules, as the daemon and as another program.
func TestFirewallSetChanges(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	set := threeRules()
	n.putRules(set)
	n.hit(n.ruleID("c"), 7)
	delete(set.Rules, "a")
	set.Rules["d"] = ruleFor(1, "10.0.1.13", datapath.ActionDeny)
	set.Exempt = []datapath.Match{{Destination: []netip.Prefix{netip.MustParsePrefix("10.0.1.12/32")}}}
	n.putRules(set)
	b, d := n.ruleID("b"), n.ruleID("d")
	n.wantInForce("others", 2, b, 0, d)
	n.wantCounted("c", 7)
	n.wantCounted("d", 0)
	if _, ok, err := n.d.Telemetry().RuleCounters(ctx, "a"); ok || err != nil {
		t.Errorf("a rule that is gone has counters (%v)", err)
	}

	n.ok(n.d.maps[kernel.MapLlImage128k].Delete(uint32(kernel.RulesFirewall)))
	if ok, err := n.d.firewall.Verify(ctx, datapath.NodeSet); ok || err != nil {
		t.Errorf("the check misses that the rules are gone: %v", err)
	}
	n.putRules(set)
	n.wantInForce("published again", 3, b, 0, d)

	n.ok(n.d.firewall.Delete(ctx, datapath.NodeSet))
	n.ok(n.d.firewall.Delete(ctx, datapath.NodeSet))
	n.wantInForce("no rules any more", 4, 0, 0, 0)
	for _, table := range []string{kernel.MapLlRuleName, kernel.MapLlRuleHits, kernel.MapLlImage128k} {
		if held, err := countKeys(n.d.maps[table]); err != nil || held != 0 {
			t.Errorf("%s holds %d entries (%v)", table, held, err)
		}
	}
}

func countKeys(m *ebpf.Map) (n int, err error) {
	var key, value []byte
	it := m.Iterate()
	for it.Next(&key, &value) {
		n++
	}
	return n, it.Err()
}

// TestFirewallSetSizes changes between sets with images of all sizes.
func TestFirewallSetSizes(t *testing.T) {
	n := newNetwork(t)
	n.config.Tables.Rules = 20_000
	n.restart("tcx")
	ctx := context.Background()
	for _, size := range []int{20, 10_000, 200, 3000, 1, 10_000} {
		set := datapath.FirewallSet{Rules: make(map[datapath.RuleName]datapath.FirewallRule)}
		for i := range size {
			set.Rules[datapath.RuleName(fmt.Sprint("r", i))] = ruleFor(int32(i), fmt.Sprintf("10.%d.%d.%d", i%251, i/251%241, i%239), datapath.ActionDeny)
		}
		set.Rules["last"] = ruleFor(1<<30, "10.0.1.11", datapath.ActionDeny)
		n.ok(n.d.firewall.Update(ctx, datapath.NodeSet, set))
		if got := n.rulesInForce("10.0.1.11"); got[0] != n.ruleID("last") {
			t.Errorf("%d rules: rule %d decides, want %d", size, got[0], n.ruleID("last"))
		}
		images := 0
		for _, name := range imageMaps {
			held, err := countKeys(n.d.maps[name])
			n.ok(err)
			images += held
		}
		if images != 1 {
			t.Errorf("%d rules: there are %d images", size, images)
		}
	}
}

// TestFirewallSetNeedsRoom replaces the maximum number of rules by as many others.
func TestFirewallSetNeedsRoom(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	of := func(prefix string, count int) datapath.FirewallSet {
		set := datapath.FirewallSet{Rules: make(map[datapath.RuleName]datapath.FirewallRule)}
		for i := range count {
			set.Rules[datapath.RuleName(fmt.Sprint(prefix, i))] = ruleFor(0, "10.0.1.11", datapath.ActionDeny)
		}
		return set
	}
	room := int(n.config.Tables.Rules)
	n.ok(n.d.firewall.Update(ctx, datapath.NodeSet, of("a", room)))
	n.ok(n.d.firewall.Update(ctx, datapath.NodeSet, of("b", room)))
	if got := n.rulesInForce("10.0.1.11"); got[0] != n.ruleID("b0") {
		t.Errorf("rule %d decides, want %d", got[0], n.ruleID("b0"))
	}
	if err := n.d.firewall.Update(ctx, datapath.NodeSet, of("b", room+1)); !errors.Is(err, unix.E2BIG) {
		t.Errorf("error %v, want that there is no room", err)
	}
}

// TestFirewallSetKeepsRulesWhenRefused: after an invalid change the previous rules stay in force.
func TestFirewallSetKeepsRulesWhenRefused(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	set := datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{"a": ruleFor(0, "10.0.1.11", datapath.ActionDeny)}}
	n.ok(n.d.firewall.Update(ctx, datapath.NodeSet, set))
	before := n.rulesInForce("10.0.1.11")
	set.Rules = maps.Clone(set.Rules)
	wrong := ruleFor(0, "10.0.1.12", datapath.ActionDeny)
	wrong.Match.SourceGroups = []datapath.GroupName{"absent"}
	set.Rules["wrong"] = wrong
	delete(set.Rules, "a")
	err := n.d.firewall.Update(ctx, datapath.NodeSet, set)
	var about *datapath.RuleError
	if !errors.As(err, &about) || about.Rule != "wrong" || !errors.Is(err, datapath.ErrAbsent) {
		t.Errorf("error %v, want one about the rule", err)
	}
	if got := n.rulesInForce("10.0.1.11"); !slices.Equal(got, before) || n.epoch() != 1 {
		t.Errorf("rules %v in force at epoch %d, want %v as before", got, n.epoch(), before)
	}
}

// TestFirewallSetFollowsDevices: if a device that rules name gets another ifindex, the rules follow
// the name, and connections are evaluated again.
func TestFirewallSetFollowsDevices(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	rule := ruleFor(0, "10.0.1.11", datapath.ActionDeny)
	rule.Match.In = []string{"dmz0"}
	n.ok(n.d.firewall.Update(ctx, datapath.NodeSet, datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{"a": rule}}))
	epoch := n.epoch()
	changed := func(what string, want uint32, args ...string) {
		t.Helper()
		n.node.Run(t, "ip", append([]string{"link"}, args...)...)
		z, err := n.d.namespaces.Open(netnsHost)
		n.ok(err)
		n.ok(z.Devices.Scan())
		if got := n.epoch() - epoch; got != want {
			t.Errorf("%s: the epoch rose by %d, want %d", what, got, want)
		}
		epoch = n.epoch()
	}
	changed("another device", 0, "add", "lan0", "type", "bridge")
	changed("the device comes", 1, "add", "dmz0", "type", "bridge")
	named := 0
	n.ok(n.d.tables.Device.Batches(func(_ []kernel.DeviceKey, devices []kernel.Device) error {
		for _, d := range devices {
			if d.Text() == "dmz0" {
				named++
			}
		}
		return nil
	}))
	if named != 1 {
		t.Errorf("programs know %d devices by its name", named)
	}
	changed("its address changes", 0, "set", "dmz0", "mtu", "1400")
	changed("it goes", 1, "del", "dmz0")
	changed("another one is called so", 1, "set", "lan0", "name", "dmz0")
	n.restart("tcx")
	if got := n.epoch(); got != epoch {
		t.Errorf("a restart raised the epoch by %d", got-epoch)
	}
}

// manyRules returns this number of rules, and one for 10.0.1.11 that may name a device.
func manyRules(action datapath.FirewallAction, rules int, out ...string) datapath.FirewallSet {
	set := datapath.FirewallSet{Rules: make(map[datapath.RuleName]datapath.FirewallRule)}
	for i := range rules {
		set.Rules[datapath.RuleName(fmt.Sprint("r", i))] = ruleFor(1, fmt.Sprintf("10.%d.%d.%d", i%251, i%241, i%239), action)
	}
	last := ruleFor(2, "10.0.1.11", action)
	last.Match.Out = out
	set.Rules["last"] = last
	return set
}

// action returns the action of the rules in force for packets to 10.0.1.11.
func (n *network) action() datapath.FirewallAction {
	n.t.Helper()
	image, err := n.d.images.InForce(kernel.RulesFirewall)
	n.ok(err)
	if image == nil {
		n.t.Fatal("there are no rules")
	}
	to := netip.MustParseAddr("10.0.1.11")
	r, ok := image.Find(&classify.Packet{Source: to, Destination: to, Hook: datapath.HookForward, Out: "out0"})
	if !ok {
		n.t.Fatal("no rule matches")
	}
	return datapath.FirewallAction(r.Action)
}

// imageMaps are the maps of images, the smallest first.
var imageMaps = []string{kernel.MapLlImage128k, kernel.MapLlImage1m, kernel.MapLlImage8m, kernel.MapLlImage64m}

// ruleID returns the id of a rule; 0: the rule does not exist.
func (n *network) ruleID(name datapath.RuleName) uint32 {
	id, _ := n.d.firewall.ID(name)
	return id
}

// interrupt changes the rules, and aborts before step number at, as if the daemon were killed. It
// returns the name of that step; "": there are fewer steps.
func (n *network) interrupt(from, to datapath.FirewallSet, at int) (last string) {
	n.t.Helper()
	defer func() { kernel.AtStep = func(string) error { return nil } }()
	stop := errors.New("stop")
	n.ok(n.d.firewall.Update(context.Background(), datapath.NodeSet, from))
	steps := 0
	kernel.AtStep = func(name string) error {
		if steps++; steps < at {
			return nil
		}
		if steps == at {
			last = name
		}
		return stop
	}
	if err := n.d.firewall.Update(context.Background(), datapath.NodeSet, to); last != "" != errors.Is(err, stop) {
		n.t.Fatalf("ended at %q: %v", last, err)
	}
	return last
}

// TestFirewallSetInterrupted aborts a change of rules at each of its steps: then the old or the new
// set is in force. The next run puts the new set in force, and connections are evaluated again.
func TestFirewallSetInterrupted(t *testing.T) {
	n := newNetwork(t)
	n.config.Tables.Rules = 4096
	n.restart("tcx")
	seen := make(map[string]bool)
	for _, change := range []struct{ from, to datapath.FirewallSet }{
		{manyRules(datapath.ActionDeny, 3), manyRules(datapath.ActionReject, 3, "out0")},    // in the same map
		{manyRules(datapath.ActionDeny, 3), manyRules(datapath.ActionReject, 3000, "out0")}, // in a larger one
		{manyRules(datapath.ActionDeny, 3000), manyRules(datapath.ActionReject, 3)},         // in a smaller one
	} {
		for at := 1; ; at++ {
			last := n.interrupt(change.from, change.to, at)
			if last == "" {
				break
			}
			seen[last] = true
			in, epoch := n.action(), n.epoch()
			n.ok(n.d.adoptRules()) // as the next run does
			n.ok(n.d.firewall.Update(context.Background(), datapath.NodeSet, change.to))
			if n.action() != datapath.ActionReject {
				t.Errorf("before %s: the next run does not put the rules in force", last)
			}
			if in == datapath.ActionAllow || n.epoch() == epoch && last != "settle image" {
				t.Errorf("before %s: action %v is in force, and the epoch stays %d", last, in, epoch)
			}
			var now kernel.Rules
			n.ok(n.d.tables.Rules.Lookup(uint32(kernel.RulesFirewall), &now))
			for i, name := range imageMaps {
				if held, err := countKeys(n.d.maps[name]); err != nil || held > 0 != (now.Image == uint32(i+1)) {
					t.Errorf("before %s: %s holds %d images (%v)", last, name, held, err)
				}
			}
		}
	}
	if want := []string{
		"insert image ll_image_128k", "insert image ll_image_1m", "prepare image", "publish image", "raise epoch",
		"remove image ll_image_128k", "remove image ll_image_1m", "settle image",
	}; !slices.Equal(slices.Sorted(maps.Keys(seen)), want) {
		t.Errorf("steps %v, want %v", slices.Sorted(maps.Keys(seen)), want)
	}
}

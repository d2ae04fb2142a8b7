// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestMirrorWithoutPorts: a Mirror of a rule copies nothing if no port is in the network namespace
// of its target; if ports are, packets of other ports are not copied, which a message reports.
func TestMirrorWithoutPorts(t *testing.T) {
	plane := backends.NewFake(backends.FakeOptions{Device: func(p datapath.Port) (datapath.PortState, bool) {
		return datapath.PortState{Device: p.Device, Index: 7}, true
	}})
	rule := datapath.FirewallRule{Hooks: datapath.HookAll}
	if err := plane.Firewall().Update(t.Context(), datapath.NodeSet, datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{"ok": rule}}); err != nil {
		t.Fatal(err)
	}
	if err := plane.Mirrors().Update(t.Context(), "m", datapath.Mirror{Rule: "ok", To: datapath.MirrorTarget{Device: "lan"}}); err != nil {
		t.Fatal(err)
	}
	w := seenWorld(t, map[string]datapath.Device{"mon0": device()}, "hs1")
	w.opts.Telemetry = plane.Telemetry()
	row := reconcile.Status{State: reconcile.Done}
	w.opts.RowStatus = func(state.Key) (reconcile.Status, bool) { return row, true }
	m := &state.Mirror{Source: state.Key{Kind: state.KindFirewallRule, Name: "ok"}, SourceField: "rule"}
	m.To.Device = "mon0"
	commit(t, w.opts.Store, objectOf(state.KindFirewallRule, "ok", &state.FirewallRule{FirewallRule: rule}), objectOf(state.KindMirror, "m", m))
	is := func() condition { return w.ofMirror("m", m, w.opts.Store.Snapshot()) }
	wantCondition(t, is(), false, []string{"packets of FirewallRule/ok pass no attached device in the host's network namespace"})
	if err := plane.Ports().Update(t.Context(), "wan", datapath.Port{Device: "wan"}); err != nil {
		t.Fatal(err)
	}
	wantCondition(t, is(), true, []string{"packets that pass only devices in the switch are not copied"})
	m.To.Device = "mon7"
	wantCondition(t, is(), false, []string{`copies are lost, because device "mon7" does not exist in the host's network namespace`})
	row = reconcile.Status{State: reconcile.Failed, Message: "refused", Failures: 1}
	wantCondition(t, is(), false, []string{"copies nothing, because FirewallRule/ok is not applied yet: refused"})
}

// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

func mirrorTo(name string, source Key, to datapath.MirrorTarget) *Object {
	field := strings.ToLower(strings.TrimPrefix(source.Kind, "Firewall"))
	v := &Mirror{Source: source, SourceField: field}
	v.To = to
	return &Object{Key: Key{KindMirror, name}, Owner: "cli", Spec: fmt.Sprint(source, to), Value: v}
}

func toDevice(device string) datapath.MirrorTarget { return datapath.MirrorTarget{Device: device} }

func toPeer(peer string, vni uint32) datapath.MirrorTarget {
	return datapath.MirrorTarget{Peer: datapath.PeerName(peer), VNI: vni}
}

func attachedTo(name, device string, inSwitch bool) *Object {
	v := &Interface{datapath.Port{Device: device, Switch: inSwitch}}
	return &Object{Key: Key{KindInterface, name}, Owner: "cli", Spec: fmt.Sprint(device, inSwitch), Value: v}
}

func ruleOf(name string, action datapath.FirewallAction, stateless bool) *Object {
	v := &FirewallRule{datapath.FirewallRule{Action: action, Stateless: stateless}}
	return &Object{Key: Key{KindFirewallRule, name}, Owner: "cli", Spec: fmt.Sprint(action, stateless), Value: v}
}

// TestMirrorsResolve: what a Mirror copies, and where to, follows from the objects that it names.
// Without these it is pending, and says which command creates the missing one.
func TestMirrorsResolve(t *testing.T) {
	eth, sw := Key{KindInterface, "eth"}, Key{KindInterface, "sw"}
	web, pod := Key{KindService, "web"}, Key{KindEndpoint, "pod"}
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{
		attachedTo("eth", "eth7", false), attachedTo("sw", "hs9", true), service(t, "web", "192.0.2.1:80 1"), endpoint("pod", "hs5", 5, "10.1.0.5"),
		ruleOf("ok", datapath.ActionAllow, false), ruleOf("no", datapath.ActionDeny, false), ruleOf("each", datapath.ActionAllow, true),
		tunnel("mesh", "cli"), peerBy("far", "cli", "mesh"), peerBy("routed", "cli", ""), peerBy("early", "cli", "none"),
	}})
	for _, c := range []struct {
		source Key
		to     datapath.MirrorTarget
		merged bool
		want   datapath.Mirror
		fault  string // empty: none
		absent bool
	}{
		{source: eth, to: toDevice("mon"), want: datapath.Mirror{Port: "eth", To: toDevice("mon")}},
		{source: sw, to: toDevice("mon"), want: datapath.Mirror{Port: "sw", To: datapath.MirrorTarget{Device: "mon", Switch: true}}},
		{source: sw, to: toDevice("mon"), merged: true, want: datapath.Mirror{Port: "sw", To: toDevice("mon")}},
		{source: pod, to: toDevice("mon"), want: datapath.Mirror{Port: "Endpoint/pod", To: datapath.MirrorTarget{Device: "mon", Switch: true}}},
		{source: web, to: toDevice("mon"), want: datapath.Mirror{Service: "web", To: toDevice("mon")}},
		{source: Key{KindFirewallRule, "ok"}, to: toPeer("far", 77), want: datapath.Mirror{Rule: "ok", To: toPeer("far", 77)}},

		{source: Key{KindInterface, "none"}, to: toDevice("mon"), absent: true, fault: "Interface/none does not exist: create it (llcli interface add none), or change spec.source.interface"},
		{source: Key{KindFirewallRule, "none"}, to: toDevice("mon"), absent: true, fault: "(llcli firewallrule add none), or change spec.source.rule"},
		{source: Key{KindFirewallRule, "no"}, to: toDevice("mon"), absent: true, fault: "FirewallRule/no allows no connections"},
		{source: Key{KindFirewallRule, "each"}, to: toDevice("mon"), absent: true, fault: "name a stateful rule with action allow"},
		{source: eth, to: toPeer("none", 7), absent: true, fault: "Peer/none does not exist: create it (llcli peer add none)"},
		{source: eth, to: toPeer("routed", 7), absent: true, fault: "Peer/routed has no Tunnel, through which copies could be sent: set one (llcli peer set routed --tunnel NAME)"},
		{source: eth, to: toPeer("early", 7), absent: true, fault: "Tunnel/none does not exist: create it (llcli tunnel add none), or change the tunnel of Peer/early"},
		{source: eth, to: toPeer("far", 4), fault: "4 is the VNI of Tunnel/mesh"},
		{source: eth, to: toDevice("eth7"), fault: "eth7 is the device of Interface/eth, whose packets are copied"},
		{source: pod, to: toDevice("hs5"), fault: "hs5 is the device of Endpoint/pod"},
		{source: pod, to: toDevice("hs-mesh-e"), fault: "hs-mesh-e is the device of Tunnel/mesh, which does not carry copies"},
		{source: web, to: toDevice("hs-mesh"), merged: true, fault: "hs-mesh is the device of Tunnel/mesh"},
		{source: web, to: toDevice("hs-mesh"), want: datapath.Mirror{Service: "web", To: toDevice("hs-mesh")}}, // the host's, not the switch's
	} {
		m := mirrorTo("m", c.source, c.to).Value.(*Mirror)
		got, fault := s.Snapshot().Resolve(m, c.merged)
		switch {
		case fault == nil && (c.fault != "" || fmt.Sprint(got) != fmt.Sprint(c.want)):
			t.Errorf("%s to %+v: %+v, want %+v, %q", c.source, c.to, got, c.want, c.fault)
		case fault != nil && (c.fault == "" || !strings.Contains(fault.Text, c.fault) || errors.Is(fault, datapath.ErrAbsent) != c.absent):
			t.Errorf("%s to %+v: %q, absent %t; want %q, absent %t", c.source, c.to, fault.Text, errors.Is(fault, datapath.ErrAbsent), c.fault, c.absent)
		}
	}
	host := mirrorTo("m", pod, toDevice("mon")).Value.(*Mirror)
	host.HasNetns = true
	if _, fault := s.Snapshot().Resolve(host, false); fault == nil || !strings.Contains(fault.Text, "the network namespace of the switch, which copies cannot leave: set spec.to.netns to switch") {
		t.Errorf("a pod's packets to a device of the host: %v", fault)
	}
	if _, fault := s.Snapshot().Resolve(host, true); fault != nil {
		t.Errorf("host and switch are one: %v", fault)
	}
}

// TestMirrorsInConflict: neither a Mirror nor the other object in conflict with it is accepted later
// than the other one. A rollback is: the Mirror's status states the conflict.
func TestMirrorsInConflict(t *testing.T) {
	cfg, values := testConfig(t.TempDir()), map[string]Value{} // by kind and spec
	cfg.Decode = func(kind string, spec []byte) (Value, error) { return values[kind+string(spec)], nil }
	s, _ := open(t, cfg)
	put := func(o ...*Object) *Transaction {
		for _, o := range o {
			values[o.Kind+o.Spec] = o.Value
		}
		return &Transaction{Put: o}
	}
	eth, far := attachedTo("eth", "eth7", false), peerBy("far", "cli", "mesh")
	commit(t, s, put(eth, far, tunnel("mesh", "cli")))
	with := s.Snapshot().Revision
	wantRefusal(t, s, put(mirrorTo("m", eth.Key, toPeer("far", 4))), Conflict, "Mirror/m", "spec.to.vni", "4 is the VNI of Tunnel/mesh")
	wantRefusal(t, s, put(mirrorTo("m", eth.Key, toDevice("eth7"))), Conflict, "Mirror/m", "spec.to.device", "name another device")
	commit(t, s, &Transaction{Delete: []Key{{KindTunnel, "mesh"}, far.Key}})
	commit(t, s, put(mirrorTo("m", eth.Key, toPeer("far", 5)), mirrorTo("d", eth.Key, toDevice("mon")), tunnel("net", "cli"), peerBy("far", "cli", "net")))
	wantRefusal(t, s, put(tunnel("other", "cli")), Conflict, "Tunnel/other", "", "Mirror/m would stop copying (spec.to.vni): 5 is the VNI of Tunnel/other")
	wantRefusal(t, s, put(attachedTo("eth", "mon", false)), Conflict, "Interface/eth", "", "Mirror/d would stop copying (spec.to.device): mon is the device of Interface/eth")
	agent := put(tunnel("other", OwnerK8s))
	agent.DryRun = true
	if r := commit(t, s, agent); len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "Mirror/m: no longer copies anything: 5 is the VNI of Tunnel/other") {
		t.Errorf("a Tunnel of the agent: warnings %q", r.Warnings)
	}
	moved := put(attachedTo("eth", "mon", false))
	moved.Delete = []Key{{KindMirror, "d"}}
	commit(t, s, moved)

	// The object files are not rolled back, so a rollback may lead to a conflict.
	file := mirrorTo("f", eth.Key, toPeer("far", 4))
	file.Owner = OwnerFile
	commit(t, s, &Transaction{Owner: OwnerFile, Put: []*Object{file}})
	if _, err := s.Rollback(&Rollback{Revision: with}); err != nil {
		t.Fatal(err)
	}
	if _, fault := s.Snapshot().Resolve(file.Value.(*Mirror), false); fault == nil || !fault.Conflict {
		t.Errorf("after the rollback: %v, want a conflict", fault)
	}
}

// TestDeletedSourceOfMirror: deleting an object that a Mirror names is allowed, with a warning.
func TestDeletedSourceOfMirror(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	web := service(t, "web", "192.0.2.1:80 1")
	commit(t, s, &Transaction{Put: []*Object{web, mirrorTo("m", web.Key, toDevice("mon"))}})
	r := commit(t, s, &Transaction{Delete: []Key{web.Key}})
	if want := "Mirror/m: no longer copies anything, because Service/web is deleted"; len(r.Warnings) != 1 || r.Warnings[0] != want {
		t.Errorf("warnings %q, want %q", r.Warnings, want)
	}
	if r = commit(t, s, &Transaction{Put: []*Object{service(t, "other", "192.0.2.2:80 1")}}); len(r.Warnings) != 0 {
		t.Errorf("warnings %q about an earlier change", r.Warnings)
	}
	commit(t, s, &Transaction{Put: []*Object{web}})
	if r = commit(t, s, &Transaction{Delete: []Key{web.Key, {KindMirror, "m"}}}); len(r.Warnings) != 0 {
		t.Errorf("warnings %q about a Mirror that is deleted as well", r.Warnings)
	}
}

func TestMostMirrors(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	var all []*Object
	for i := range datapath.MirrorMax {
		all = append(all, mirrorTo(fmt.Sprint("m", i), Key{KindInterface, "eth"}, toDevice("mon")))
	}
	commit(t, s, &Transaction{Put: all})
	more := mirrorTo("more", Key{KindInterface, "eth"}, toDevice("mon"))
	wantRefusal(t, s, &Transaction{Put: []*Object{more}}, Capacity, "Mirror/more", "", "at most 64 Mirrors: 64 now, 65 with this change")
	commit(t, s, &Transaction{Put: []*Object{more}, Delete: []Key{{KindMirror, "m0"}}})
}

// TestTargetOfMirrorIsNamed: a new pod's device does not get the name of a device that receives
// copies.
func TestTargetOfMirrorIsNamed(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{mirrorTo("m", Key{KindInterface, "eth"}, toDevice("hs3")), mirrorTo("p", Key{KindInterface, "eth"}, toPeer("far", 3))}, Confirm: time.Minute})
	if !s.NamesDevice("hs3", OwnerCNI) || s.NamesDevice("", OwnerCNI) || s.NamesDevice("hs4", OwnerCNI) {
		t.Error("hs3 is free, or another name is taken")
	}
}

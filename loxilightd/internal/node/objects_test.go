// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestOmittedRuleReturns: a host port that was omitted, since the node did not have its address, is
// not Ready before the rules that include it are in force, although other rules are.
func TestOmittedRuleReturns(t *testing.T) {
	var present atomic.Bool
	plane := backends.NewFake(backends.FakeOptions{Device: func(p datapath.Port) (datapath.PortState, bool) {
		if p.Address.IsValid() && !present.Load() {
			return datapath.PortState{}, false
		}
		return datapath.PortState{Device: "eth0", Index: 7, MTU: 1500}, true
	}})
	store, reports := openStore(t), &recorder{}
	n := start(t, Options{Store: store, Plane: plane, StatusChanged: reports.record})
	hostPort := objectOf(state.KindNAT, "pod-80", &state.NAT{NAT: datapath.NAT{
		Type: datapath.DNAT, Match: datapath.Match{Destination: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}},
	}})
	hostPort.Owner = state.OwnerCNI
	attach(t, store)
	other := nat("other")
	revision := commit(t, store, []*state.Object{hostPort, other})
	waitFor(t, n, revision, other)
	reports.want(t, "NAT/other done", "NAT/pod-80 pending")
	if left, err := n.Wait(within(t, 50*time.Millisecond), revision, []state.Key{hostPort.Key}); err == nil || len(left) != 1 {
		t.Errorf("waited with %v, left %v; want the host port", err, left)
	}
	if some, count := n.NotDone(5); count != 1 || !strings.Contains(some[hostPort.Key].Message, "192.0.2.7 is not an address of this node") {
		t.Errorf("not done: %v", some)
	}

	plane.Refuse("pod-80", errors.New("no room"))
	present.Store(true)
	plane.SignalChange()
	reports.want(t, "NAT/pod-80 failed")
	if s, _ := n.Status(hostPort.Key); s.State != reconcile.Failed || s.Message != "no room" {
		t.Errorf("status %+v, want that there is no room", s)
	}
	plane.Refuse("pod-80", nil)
	reports.want(t, "NAT/pod-80 done")
	present.Store(false)
	plane.SignalChange()
	reports.want(t, "NAT/pod-80 pending")
}

// TestNothingToMasquerade: a PodNetwork that masquerades towards no destination needs no NAT rule.
func TestNothingToMasquerade(t *testing.T) {
	r := newPodRig(t)
	r.apply(uplink("eth0"), masqueraded("one", "10.7.1.0/24", "0.0.0.0/0"))
}

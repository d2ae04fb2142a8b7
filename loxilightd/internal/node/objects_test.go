// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
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

// slowEndpoints is a network in which no Endpoint is applied before proceed is closed.
type slowEndpoints struct {
	*backends.FakeNetwork
	proceed chan struct{}
}

type slowEndpointTable struct {
	datapath.Table[datapath.EndpointName, datapath.Endpoint]
	proceed chan struct{}
}

func (s slowEndpoints) Endpoints() datapath.Table[datapath.EndpointName, datapath.Endpoint] {
	return slowEndpointTable{s.FakeNetwork.Endpoints(), s.proceed}
}

func (s slowEndpointTable) Update(ctx context.Context, name datapath.EndpointName, e datapath.Endpoint) error {
	select {
	case <-s.proceed:
	case <-ctx.Done():
	}
	return s.Table.Update(ctx, name, e)
}

// TestNotReadyBeforeItsLastTable: a PodNetwork is not Ready while some of its rows still wait for
// another object in the same transaction.
func TestNotReadyBeforeItsLastTable(t *testing.T) {
	network := slowEndpoints{backends.NewFakeNetwork(backends.FakeOptions{}), make(chan struct{})}
	via := func() string {
		_, routes := network.Content()
		if r, ok := routes["pods#default4"]; ok {
			return r.NextHops[0].Via.String()
		}
		return "none"
	}
	store, done := openStore(t), make(chan string, 100)
	n := start(t, Options{
		Store: store, Plane: endpointPlane(), Network: network, Devices: Devices{Host: "loxi_host", Switch: "hs_host"},
		StatusChanged: func(k state.Key, s Status) {
			if k.Kind == state.KindPodNetwork && s.State == reconcile.Done {
				done <- via()
			}
		},
	})
	one := podNetwork("one", "10.7.1.0/24")
	waitFor(t, n, commit(t, store, []*state.Object{one}), one)
	if got := <-done; got != "10.7.1.2" {
		t.Errorf("Ready with a default route via %s", got)
	}
	commit(t, store, []*state.Object{podNetwork("one", "10.7.2.0/24"), endpoint("pod", "one", 5, nil)})
	for range 20 {
		if s, _ := n.Status(one.Key); s.State == reconcile.Done && s.Revision > 1 && via() != "10.7.2.2" {
			t.Fatalf("status %+v with a default route via %s", s, via())
		}
		time.Sleep(5 * time.Millisecond)
	}
	close(network.proceed)
	if got := <-done; got != "10.7.2.2" {
		t.Errorf("Ready with a default route via %s", got)
	}
}

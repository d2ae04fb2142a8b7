// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// wayOf returns the state of a neighbour on the device lan, which depends on the last byte of its
// address.
func wayOf(h datapath.Hop) datapath.HopState {
	a := h.Addr
	is := datapath.HopState{Device: "lan", Link: datapath.LinkUp, Neighbour: a}
	switch a.AsSlice()[len(a.AsSlice())-1] {
	case 1: // the node's own
		return datapath.HopState{}
	case 2:
		is.Failed = true
	case 3:
		is.Resolving = true
	case 4:
		is.Link = datapath.LinkNoCarrier
	case 5:
		return datapath.HopState{Device: "lan", Link: datapath.LinkDown, Err: errors.New("no route leads there")}
	case 6:
		return datapath.HopState{Err: errors.New("it is a broadcast address")}
	case 7: // unknown until the kernel probes it
	default:
		is.Resolved = true
	}
	return is
}

// targetWorld is a node with the neighbours of wayOf, and Interfaces on all of its devices.
type targetWorld struct {
	*world
	t *testing.T
}

func newTargetWorld(t *testing.T) *targetWorld {
	w := &targetWorld{seenWorld(t, map[string]datapath.Device{"lan": device("10.1.0.1/24", "fd01::1/64")}), t}
	w.devices["lan"] = w.devices["wan"]
	w.opts.Telemetry = backends.NewFake(backends.FakeOptions{Hop: wayOf}).Telemetry()
	return w
}

// service stores a Service whose backends are the targets; nat stores a destination NAT to a
// target.
func (w *targetWorld) service(h *state.HealthCheck, targets ...string) *state.Object {
	v := &state.Service{Health: h}
	for _, text := range targets {
		a := netip.MustParseAddr(text)
		frontend := "192.0.2.200:80"
		if a.Is6() {
			frontend = "[2001:db8::200]:80"
		}
		v.Frontends = []datapath.Frontend{{Addr: netip.MustParseAddrPort(frontend)}}
		v.Backends = append(v.Backends, datapath.Backend{Addr: netip.AddrPortFrom(a, 80), Weight: 1})
	}
	return w.put(objectOf(state.KindService, "web", v))
}

func (w *targetWorld) nat(target string) *state.Object {
	a := netip.MustParseAddr(target)
	return w.put(objectOf(state.KindNAT, "in", &state.NAT{NAT: datapath.NAT{
		Type: datapath.DNAT, Addresses: []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}, Match: datapath.Match{In: []string{"wan"}},
	}}))
}

func (w *targetWorld) put(o *state.Object) *state.Object {
	commit(w.t, w.opts.Store, o)
	stored, _ := w.opts.Store.Snapshot().Get(o.Key)
	return stored
}

// read reads the node, and returns the resulting condition of an object.
func (w *targetWorld) read(o *state.Object) condition {
	s := w.opts.Store.Snapshot()
	w.ways = newHopCache(w.opts.Telemetry)
	w.reach = readReach(w.opts, s, reach{})
	w.readTargets(s, &reach{})
	return w.of(o)
}

func (w *targetWorld) of(o *state.Object) condition {
	if v, ok := o.Value.(*state.NAT); ok {
		return w.ofNAT(v, o.Revision)
	}
	return w.ofService(o, o.Value.(*state.Service))
}

// TestSilentNeighbours: a Service and a destination NAT depend on the neighbours towards their
// targets, and on the links there.
func TestSilentNeighbours(t *testing.T) {
	for _, net := range []string{"10.1.0.", "fd01::"} {
		w := newTargetWorld(t)
		for _, c := range []struct {
			last  string
			words []string // words of the message; no words: the target is reached
		}{
			{"1", nil}, {"9", nil},
			{"2", []string{net + "2", "does not answer", `"lan"`}},
			{"4", []string{net + "4", `"lan"`, "no carrier"}},
			{"5", []string{net + "5", "ip link set lan up"}},
			{"6", []string{net + "6", "broadcast address"}},
		} {
			ready := len(c.words) == 0
			wantCondition(t, w.read(w.service(nil, net+c.last)), ready, c.words)
			wantCondition(t, w.read(w.nat(net+c.last)), ready, c.words)
			is := w.read(w.service(nil, net+c.last, net+"9"))
			if wantCondition(t, is, true, c.words); !ready && is.quiet {
				t.Errorf("%+v: a lost backend counts for the health", is)
			}
		}
	}
}

// TestUnaskedNeighbours: a target does not count as reached while the state of its neighbour is
// unknown. The kernel is not made to probe the neighbours of a Service that has a health check.
func TestUnaskedNeighbours(t *testing.T) {
	for _, net := range []string{"10.1.0.", "fd01::"} {
		w := newTargetWorld(t)
		for _, is := range []condition{
			w.read(w.service(nil, net+"3")),
			w.of(w.service(nil, net+"7")),
			w.of(w.nat(net + "7")),
		} {
			if wantCondition(t, is, false, []string{"yet"}); !is.untried || !is.quiet {
				t.Errorf("%+v: want that it is over soon", is)
			}
		}
		w = newTargetWorld(t)
		if w.read(w.service(&state.HealthCheck{Type: "tcp"}, net+"2")); len(w.reach.asked) > 0 {
			t.Errorf("the neighbours of a Service with a health check were asked: %v", w.reach.asked)
		}
	}
}

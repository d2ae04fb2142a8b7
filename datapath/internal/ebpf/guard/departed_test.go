// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// entryOf is an entry of UDP.
type entryOf struct {
	meta          *kernel.CtMeta
	namespace     uint8
	comes, leaves datapath.Tuple
}

func (e entryOf) Meta() *kernel.CtMeta                   { return e.meta }
func (e entryOf) Protocol() datapath.Protocol            { return datapath.UDP }
func (e entryOf) Namespace() uint8                       { return e.namespace }
func (e entryOf) Tuples() (comes, leaves datapath.Tuple) { return e.comes, e.leaves }

// TestReleasedInBothNamespaces: a released pod address affects connections in both namespaces,
// since a connection may be translated in one and continue in the other. A released link-local
// address affects only connections in its own namespace.
func TestReleasedInBothNamespaces(t *testing.T) {
	pod, local, outside := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fe80::5"), netip.MustParseAddr("203.0.113.9")
	d := &departed{}
	d.leave(hook.Switch, pod, "a")
	d.leave(hook.Switch, local, "a")
	for a, left := range d.left {
		left.at = left.at.Add(-Grace)
		d.left[a] = left
	}
	p := d.PassBegins(1)
	for _, test := range []struct {
		namespace uint8
		addr      netip.Addr
		want      bool
	}{{hook.Switch, pod, true}, {hook.Host, pod, true}, {hook.Switch, local, true}, {hook.Host, local, false}, {hook.Host, outside, false}} {
		comes := datapath.Tuple{Source: netip.AddrPortFrom(outside, 514), Destination: netip.MustParseAddrPort("192.0.2.1:514")}
		leaves := datapath.Tuple{Source: netip.AddrPortFrom(outside, 514), Destination: netip.AddrPortFrom(test.addr, 514)}
		m := kernel.CtMeta{State: uint8(kernel.CtStateCT_ESTABLISHED)}
		if got := p.Ends(entryOf{&m, test.namespace, comes, leaves}); got != test.want {
			t.Errorf("namespace %d, %s: %t, want %t", test.namespace, test.addr, got, test.want)
		}
	}
}

// TestTaken: if another endpoint gets a released address, the connections of the address end at once,
// also closing ones, except those that keep a source port from being used again. If its own endpoint
// gets it again in time, they continue.
func TestTaken(t *testing.T) {
	pod, outside := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("203.0.113.9")
	tuple := datapath.Tuple{Source: netip.AddrPortFrom(pod, 514), Destination: netip.AddrPortFrom(outside, 514)}
	ends := func(g *Table, state kernel.CtState, flags uint16) bool {
		m := kernel.CtMeta{State: uint8(state), Flags: flags, CreatedTick: kernel.NowTick() - 7}
		return g.Judge().PassBegins(1).Ends(entryOf{&m, hook.Host, tuple, tuple})
	}
	passes := 0
	g := &Table{End: func() error { passes++; return nil }}
	v := Device{hook.Switch, 5}
	take := func(endpoint string, want int) {
		t.Helper()
		if err := g.Take(v, endpoint, []netip.Addr{pod}); err != nil || passes != want {
			t.Errorf("%s: %d passes, want %d; %v", endpoint, passes, want, err)
		}
	}
	take("a", 0)
	g.departed.leave(hook.Switch, pod, "a")
	take("a", 0)
	if g.Pending() != 0 {
		t.Error("the endpoint has its address again, and its connections would end")
	}
	g.departed.leave(hook.Switch, pod, "a")
	if ends(g, kernel.CtStateCT_ESTABLISHED, 0) {
		t.Error("a connection ends before the endpoint could get its address again")
	}
	take("b", 1)
	for _, test := range []struct {
		state kernel.CtState
		flags uint16
		want  bool
	}{
		{kernel.CtStateCT_ESTABLISHED, kernel.CtSNAT, true}, {kernel.CtStateCT_FIN, kernel.CtSNAT, true},
		{kernel.CtStateCT_TIME_WAIT, 0, true}, {kernel.CtStateCT_TIME_WAIT, kernel.CtSNAT, false}, {kernel.CtStateCT_CLOSED, kernel.CtSNAT, false},
	} {
		if got := ends(g, test.state, test.flags); got != test.want {
			t.Errorf("state %d, flags %#x: %t, want %t", test.state, test.flags, got, test.want)
		}
	}
	g.departed = departed{}
	g.Release([]netip.Addr{pod})
	if !ends(g, kernel.CtStateCT_ESTABLISHED, 0) {
		t.Error("a participant elsewhere has lost the address, and its connections continue")
	}
	g.End = func() error { return errors.New("no") }
	if g.Take(v, "b", []netip.Addr{pod}) == nil {
		t.Error("an endpoint gets an address although its connections cannot be ended")
	}
}

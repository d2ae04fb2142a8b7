// SPDX-License-Identifier: Apache-2.0

package guard

import (
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
	d.leave(hook.Switch, pod)
	d.leave(hook.Switch, local)
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

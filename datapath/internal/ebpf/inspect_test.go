// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

func (n *network) inspect(ports map[datapath.PortName]datapath.Port) (i *datapath.Inspection) {
	n.t.Helper()
	n.node.Do(n.t, func() (err error) {
		i, err = Inspect(datapath.InspectOptions{
			Config: n.config, Ports: ports, Targets: []netip.Addr{netip.MustParseAddr("10.0.1.11"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.1")},
		})
		return err
	})
	if len(i.Unseen) > 0 {
		n.t.Errorf("not seen: %v", i.Unseen)
	}
	return i
}

// strangerFilter puts another program's filter before any filter of ours at the ingress of in0.
func (n *network) strangerFilter() {
	n.t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "external", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	n.ok(err)
	defer program.Close()
	n.node.Do(n.t, func() error {
		l, err := netlink.LinkByName("in0")
		if err != nil {
			return err
		}
		if err := netlink.QdiscReplace(clsact(l.Attrs().Index)); err != nil {
			return err
		}
		return netlink.FilterReplace(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 7, Protocol: unix.ETH_P_ALL},
			Fd:          program.FD(), Name: "external", DirectAction: true,
		})
	})
}

// TestInspect checks the list of attached programs, their owners and their order, on kernels with
// and without tcx; Inspect changes nothing.
func TestInspect(t *testing.T) {
	for name, how := range bothHooks {
		t.Run(name, func(t *testing.T) {
			if name == "tcx" {
				requireTCX(t)
			}
			n := newNetwork(t)
			n.restart(how.attach)
			n.attach()
			n.strangerFilter()
			before := n.pins()
			i := n.inspect(map[datapath.PortName]datapath.Port{"gone": {Device: "eth9"}, "in0": {Device: "in0"}})
			if len(i.Layouts) != 1 || !i.Layouts[0].Current || i.Layouts[0].Maps < 10 || i.Layouts[0].Bytes == 0 ||
				len(i.Layouts[0].Missing)+len(i.Layouts[0].Strange)+len(i.Layouts[0].Sizes)+len(i.Layouts[0].Resized) > 0 {
				t.Errorf("layouts %+v", i.Layouts)
			}
			for _, p := range i.Ports {
				if len(p.Hooks) != 2 || !p.Hooks[0].Attached || !p.Hooks[1].Attached || p.Device != string(p.Name) || p.Remove != nil || p.Hooks[0].Program == 0 {
					t.Errorf("port %+v", p)
				}
			}
			if len(i.Ports) != 2 || len(i.Filters) > 0 {
				t.Errorf("ports %+v, filters %+v", i.Ports, i.Filters)
			}
			n.wantChain(i, how.attach)
			if r := i.Routes[netip.MustParseAddr("10.0.1.11")]; r.Device != "out0" || r.Local {
				t.Errorf("route to a backend: %+v", r)
			}
			if r := i.Routes[netip.MustParseAddr("192.0.2.1")]; !r.Local {
				t.Errorf("route to the node: %+v", r)
			}
			if r := i.Routes[netip.MustParseAddr("203.0.113.1")]; r.Device != "" || r.Error != "no route exists" {
				t.Errorf("route to nowhere: %+v", r)
			}
			if after := n.pins(); !slices.Equal(before, after) {
				t.Errorf("pins before %v, after %v", before, after)
			}
		})
	}
}

// wantChain checks that our programs and the other program are on their devices, in order.
func (n *network) wantChain(i *datapath.Inspection, attach string) {
	n.t.Helper()
	var seen []string
	for _, d := range i.Devices {
		var chain []string
		for _, c := range d.Ingress {
			who := c.Program
			if c.Ours {
				who = "ours"
			}
			chain = append(chain, c.Hook+" "+who)
		}
		seen = append(seen, d.Name+": "+strings.Join(chain, ", "))
	}
	want := []string{"eth9: ", "in0: tcx ours, tc external", "out0: tcx ours"}
	if attach == "tc" {
		want = []string{"eth9: ", "in0: tc external, tc ours", "out0: tc ours"}
	}
	if !slices.Equal(seen, want) {
		n.t.Errorf("chains %q, want %q", seen, want)
	}
}

// TestInspectLeftovers: pins of a deleted device, and filters whose pins are gone, can be removed;
// programs and pins in use cannot.
func TestInspectLeftovers(t *testing.T) {
	n := newNetwork(t)
	n.restart("tc")
	n.attach()
	n.ok(n.d.Close())
	n.d = nil
	n.ok(os.RemoveAll(filepath.Join(pin.Dir(n.config.PinDir), "ports/0/in0")))
	n.node.DeleteLink(t, "out0")
	i := n.inspect(nil)
	if len(i.Filters) != 2 || len(i.Ports) != 1 || i.Ports[0].Name != "out0" || i.Ports[0].Remove == nil {
		t.Fatalf("filters %+v, ports %+v", i.Filters, i.Ports)
	}
	n.node.Do(t, func() error { return i.Ports[0].Remove() })
	for _, f := range i.Filters {
		if f.Device != "in0" || f.Remove == nil {
			t.Fatalf("filter %+v", f)
		}
		n.node.Do(t, func() error { return f.Remove() })
	}
	if i = n.inspect(nil); len(i.Filters)+len(i.Ports) > 0 {
		t.Errorf("left: filters %+v, ports %+v", i.Filters, i.Ports)
	}
	// Without its pin the owner of the qdisc is unknown.
	if hooked := n.hooked("in0"); !slices.Equal(hooked, []string{"clsact"}) {
		t.Errorf("on in0: %v", hooked)
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
)

// The priority and handle of our filters.
const (
	ourPriority = 19532
	ourHandle   = 1
)

// strangerSet is a set of another application's programs on in0 of a network. They pass and count
// all packets.
type strangerSet struct {
	n    *network
	seen *ebpf.Map
}

func newStrangers(n *network) *strangerSet {
	n.t.Helper()
	seen, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	n.ok(err)
	n.t.Cleanup(func() { seen.Close() })
	return &strangerSet{n: n, seen: seen}
}

// program loads another program: tcx does not accept the same program twice.
func (s *strangerSet) program() *ebpf.Program {
	s.n.t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "external", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.R10, -4, 0, asm.Word),
			asm.Mov.Reg(asm.R2, asm.R10),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, s.seen.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), // TC_ACT_UNSPEC: the next program
			asm.Return(),
		},
	})
	s.n.ok(err)
	s.n.t.Cleanup(func() { program.Close() })
	return program
}

// heard returns how often the programs have run.
func (s *strangerSet) heard() (count uint64) {
	s.n.t.Helper()
	s.n.ok(s.seen.Lookup(uint32(0), &count))
	return count
}

func (s *strangerSet) device() netlink.Link {
	s.n.t.Helper()
	var dev netlink.Link
	s.n.node.Do(s.n.t, func() (err error) {
		dev, err = netlink.LinkByName("in0")
		return err
	})
	return dev
}

// attach attaches another program by tcx, last on both hooks.
func (s *strangerSet) attach() {
	s.n.t.Helper()
	index := s.device().Attrs().Index
	s.n.node.Do(s.n.t, func() error {
		for _, side := range hook.Sides() {
			l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: s.program(), Attach: side.AttachType})
			if err != nil {
				return err
			}
			s.n.t.Cleanup(func() { l.Close() })
		}
		return nil
	})
}

func (s *strangerSet) clsact() netlink.Qdisc { return clsact(s.device().Attrs().Index) }

// clsact is the qdisc of a device to which filters are attached.
func clsact(index int) netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
}

func (s *strangerSet) addQdisc() error {
	q := s.clsact()
	return s.n.node.Try(func() error { return netlink.QdiscAdd(q) })
}

func (s *strangerSet) removeQdisc() {
	s.n.t.Helper()
	q := s.clsact()
	s.n.node.Do(s.n.t, func() error { return netlink.QdiscDel(q) })
}

// filter adds a program as a classifier on both sides.
func (s *strangerSet) filter(priority uint16, handle uint32) {
	s.n.t.Helper()
	index := s.device().Attrs().Index
	s.n.node.Do(s.n.t, func() error {
		for _, side := range hook.Sides() {
			err := netlink.FilterAdd(&netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: side.Parent, Handle: handle, Priority: priority, Protocol: unix.ETH_P_ALL},
				Fd:          s.program().FD(), Name: "external", DirectAction: true,
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// seenOn lists the programs on one side of in0 in execution order: tcx programs by name, then
// cls_bpf filters by name.
func (s *strangerSet) seenOn(side hook.Side) (names []string) {
	s.n.t.Helper()
	dev := s.device()
	s.n.node.Do(s.n.t, func() error {
		r, err := link.QueryPrograms(link.QueryOptions{Target: dev.Attrs().Index, Attach: side.AttachType})
		if err != nil && !errors.Is(err, ebpf.ErrNotSupported) && !errors.Is(err, unix.EINVAL) {
			return err
		}
		for i := 0; err == nil && i < len(r.Programs); i++ {
			program, err := ebpf.NewProgramFromID(r.Programs[i].ID)
			if err != nil {
				return err
			}
			info, err := program.Info()
			program.Close()
			if err != nil {
				return err
			}
			names = append(names, "tcx "+strings.TrimSuffix(info.Name, side.Name))
		}
		filters, err := dump.Retry(func() ([]netlink.Filter, error) { return netlink.FilterList(dev, side.Parent) })
		for _, f := range filters {
			names = append(names, "filter "+strings.TrimSuffix(f.(*netlink.BpfFilter).Name, side.Name))
		}
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			return nil // no qdisc
		}
		return err
	})
	return names
}

func (s *strangerSet) expect(when string, want ...string) {
	s.n.t.Helper()
	for _, side := range hook.Sides() {
		if got := s.seenOn(side); !slices.Equal(got, want) {
			s.n.t.Errorf("%s: on %s %q, want %q", when, side.Name, got, want)
		}
	}
}

// expectWork checks that packets reach the other programs, and that the service works.
func (s *strangerSet) expectWork(when string) {
	s.n.t.Helper()
	before := s.heard()
	if _, err := s.n.ask("198.51.100.10:80"); err != nil {
		s.n.t.Errorf("%s: %v", when, err)
	}
	if s.heard() == before {
		s.n.t.Errorf("%s: the other programs see no packets", when)
	}
}

// TestOtherProgramsAtTCX: with other applications' programs before and after ours, and another
// application's clsact qdisc that is added and deleted, our programs stay and work, in the order of
// attaching. The other programs are not changed, even when we detach.
func TestOtherProgramsAtTCX(t *testing.T) {
	requireTCX(t)
	ctx := context.Background()
	n := newNetwork(t)
	s := newStrangers(n)
	n.serve()
	n.ok(n.d.Services().Update(ctx, "web", web(3)))
	s.attach()
	n.attach()
	s.attach()
	all := []string{"tcx external", "tcx ll_tc_", "tcx external"}
	s.expect("attached", all...)
	s.expectWork("attached")

	n.ok(s.addQdisc())
	s.filter(1, 1)
	s.filter(ourPriority, ourHandle) // where our filter would be, if it existed
	filters := append(slices.Clone(all), "filter external", "filter external")
	s.expect("with a qdisc of theirs", filters...)
	n.restart("tcx")
	n.attach()
	s.expect("after a restart", filters...)
	s.expectWork("after a restart")
	s.removeQdisc()
	s.expect("without their qdisc", all...)
	if ok, err := n.d.Ports().Verify(ctx, "in0"); !ok || err != nil {
		t.Errorf("without their qdisc: %v, %v; want all to be as it was left", ok, err)
	}
	s.expectWork("without their qdisc")

	n.ok(s.addQdisc())
	s.filter(1, 1)
	theirs := []string{"tcx external", "tcx external", "filter external"}
	n.ok(n.d.Ports().Delete(ctx, "in0"))
	s.expect("deleted", theirs...)
	n.attach()
	s.expect("attached again: last", "tcx external", "tcx external", "tcx ll_tc_", "filter external")
	n.ok(n.d.Close())
	n.node.Do(t, func() error { return Detach(n.config, slog.New(slog.DiscardHandler)) })
	s.expect("detached", theirs...)
}

// TestOtherProgramsAtClsact: on kernels without tcx, other programs have filters before and
// after ours, also on the qdisc that we created.
func TestOtherProgramsAtClsact(t *testing.T) {
	ctx := context.Background()
	for name, qdisc := range map[string]string{"our qdisc": "ours", "their qdisc": "theirs"} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			n.restart("tc")
			s := newStrangers(n)
			n.serve()
			n.ok(n.d.Services().Update(ctx, "web", web(3)))
			if qdisc == "theirs" {
				n.ok(s.addQdisc())
				s.filter(1, 1)
			}
			n.attach()
			if qdisc == "ours" {
				s.filter(1, 1)
			}
			s.filter(ourPriority, 2)
			s.filter(0xf000, 1)
			// With equal priority, the filter that was added last runs first.
			all := []string{"filter external", "filter external", "filter loxilight_", "filter external"}
			theirs := []string{"filter external", "filter external", "filter external"}
			s.expect("attached", all...)
			s.expectWork("attached")
			n.restart("tc")
			n.attach()
			s.expect("after a restart", all...)
			s.expectWork("after a restart")

			n.ok(n.d.Ports().Delete(ctx, "in0"))
			s.expect("deleted", theirs...)
			n.attach()
			s.expectWork("attached again")
			n.ok(n.d.Close())
			n.node.Do(t, func() error { return Detach(n.config, slog.New(slog.DiscardHandler)) })
			s.expect("detached", theirs...)
		})
	}
}

// TestOtherProgramReplacesQdisc: another program deletes the qdisc that we created, with all
// its filters, and creates an empty one. Our filters are restored, and the qdisc stays when we
// detach.
func TestOtherProgramReplacesQdisc(t *testing.T) {
	ctx := context.Background()
	n := newNetwork(t)
	n.restart("tc")
	s := newStrangers(n)
	n.serve()
	n.attach()
	n.ok(n.d.Services().Update(ctx, "web", web(3)))
	s.removeQdisc()
	if ok, err := n.d.Ports().Verify(ctx, "in0"); ok || err != nil {
		t.Errorf("the qdisc is gone: %v, %v; want that to be noticed", ok, err)
	}
	n.ok(s.addQdisc())
	n.attach()
	s.expect("attached again", "filter loxilight_")
	if _, err := n.ask("198.51.100.10:80"); err != nil {
		t.Errorf("attached again: %v", err)
	}
	n.ok(n.d.Ports().Delete(ctx, "in0"))
	s.expect("deleted")
	if err := s.addQdisc(); !errors.Is(err, unix.EEXIST) {
		t.Errorf("their qdisc went with ours: %v", err)
	}
}

// TestPlaceOfOurFilterIsTaken: another program's filter with our priority and handle is not
// replaced; the error names that filter.
func TestPlaceOfOurFilterIsTaken(t *testing.T) {
	n := newNetwork(t)
	n.restart("tc")
	s := newStrangers(n)
	n.ok(s.addQdisc())
	s.filter(ourPriority, ourHandle)
	err := n.d.Ports().Update(context.Background(), "in0", datapath.Port{Device: "in0"})
	if err == nil || !strings.Contains(err.Error(), `priority 19532 is used by filter "external"`) {
		t.Errorf("error %v", err)
	}
	s.expect("refused", "filter external")
}

// TestXDPOfOtherProgram: another application's XDP program is not replaced, and the error names it;
// the rest of the port works.
func TestXDPOfOtherProgram(t *testing.T) {
	n := newXDPNetwork(t, datapath.XDPOff)
	n.serve()
	n.ok(n.d.Services().Update(context.Background(), "web", web(1)))
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "external", Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	n.ok(err)
	defer program.Close()
	var stranger link.Link
	n.node.Do(t, func() error {
		l, err := netlink.LinkByName("in0")
		if err != nil {
			return err
		}
		stranger, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: l.Attrs().Index})
		return err
	})
	defer stranger.Close()
	for _, mode := range []datapath.XDPMode{datapath.XDPNative, datapath.XDPGeneric} {
		err := n.d.Ports().Update(context.Background(), "in0", datapath.Port{Device: "in0", XDP: mode})
		if err == nil || !strings.Contains(err.Error(), "another program's XDP program external") {
			t.Errorf("%s: %v", mode, err)
		}
		if fits, err := n.d.Ports().Verify(context.Background(), "in0"); fits || err != nil {
			t.Errorf("%s: taken for done, %v", mode, err)
		}
	}
	c := n.dial("198.51.100.10:80")
	n.wantShortCut("by tc", c)
	if info, err := stranger.Info(); err != nil || info.XDP().Ifindex == 0 {
		t.Errorf("the other program's does not exist any more: %v", err)
	}
	n.ok(stranger.Close())
	n.ok(n.d.Ports().Update(context.Background(), "in0", datapath.Port{Device: "in0", XDP: datapath.XDPGeneric}))
	c.echo(t, "after it went")
}

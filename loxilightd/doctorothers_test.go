// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func passProgram(name string, kind ebpf.ProgramType, code int32) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: kind, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, code), asm.Return()},
	})
}

func attachTCX(device string, anchor link.Anchor, name string) (link.Link, error) {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return nil, err
	}
	program, err := passProgram(name, ebpf.SchedCLS, -1)
	if err != nil {
		return nil, err
	}
	defer program.Close() // the link keeps its own reference
	return link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: anchor})
}

func addFilter(device, name string, priority uint16) error {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	program, err := passProgram(name, ebpf.SchedCLS, -1)
	if err != nil {
		return err
	}
	defer program.Close() // the filter keeps its own reference
	index := l.Attrs().Index
	qdisc := &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact",
	}
	if err := netlink.QdiscReplace(qdisc); err != nil {
		return err
	}
	return netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: priority, Protocol: unix.ETH_P_ALL},
		Fd:          program.FD(), Name: name, DirectAction: true,
	})
}

// TestDoctorOfOtherPrograms: external programs on the same hooks, and their order.
func TestDoctorOfOtherPrograms(t *testing.T) {
	t.Run("tcx", func(t *testing.T) {
		p := newPatient(t, "tcx")
		p.ns.Do(t, func() error {
			for _, x := range []struct {
				anchor link.Anchor
				name   string
			}{{link.Head(), "early"}, {link.Head(), "earliest"}, {link.Tail(), "late"}} {
				l, err := attachTCX("eth0", x.anchor, x.name)
				if err != nil {
					return err
				}
				t.Cleanup(func() { _ = l.Close() }) // the namespace is deleted anyway
			}
			return addFilter("eth0", "latest", 10)
		})
		found, _ := p.doctor("--fix")
		before, after := found["hooks.before eth0 ingress"], found["hooks.after eth0 ingress"]
		if a, b := strings.Index(before.What, "tcx earliest ("), strings.Index(before.What, "tcx early ("); a < 0 || b < a || before.Severity != "warning" {
			t.Errorf("before ours: %+v", before)
		}
		if a, b := strings.Index(after.What, "tcx late ("), strings.Index(after.What, "tc latest ("); a < 0 || b < a || !strings.Contains(after.What, "priority 10") {
			t.Errorf("after ours: %+v", after)
		}
		if found, _ = p.doctor(); found["hooks.before eth0 ingress"].What != before.What {
			t.Errorf("--fix touched what belongs to others: %+v", found)
		}
		p.ns.Do(t, func() error { // its name marks it as another loxilight's program
			l, err := attachTCX("eth1", link.Head(), "ll_tc_ingress")
			if err == nil {
				t.Cleanup(func() { _ = l.Close() }) // the namespace is deleted anyway
			}
			return err
		})
		p.finds("error", "hooks.other eth1 ingress", "another loxilight", "")
	})
	t.Run("cls_bpf", func(t *testing.T) {
		p := newPatient(t, "tc")
		p.ns.Do(t, func() error { return addFilter("eth0", "early", 10) })
		p.ns.Do(t, func() error { return addFilter("eth0", "late", 0x4c4d) })
		p.ns.Do(t, func() error {
			l, err := attachTCX("eth0", link.Tail(), "first")
			if err == nil {
				t.Cleanup(func() { _ = l.Close() }) // the namespace is deleted anyway
			}
			return err
		})
		found, _ := p.doctor()
		wantFinding(t, found, "hooks.before eth0 ingress", "tcx first (")
		wantFinding(t, found, "hooks.before eth0 ingress", "tc early (")
		wantFinding(t, found, "hooks.after eth0 ingress", "tc late (")
	})
	t.Run("xdp", func(t *testing.T) {
		p := newPatient(t, "tcx")
		p.ns.Do(t, func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			program, err := passProgram("guard", ebpf.XDP, 2)
			if err != nil {
				return err
			}
			defer program.Close() // the link keeps its own reference
			x, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: l.Attrs().Index})
			if err == nil {
				t.Cleanup(func() { _ = x.Close() }) // the namespace is deleted anyway
			}
			return err
		})
		p.finds("warning", "hooks.xdp device eth0", "guard (program ", "")
		found, _ := p.doctor()
		wantFinding(t, found, "hooks.xdp device eth0", "disables its offloads")
	})
}

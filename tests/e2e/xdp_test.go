// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/internal/testnet"
)

// inXDP returns the name of the program in XDP on a device of the node; empty: no program.
func (s *site) inXDP(device string) (name string) {
	s.t.Helper()
	setLink(s.t, s.node, device, func(l netlink.Link) error {
		x := l.Attrs().Xdp
		if x == nil || !x.Attached {
			return nil
		}
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(x.ProgId))
		if err != nil {
			return err
		}
		defer p.Close()
		info, err := p.Info()
		if err == nil {
			name = info.Name
		}
		return err
	})
	return name
}

// expectTold waits until llcli reports words for an Interface.
func (s *site) expectTold(name string, words ...string) {
	s.t.Helper()
	var told string
	testnet.Eventually(s.t, patience, name+" reports "+strings.Join(words, ", "), func() bool {
		told = s.LLCLI("get", "Interface", name, "-o", "yaml")
		for _, word := range words {
			if !strings.Contains(told, word) {
				return false
			}
		}
		return true
	})
	if s.t.Failed() {
		s.t.Log(told)
	}
}

// TestXDP: an Interface requests a program in XDP and gets it; it survives a kill, is replaced if
// the mode changes, and is removed with the Interface. If another program is attached, the
// Interface names it, and everything else works.
func TestXDP(t *testing.T) {
	s := newSite(t).start()
	s.serve(s.backends[2], "10.0.3.2:8080", "b3")
	s.Apply(serviceYAML("web", []string{vip4 + ":9000/tcp"}, []string{"10.0.3.2:8080"}))
	s.expectServed("at first")

	s.LLCLI("interface", "set", "in0", "--xdp", "native")
	s.expectTold("in0", "state: Ready", "xdp-native", "tc")
	s.expectServed("by native XDP")
	if hooks := s.LLCLI("status", "-o", "yaml"); !strings.Contains(hooks, "xdp-native") {
		t.Errorf("status does not show the hook:\n%s", hooks)
	}
	s.Kill()
	if got := s.inXDP("in0"); got != "ll_xdp" {
		t.Errorf("program %q in XDP after a kill", got)
	}
	s.expectServed("without a daemon")
	s.Start()
	s.expectTold("in0", "state: Ready", "xdp-native")
	s.expectServed("after a start")
	s.LLCLI("interface", "set", "in0", "--xdp", "generic")
	s.expectTold("in0", "state: Ready", "xdp-generic")
	s.expectServed("by generic XDP")

	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "stranger", Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	var stranger link.Link
	setLink(t, s.node, "p3", func(l netlink.Link) (err error) {
		stranger, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: l.Attrs().Index, Flags: link.XDPGenericMode})
		return err
	})
	defer stranger.Close()
	s.LLCLI("interface", "set", "p3", "--xdp", "generic", "--wait", "0s")
	s.expectTold("p3", "state: Error", "XDP program stranger")
	s.expectServed("beside another program")
	if got := s.inXDP("p3"); got != "stranger" {
		t.Errorf("program %q in XDP, want the stranger's", got)
	}
	if err := stranger.Close(); err != nil {
		t.Fatal(err)
	}
	s.expectTold("p3", "state: Ready", "xdp-generic")

	s.LLCLI("delete", "Interface", "in0", "--wait", "5s")
	if got := s.inXDP("in0"); got != "" {
		t.Errorf("program %q is left in XDP", got)
	}
}

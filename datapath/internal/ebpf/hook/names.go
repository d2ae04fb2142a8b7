// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

const namesName = "names"

// NamesSide returns the hook on which the program that learns names from DNS responses is attached to
// Endpoints: egress, after ll_tc_egress.
func NamesSide() Side {
	return Side{
		Name: namesName, AttachType: ebpf.AttachTCXEgress, Parent: netlink.HANDLE_MIN_EGRESS, priority: namesPriority,
		of: func(p *Pair) *ebpf.Program { return p.names }, load: (*Netns).loadNames, unshadowed: true,
	}
}

// PortSides returns the tc hooks whose programs are pinned in the folder of a port, in the order in which
// they are attached.
func PortSides() []Side {
	sides := Sides()
	return append(sides[:], NamesSide())
}

// IsNames reports whether a is the program that learns names.
func IsNames(a Attachment) bool { return strings.HasSuffix(a.Name(), "-"+namesName) }

// AttachNames attaches the program that learns names; the parameters are as for [Netns.Attach].
func (z *Netns) AttachNames(how, folder string, index int) (Attachment, error) {
	return attachHook(z, NamesSide(), how, folder, index)
}

// loadFor loads the program of a side, unless already done.
func (z *Netns) loadFor(s Side) error {
	if s.load == nil {
		return nil
	}
	return s.load(z)
}

func (z *Netns) loadNames() error {
	if z.names != nil {
		return nil
	}
	load := func() (*ebpf.CollectionSpec, error) {
		s, err := kernel.LoadNames()
		if err == nil {
			delete(s.Programs, kernel.NamesProgLlNamesSweep)
		}
		return s, err
	}
	p, _, err := loadProgram(copyOf{Program{kernel.NamesProgLlTcNames, load}, z.ID, false}, z.maps)
	if err != nil {
		return refusedProgram(kernel.NamesProgLlTcNames, z.ID, err)
	}
	z.names = p
	return nil
}

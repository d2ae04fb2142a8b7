// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
)

// TestDoctorXDP: our own XDP program is reported with its cost, not as an external program.
func TestDoctorXDP(t *testing.T) {
	p := newPatient(t, "tcx")
	p.apply(api.Object{Kind: api.KindInterface, Name: "eth0", Spec: []byte(`{"device":"eth0","xdp":"native"}`)})
	p.finds("note", "hooks.xdp device eth0", "our program in XDP", "")
	p.kill()
	p.finds("note", "hooks.xdp device eth0", "our program in XDP", "")
	found, _ := p.doctor()
	if f, ok := found["hooks.xdp_vlan device eth0"]; ok {
		t.Errorf("%+v, and there are no VLANs", f)
	}
	err := p.ns.Try(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "eth0.7", ParentIndex: l.Attrs().Index}, VlanId: 7})
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the kernel has no VLAN devices")
	}
	if err != nil {
		t.Fatal(err)
	}
	p.finds("warning", "hooks.xdp_vlan device eth0", "eth0.7", "")
}

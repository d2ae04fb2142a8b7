// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"

	"github.com/loxilight/loxilight/datapath"
)

// checkChains reports other owners' programs on the hooks of our devices.
func (x *examiner) checkChains() {
	for i := range x.plane.Devices {
		d := &x.plane.Devices[i]
		if !d.Exists {
			continue
		}
		x.checkXDP(d)
		x.checkChain(d, "ingress", d.Ingress)
		x.checkChain(d, "egress", d.Egress)
		if d.IngressQdisc && x.use == "tc" {
			x.find("error", "qdiscs.ingress", "device "+d.Name, words{
				what: "has the qdisc ingress, where cls_bpf needs clsact",
				why:  "a device has only one of them, and programs on outgoing packets cannot be attached to the qdisc ingress",
				do:   "find out which program created it (tc filter show dev " + d.Name + " ingress), and replace it with clsact, which can do the same; or run a kernel from 6.6 on, where tcx needs neither",
			}, nil)
		}
	}
}

func (x *examiner) checkXDP(d *datapath.InspectedDevice) {
	if d.XDP == nil || d.XDP.Ours {
		x.checkOurXDP(d)
		return
	}
	why := "it sees packets before our programs: packets that it drops, sends back or redirects are never balanced"
	if d.Type == "veth" && d.XDP.Detail == "native" {
		why += "; and XDP on a veth disables its offloads: TCP gets several times slower"
	}
	x.find("warning", "hooks.xdp", "device "+d.Name, words{
		what: fmt.Sprintf("has the XDP program %s", describe(d.XDP)),
		why:  why, do: "nothing, if that is its purpose; else find its owner: bpftool prog show id " + fmt.Sprint(d.XDP.ID),
	}, nil)
}

// checkOurXDP reports the disadvantages that our XDP program has on a device.
func (x *examiner) checkOurXDP(d *datapath.InspectedDevice) {
	if d.XDP != nil && d.TagsHidden {
		do := "ethtool -K " + d.Name + " rxvlan off"
		if d.Type == "veth" {
			do = "ethtool -K DEVICE txvlan off at the other end of the veth, or set spec.xdp of the Interface to off"
		}
		x.find("warning", "hooks.xdp_vlan", "device "+d.Name, words{
			what: "has our program in XDP, which does not see VLAN tags there, and VLANs: " + strings.Join(d.VLANs, ", "),
			why:  "a host in one of these VLANs can send packets of an untagged connection if it guesses its addresses and ports",
			do:   do,
		}, nil)
	}
	if d.XDP == nil || d.Type != "veth" || d.XDP.Detail != "native" {
		return
	}
	x.find("note", "hooks.xdp", "device "+d.Name, words{
		what: "has our program in XDP, native, and is a veth",
		why:  "XDP on a veth disables its offloads: TCP from behind it is several times slower, and packets with incomplete checksums are still handled by the tc program",
		do:   "nothing, if the host behind it computes checksums itself and packets are small; else set spec.xdp of the Interface to off",
	}, nil)
}

func describe(c *datapath.ChainProgram) string {
	id := ""
	if c.ID != 0 {
		id = fmt.Sprintf("program %d", c.ID)
	}
	details := strings.Trim(strings.Join([]string{id, c.Detail}, ", "), ", ")
	return fmt.Sprintf("%s (%s)", c.Program, details)
}

// checkChain reports which programs run before and after ours on one side of a device.
func (x *examiner) checkChain(d *datapath.InspectedDevice, side string, chain []datapath.ChainProgram) {
	ours := -1
	for i := range chain {
		if !chain[i].Ours {
			continue
		}
		if ours >= 0 {
			x.find("error", "hooks.twice", d.Name+" "+side, words{
				what: fmt.Sprintf("has two programs of ours: %s by %s, %s by %s", describe(&chain[ours]), chain[ours].Hook, describe(&chain[i]), chain[i].Hook),
				why:  "packets are counted twice, and may be rewritten twice", do: "restart the daemon",
			}, nil)
		}
		ours = i
	}
	var before, after []string
	for i := range chain {
		c := &chain[i]
		switch {
		case c.Ours:
		case c.Program == "ll_tc_"+side:
			x.find("error", "hooks.other", d.Name+" "+side, words{
				what: "has a program of another loxilight: " + describe(c),
				why:  "two instances must not share a device: the first one takes the packets",
				do:   "give each instance its own devices; if no other instance exists, another program removed our pins: the daemon pins them again within seconds; start it if it does not run",
			}, nil)
		case ours >= 0 && i < ours:
			before = append(before, c.Hook+" "+describe(c))
		case ours >= 0:
			after = append(after, c.Hook+" "+describe(c))
		}
	}
	if len(before) > 0 {
		x.find("warning", "hooks.before", d.Name+" "+side, words{
			what: "programs run before ours, in this order: " + strings.Join(before, "; "),
			why:  "packets that they drop, redirect, or accept finally (TC_ACT_OK) do not reach our programs: they are not balanced, and replies of Services may keep the address of the backend",
			do:   "nothing if they only observe packets; else attach them after ours (tcx: BPF_F_AFTER; cls_bpf: a priority above 19532)",
		}, nil)
	}
	if len(after) > 0 {
		x.find("note", "hooks.after", d.Name+" "+side, words{
			what: "programs run after ours, in this order: " + strings.Join(after, "; "),
			why:  "they see only packets that our programs leave to the kernel; packets on the fast path bypass them",
			do:   "nothing, unless they must see the packets of services: then attach them before ours",
		}, nil)
	}
}

// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// defaultAgeing is the kernel's default.
const defaultAgeing = 300 * time.Second

// clockTick is the unit of the kernel's ageing time of a bridge.
const clockTick = 10 * time.Millisecond

// bridgeUpdate brings one bridge to the wanted state, or (dry) reports whether it has that state.
type bridgeUpdate struct {
	n      *Network
	s      *namespace.Handle
	name   datapath.BridgeName
	value  datapath.Bridge
	record *bridgeRecord

	dry      bool // change nothing
	differs  bool // with dry: something would have been changed
	removing bool // remove our settings

	bridge netlink.Link
	vlans  map[int32][]*nl.BridgeVlanInfo
	absent []string // ports that do not exist in the bridge's namespace
}

// change calls f, or (dry) only records that something differs.
func (u *bridgeUpdate) change(what string, f func() error) error {
	if u.dry {
		u.differs = true
		return nil
	}
	if err := f(); err != nil {
		return fmt.Errorf("bridge %q: %s: %w", u.value.Device, what, err)
	}
	return nil
}

// note records in the journal what will become ours, before the change is made.
func (u *bridgeUpdate) note() error {
	if u.dry || u.removing {
		return nil
	}
	return u.n.journal.note(line{Kind: kindBridge, Name: string(u.name), Bridge: u.record.clone()})
}

func (u *bridgeUpdate) run() error {
	for _, step := range []func() error{u.find, u.settings, u.ports, u.filter, u.addresses, u.mtu} {
		if err := step(); err != nil || u.bridge == nil {
			return err
		}
	}
	if len(u.absent) > 0 {
		return u.absentPorts()
	}
	return nil
}

// absentPorts reports for each missing port whether it is in the other namespace, and how to move
// it.
func (u *bridgeUpdate) absentPorts() error {
	var absent, elsewhere []string
	for _, device := range u.absent {
		link, err := u.n.host.Link(device)
		if u.s == u.n.host || err != nil || link == nil {
			absent = append(absent, device)
		} else {
			elsewhere = append(elsewhere, device)
		}
	}
	var parts []string
	if len(absent) > 0 {
		parts = append(parts, fmt.Sprintf("port %s does not exist%s", strings.Join(absent, ", "), u.inSwitch()))
	}
	for _, device := range elsewhere {
		parts = append(parts, fmt.Sprintf("port %s is in the host's network namespace, the bridge in %s: run ip link set %s netns %s",
			device, u.n.cfg.SwitchNamespace, device, u.n.cfg.SwitchNamespace))
	}
	return datapath.Absentf("bridge %s: %s", u.value.Device, strings.Join(parts, "; "))
}

// inSwitch names the bridge's namespace if host and switch are separate namespaces.
func (u *bridgeUpdate) inSwitch() string {
	if u.s == u.n.host {
		return ""
	}
	return " in network namespace " + u.n.cfg.SwitchNamespace
}

// find finds the bridge, or creates it.
func (u *bridgeUpdate) find() (err error) {
	if u.bridge, err = u.s.Link(u.value.Device); err != nil {
		return err
	}
	if u.bridge == nil {
		u.record.Made, u.record.Ports, u.record.Addresses = true, map[string]*portRecord{}, nil
		return u.change("make", u.make)
	}
	if u.bridge.Type() != "bridge" {
		return fmt.Errorf("device %q already exists with type %s, not bridge: give the bridge another name", u.value.Device, u.bridge.Type())
	}
	made := u.record.isMade(u.n, u.bridge)
	if !made && u.record.Index != u.bridge.Attrs().Index {
		u.n.log.Info("an existing bridge is taken over", slog.String("device", u.value.Device))
	}
	if u.record.Made != made || u.record.Index != u.bridge.Attrs().Index {
		u.record.Made, u.record.Index = made, u.bridge.Attrs().Index
		return u.change("take over", u.note)
	}
	return nil
}

func (u *bridgeUpdate) make() error {
	if err := u.note(); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = u.value.Device
	// Otherwise the bridge would use the MAC of one of its ports, and change its own whenever its
	// ports change.
	attrs.HardwareAddr = macOf(u.n.cfg, u.value.Device)
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if u.value.VLANFiltering {
		on, none := true, uint16(0) // ports belong only to their configured VLANs
		bridge.VlanFiltering, bridge.VlanDefaultPVID = &on, &none
	}
	err := u.s.Netlink.LinkAdd(bridge)
	if errors.Is(err, unix.EOPNOTSUPP) && u.value.VLANFiltering {
		return errNoFiltering
	}
	if err == nil {
		err = u.s.Netlink.LinkSetAlias(bridge, mark(u.n.cfg))
	}
	if err != nil {
		return err
	}
	link, err := u.s.Link(u.value.Device)
	if err != nil || link == nil {
		return errors.Join(err, absent("device %q", u.value.Device))
	}
	if u.value.VLANFiltering && !filters(link) {
		return errors.Join(u.s.Netlink.LinkDel(link), errNoFiltering)
	}
	u.bridge, u.record.Index = link, link.Attrs().Index
	return u.note()
}

var errNoFiltering = fmt.Errorf("this kernel has no VLAN filtering (CONFIG_BRIDGE_VLAN_FILTERING): %w", datapath.ErrUnsupported)

func filters(link netlink.Link) bool {
	b, ok := link.(*netlink.Bridge)
	return ok && b.VlanFiltering != nil && *b.VlanFiltering
}

// settings makes the settings of the bridge itself match the wanted ones.
func (u *bridgeUpdate) settings() error {
	b, attrs := u.bridge.(*netlink.Bridge), u.bridge.Attrs()
	wanted := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	wanted.Name = attrs.Name // no index: with one, Linux 6.1 treats the request as a rename and returns EBUSY
	changed := false
	switch {
	case u.value.VLANFiltering && b.VlanFiltering == nil:
		return fmt.Errorf("bridge %q: %w", u.value.Device, errNoFiltering)
	case u.value.VLANFiltering && !filters(b) && u.record.Made && b.VlanDefaultPVID != nil && *b.VlanDefaultPVID != 0:
		none := uint16(0) // ports belong only to their configured VLANs
		wanted.VlanDefaultPVID, changed = &none, true
	case !u.value.VLANFiltering && filters(b) && !u.record.Made && !u.record.Filtering:
		return fmt.Errorf("bridge %q already filters VLANs, which would be merged without filtering: set vlanFiltering to true, or turn filtering off (ip link set %s type bridge vlan_filtering 0)",
			u.value.Device, u.value.Device)
	case !u.value.VLANFiltering && filters(b):
		off := false
		wanted.VlanFiltering, changed = &off, true
	}
	if ageing := u.ageing(); ageing != 0 && (b.AgeingTime == nil || *b.AgeingTime != ageing) {
		wanted.AgeingTime, changed = &ageing, true
	}
	if changed {
		if err := u.change("set", func() error { return errors.Join(u.note(), u.s.Netlink.LinkModify(wanted)) }); err != nil {
			return err
		}
	}
	if u.record.Made {
		if mac := macOf(u.n.cfg, u.value.Device); !bytes.Equal(mac, attrs.HardwareAddr) {
			if err := u.change("set MAC", func() error { return u.s.Netlink.LinkSetHardwareAddr(u.bridge, mac) }); err != nil {
				return err
			}
		}
		if attrs.Alias != mark(u.n.cfg) {
			if err := u.change("set alias", func() error { return u.s.Netlink.LinkSetAlias(u.bridge, mark(u.n.cfg)) }); err != nil {
				return err
			}
		}
	}
	if attrs.Flags&net.FlagUp == 0 {
		return u.change("set up", func() error { return u.s.Netlink.LinkSetUp(u.bridge) })
	}
	return nil
}

// filter enables VLAN filtering once the ports have their VLANs, which have no effect before that,
// so existing traffic is never interrupted.
func (u *bridgeUpdate) filter() error {
	if !u.value.VLANFiltering || filters(u.bridge) {
		return nil
	}
	on := true
	wanted := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs(), VlanFiltering: &on}
	wanted.Name = u.bridge.Attrs().Name
	u.record.Filtering = true
	return u.change("filter by VLAN", func() error { return errors.Join(u.note(), u.s.Netlink.LinkModify(wanted)) })
}

// ageing returns the wanted ageing time of the bridge, in the kernel's unit, or 0 if it stays
// unchanged.
func (u *bridgeUpdate) ageing() uint32 {
	d := u.value.Ageing
	if d == 0 && u.record.Made {
		d = defaultAgeing
	}
	return uint32(d / clockTick)
}

// mtu runs after the ports are attached, because attaching them makes the kernel lower the MTU.
func (u *bridgeUpdate) mtu() error {
	if u.value.MTU == 0 || u.bridge.Attrs().MTU == u.value.MTU && u.dry {
		return nil
	}
	// Attaching the ports may have changed the MTU: read it again.
	link, err := u.s.Link(u.value.Device)
	if err != nil || link == nil || link.Attrs().MTU == u.value.MTU {
		return err
	}
	return u.change(fmt.Sprintf("set MTU %d", u.value.MTU), func() error { return u.s.Netlink.LinkSetMTU(u.bridge, u.value.MTU) })
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/mirror"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// mirrorHost implements [mirror.Host].
type mirrorHost struct{ d *DataPlane }

// Mirrors implements [datapath.DataPlane].
func (d *DataPlane) Mirrors() datapath.Table[datapath.MirrorName, datapath.Mirror] { return d.mirrors }

// MirrorState implements [datapath.Telemetry].
func (t *nodeTelemetry) MirrorState(name datapath.MirrorName) (datapath.MirrorState, bool) {
	return t.d.mirrors.State(name)
}

// Port implements [mirror.Host].
func (h mirrorHost) Port(name datapath.PortName) (d mirror.Device, err error) {
	describe := h.d.ports.Describe
	is, _ := h.d.ports.Get(name)
	if len(is.Hooks) == 0 || is.Ifindex == 0 {
		return d, datapath.Absentf("the device of %s does not exist", describe(name))
	}
	z, err := h.d.namespaces.Open(is.Netns)
	if err != nil {
		return d, err
	}
	link, err := z.Netlink.LinkByIndex(is.Ifindex)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return d, datapath.Absentf("the device of %s does not exist", describe(name))
	}
	if err != nil {
		return d, fmt.Errorf("device of %s: %w", describe(name), err)
	}
	return h.device(z, link)
}

// device checks whether packets of a device can be copied, or copies sent to it.
func (h mirrorHost) device(z *namespace.Namespace, link netlink.Link) (mirror.Device, error) {
	a := link.Attrs()
	d := mirror.Device{Key: z.Devices.Key(link), Name: a.Name}
	switch {
	case a.EncapType != "" && a.EncapType != "ether":
		return d, fmt.Errorf("device %q has no Ethernet frames (link/%s): choose another one: %w", a.Name, a.EncapType, datapath.ErrUnsupported)
	case z.Devices.IsLink(a.Name), h.isTunnel(z.ID, a.Name):
		return d, fmt.Errorf("device %q connects host and switch, or belongs to a Tunnel: choose an Endpoint or a device of the network: %w", a.Name, datapath.ErrUnsupported)
	}
	return d, nil
}

// Ports implements [mirror.Host].
func (h mirrorHost) Ports() (all []mirror.Device) {
	for _, p := range h.d.ports.All() {
		if len(p.Hooks) > 0 && p.Ifindex > hook.LoopbackIndex {
			d := mirror.Device{Key: mirror.Key{Ifindex: uint32(p.Ifindex), Netns: uint32(p.Netns)}}
			d.Name = h.Name(d.Key)
			d.IsLink = d.Name != "" && d.Name == [...]string{netnsHost: h.d.config.HostDevice, netnsSwitch: h.d.config.SwitchDevice}[p.Netns]
			d.IsTunnel = h.isTunnel(p.Netns, d.Name)
			all = append(all, d)
		}
	}
	return all
}

// isTunnel reports whether a device is an end of the link of a Tunnel.
func (h mirrorHost) isTunnel(netns uint8, device string) bool {
	return h.d.overlay.HasDevice(netns, strings.TrimSuffix(device, datapath.TunnelEndSuffix))
}

// Target implements [mirror.Host].
func (h mirrorHost) Target(name string, inSwitch bool) (d mirror.Device, err error) {
	id := h.d.namespaces.IDOf(inSwitch)
	z, err := h.d.namespaces.Open(id)
	if err != nil {
		return d, err
	}
	link, err := z.Netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return d, h.d.namespaces.NoDevice(id, "", name)
	}
	if err != nil {
		return d, fmt.Errorf("device %q: %w", name, err)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return d, datapath.Absentf("device %q is down: run ip link set %s up%s", name, name, h.d.namespaces.InNamespace(id))
	}
	return h.device(z, link)
}

// Name implements [mirror.Host].
func (h mirrorHost) Name(device mirror.Key) string {
	return h.d.deviceName(uint8(device.Netns), int(device.Ifindex))
}

// Wire implements [mirror.Host].
func (h mirrorHost) Wire(device mirror.Key) mirror.Key {
	of := func(k mirror.Key) *netlink.LinkAttrs {
		for _, z := range h.d.namespaces.InUse() {
			if uint32(z.ID) == k.Netns && z.Devices != nil {
				if l := z.Devices.ByIndex(int(k.Ifindex)); l != nil && l.Type() == "veth" {
					return l.Attrs()
				}
			}
		}
		return nil
	}
	a := of(device)
	if a == nil {
		return mirror.Key{}
	}
	for _, port := range h.Ports() {
		b := of(port.Key)
		if b != nil && b.Index == a.ParentIndex && b.ParentIndex == a.Index && (a.NetNsID < 0) == (port.Netns == device.Netns) {
			return port.Key
		}
	}
	return mirror.Key{}
}

// Peer implements [mirror.Host].
func (h mirrorHost) Peer(name datapath.PeerName) (index uint32, entry kernel.Peer, by [2]mirror.Key, err error) {
	index, entry, err = h.d.overlay.PeerEntry(name)
	if err != nil {
		return index, entry, by, err
	}
	by[netnsHost] = mirror.Key{Ifindex: entry.OutIfindex, Netns: netnsHost}
	if entry.LinkSwitchIfindex != 0 {
		by[netnsSwitch] = mirror.Key{Ifindex: entry.LinkSwitchIfindex, Netns: netnsSwitch}
	}
	return index, entry, by, nil
}

// Service implements [mirror.Host].
func (h mirrorHost) Service(name datapath.ServiceName) (uint32, bool) {
	info, ok := h.d.services.Get(name)
	return info.ID, ok
}

// Rule implements [mirror.Host].
func (h mirrorHost) Rule(name datapath.RuleName) (uint32, bool) { return h.d.firewall.ID(name) }

// Attach implements [mirror.Host]. On a port, the hooks are of the same kind as the others, so that
// they run in order.
func (h mirrorHost) Attach(side int, device mirror.Key) (hook.Attachment, error) {
	z, err := h.d.namespaces.Open(uint8(device.Netns))
	if err != nil {
		return nil, err
	}
	if err := z.LoadMirrors(); err != nil {
		return nil, err
	}
	how := h.d.config.Attach
	if p, ok := h.d.ports.Of(z.ID, int(device.Ifindex)); ok && len(p.Hooks) > 0 {
		how = "tcx"
		if strings.HasPrefix(p.Hooks[0].Name(), "tc-") {
			how = "tc"
		}
	}
	a, err := z.AttachMirror(side, how, h.folder(device), int(device.Ifindex))
	if errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("%w: %w", err, datapath.ErrAbsent) // the device was deleted in the meantime
	}
	return a, err
}

func (h mirrorHost) folder(device mirror.Key) string {
	return hook.MirrorFolder(h.d.dir, uint8(device.Netns), int(device.Ifindex))
}

// Detached implements [mirror.Host].
func (h mirrorHost) Detached(device mirror.Key) error { return os.RemoveAll(h.folder(device)) }

// Rerouted implements [mirror.Host].
func (h mirrorHost) Rerouted() (err error) {
	for _, z := range h.d.namespaces.InUse() {
		if z.Devices != nil {
			err = errors.Join(err, z.Devices.Scan())
		}
	}
	return errors.Join(err, h.d.ports.RefitXDP())
}

// Prepare implements [mirror.Host].
func (h mirrorHost) Prepare(device mirror.Key) error { return os.MkdirAll(h.folder(device), 0o700) }

// mirrorHooks returns the attached programs of mirrors.
func (d *DataPlane) mirrorHooks() (all []datapath.Hook) {
	_ = d.mirrors.Each(func(device mirror.Key, a hook.Attachment) error { // the function returns no error
		side, _ := strings.CutPrefix(strings.TrimPrefix(a.Name(), "tcx-"), "tc-")
		x := datapath.Hook{Device: d.deviceName(uint8(device.Netns), int(device.Ifindex)), Netns: "host", Hook: a.Name(), Program: "ll_" + side, ID: uint32(a.Program())}
		if device.Netns == netnsSwitch {
			x.Netns = "switch"
		}
		all = append(all, x)
		return nil
	})
	return all
}

// adoptMirrors takes over the programs of mirrors that an earlier run attached, and replaces them by
// this run's.
func (d *DataPlane) adoptMirrors() error {
	for _, id := range []uint8{netnsHost, netnsSwitch} {
		if !hook.HasMirrors(d.dir, id) {
			continue
		}
		z, err := d.namespaces.Open(id)
		if errors.Is(err, datapath.ErrAbsent) { // its devices are gone, and the programs with them
			if err := hook.RemoveMirrors(d.dir, id); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := z.LoadMirrors(); err != nil {
			return err
		}
		found, err := z.OpenMirrors(d.dir)
		if err != nil {
			return err
		}
		for index, hooks := range found {
			for side, a := range hooks {
				if a == nil {
					continue
				}
				if err := kernel.Step("replace "+a.Name(), a.Replace); err != nil {
					return fmt.Errorf("take over %s of %q: %w", a.Name(), z.Devices.NameOf(index), err)
				}
				d.mirrors.AdoptHooks(side, mirror.Key{Ifindex: uint32(index), Netns: uint32(id)}, a)
			}
		}
	}
	return nil
}

// followMirrors adapts the mirrors of services and rules after a port was added or removed. The inner
// ports of tunnels change with the overlay's lock held: their mirrors follow in the next round.
func (d *DataPlane) followMirrors(name datapath.PortName) {
	if overlay.IsInner(name) {
		d.signal()
		return
	}
	var device mirror.Key // on which programs may have been attached behind the programs of mirrors
	if p, ok := d.ports.Get(name); ok {
		device = mirror.Key{Ifindex: uint32(p.Ifindex), Netns: uint32(p.Netns)}
	}
	if err := d.mirrors.Follow(device); err != nil {
		d.log.Warn("mirrors cannot follow the ports; retrying", "error", err)
		d.signal()
	}
}

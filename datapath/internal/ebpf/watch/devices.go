// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/announce"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/bridge"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/device"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// rescanInterval is the maximum time for which a lost netlink message goes unnoticed.
const rescanInterval = 30 * time.Second

type neighbour struct {
	ifindex int
	addr    netip.Addr
}

// Devices follows the devices, addresses, neighbours and routes of a namespace. It keeps ll_device
// in sync with them, and invalidates next hops that may have changed.
type Devices struct {
	options   Options
	namespace *hook.Netns
	tables    *kernel.Tables
	done      chan struct{}
	wg        sync.WaitGroup
	settings  settings

	mu         sync.Mutex
	links      map[int]netlink.Link
	addrs      map[int][]netip.Prefix
	listed     map[string]datapath.Device // returned to callers, so never changed
	first      map[int][2]netip.Addr      // returned by device.FirstAddrs
	written    map[kernel.DeviceKey]kernel.Device
	neighbours map[neighbour][6]byte
	failed     map[neighbour]bool       // neighbours that the kernel has given up resolving
	ports      map[int]bool             // devices to which our programs are attached
	queued     map[int]bool             // devices with a qdisc that queues
	xdp        map[int]datapath.XDPMode // devices with our XDP program
	xdpTargets xdpTargets               // XDP transmit targets, if a device has our XDP program
	listening  bool                     // changes of XDP features are subscribed to
	roles      map[int]announce.Role
	named      map[int]string // names by which objects refer to devices
	uplinks    map[int]bool   // subset of named; initially those of an earlier run
	keeping    bool           // an uplink keeps its old name for rules, see ruleName

	uplinkWords  map[uint32]uint64 // non-zero words of uplinks in ll_guarded
	uplinksKnown bool              // uplinkWords have been written
	rerouted     reroutes          // not handled yet
	reroutedAny  chan struct{}     // has room for one: rerouted is not empty
	bridges      *bridge.Tables
	stale        bool // a message was lost
	deaf         bool // a subscription has ended
	scanned      time.Time
}

// New returns the devices of a namespace. Nothing is read before Start.
func New(o Options) *Devices {
	return &Devices{
		options: o, namespace: o.Netns, tables: o.Tables,
		done:        make(chan struct{}),
		written:     make(map[kernel.DeviceKey]kernel.Device),
		neighbours:  make(map[neighbour][6]byte),
		failed:      make(map[neighbour]bool),
		xdp:         make(map[int]datapath.XDPMode),
		ports:       devicesOfBefore(&o, kernel.DevicePort),
		uplinks:     devicesOfBefore(&o, kernel.DeviceUplink),
		roles:       make(map[int]announce.Role),
		reroutedAny: make(chan struct{}, 1),
		named:       make(map[int]string),
		bridges:     bridge.Adopt(bridge.Options{Tables: o.Tables, Netns: o.Netns.ID, Guard: o.Guard, LostAddr: o.LostAddr}),
	}
}

// Forget deletes the devices from ll_device after their namespace is gone.
func (v *Devices) Forget() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.write(nil)
}

// Close ends the subscriptions.
func (v *Devices) Close() {
	close(v.done)
	v.wg.Wait()
}

// Start subscribes to changes, then reads the current state.
func (v *Devices) Start() error {
	if err := v.subscribe(); err != nil {
		return err
	}
	// Next hops that an earlier run's programs learnt may be out of date.
	if err := v.InvalidateAll(); err != nil {
		return err
	}
	return v.Scan()
}

func (v *Devices) subscribe() error {
	links := make(chan netlink.LinkUpdate, 64)
	addrs := make(chan netlink.AddrUpdate, 64)
	neighs := make(chan netlink.NeighUpdate, 256)
	lost := func(error) { v.Lost() }
	err := errors.Join(
		netlink.LinkSubscribeWithOptions(links, v.done, netlink.LinkSubscribeOptions{Namespace: &v.namespace.Handle, ErrorCallback: lost}),
		netlink.AddrSubscribeWithOptions(addrs, v.done, netlink.AddrSubscribeOptions{Namespace: &v.namespace.Handle, ErrorCallback: lost}),
		netlink.NeighSubscribeWithOptions(neighs, v.done, netlink.NeighSubscribeOptions{Namespace: &v.namespace.Handle, ErrorCallback: lost, ListExisting: true}),
	)
	if err == nil {
		err = errors.Join(v.followRoutes(), v.followPolicy(), v.followHooks(), v.followXDPFeaturesAgain())
	}
	if err != nil {
		close(v.done)
		return fmt.Errorf("watch devices: %w", err)
	}
	v.wg.Add(3)
	go followAll(v, links, v.linkChanged, v.refresh)
	go followAll(v, addrs, v.addressChanged, v.refresh)
	go follow(v, neighs, v.neighbourChanged)
	return nil
}

func (v *Devices) report(err error) {
	if err != nil {
		v.options.Log.Warn("cannot watch the devices of the node; retrying", "error", err)
		v.Lost()
	}
}

func (v *Devices) refresh() {
	v.report(v.Scan())
	v.report(v.options.FollowAddrs())
	v.underlayChanged()
	v.options.Signal()
}

// Scan reads the current devices and updates ll_device.
func (v *Devices) Scan() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.settings.version.Add(1)
	links, err := retry(v.namespace.Netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	addrs, err := retry(func() ([]netlink.Addr, error) { return v.namespace.Netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	bridgePorts, err := bridge.Ports(v.namespace.Handle)
	if err != nil {
		return fmt.Errorf("list ports of bridges: %w", err)
	}
	if v.queued, err = v.namespace.QueuedDevices(); err != nil {
		return err
	}
	if err := v.findXDPTargets(); err != nil {
		return err
	}
	v.scanned = time.Now()
	v.links = make(map[int]netlink.Link, len(links))
	v.addrs = make(map[int][]netip.Prefix)
	wanted := make(map[kernel.DeviceKey]kernel.Device, len(links))
	v.first = device.FirstAddrs(addrs, v.addrs)
	for _, l := range links {
		v.links[l.Attrs().Index] = l
	}
	v.keeping = false
	for _, l := range links {
		wanted[v.Key(l)] = v.encode(l)
	}
	v.listed = device.List(v.links, bridgePorts, v.addrs, v.first, v.ruleName)
	if err := v.write(wanted); err != nil {
		return err
	}
	if err := v.bridges.SetLocal(addrs); err != nil {
		return err
	}
	if err := bridge.MarkOtherTags(v.namespace.Handle, v.links, bridgePorts); err != nil {
		return err
	}
	changed, err := v.bridges.SetPorts(bridgePorts, v.links, v.tunnelEnds())
	if changed { // frames may take another path now, or none
		err = errors.Join(err, v.InvalidateAll())
	}
	return err
}

// InvalidateAll invalidates all next hops of the namespace.
func (v *Devices) InvalidateAll() error {
	return v.options.Invalidate(func(k kernel.NexthopKey) bool { return k.Netns == v.namespace.ID })
}

// Key returns the key of a device in ll_device.
func (v *Devices) Key(l netlink.Link) kernel.DeviceKey {
	return kernel.DeviceKey{Ifindex: uint32(l.Attrs().Index), Netns: uint32(v.namespace.ID)}
}

// write makes ll_device equal wanted, starting from v.written, and invalidates next hops through
// changed devices.
func (v *Devices) write(wanted map[kernel.DeviceKey]kernel.Device) error {
	table := &v.tables.Device
	changed := make(map[uint32]bool)
	var names []string // old and new names of changed devices
	for key, device := range wanted {
		if old, ok := v.written[key]; ok && old == device {
			continue
		}
		if old, err := v.before(key); err != nil {
			return err
		} else if old.Name != device.Name {
			names = append(names, old.Text(), device.Text())
		}
		if err := table.Put(key, device); err != nil {
			return fmt.Errorf("device %d: %w", key.Ifindex, err)
		}
		v.written[key] = device
		changed[key.Ifindex] = true
	}
	for key, old := range maps.Clone(v.written) {
		if _, ok := wanted[key]; ok {
			continue
		}
		if err := table.Delete(key); err != nil {
			return fmt.Errorf("device %d: %w", key.Ifindex, err)
		}
		names = append(names, old.Text())
		delete(v.written, key)
		changed[key.Ifindex] = true
	}
	if len(changed) == 0 {
		return nil
	}
	if err := v.writeUplinks(); err != nil {
		return err
	}
	if err := v.options.NamesChanged(names); err != nil {
		return err
	}
	return v.options.Invalidate(func(k kernel.NexthopKey) bool { return k.Netns == v.namespace.ID && changed[k.Ifindex] })
}

// before returns the entry of a device in ll_device, possibly an earlier run's.
func (v *Devices) before(key kernel.DeviceKey) (old kernel.Device, err error) {
	if old, ok := v.written[key]; ok {
		return old, nil
	}
	if _, err := v.tables.Device.Find(key, &old); err != nil {
		return old, fmt.Errorf("device %d: %w", key.Ifindex, err)
	}
	return old, nil
}

// encode returns the ll_device entry of a device. v.mu is held.
func (v *Devices) encode(l netlink.Link) kernel.Device {
	a := l.Attrs()
	k := kernel.Device{MtuBytes: uint32(a.MTU), Name: kernel.DeviceName(v.ruleName(l))}
	copy(k.Mac[:], a.HardwareAddr)
	for family, to := range []*kernel.Addr{&k.Addr4, &k.Addr6} {
		ip := v.first[a.Index][family]
		if !ip.IsValid() {
			ip = v.first[0][family]
			k.Flags |= []uint32{kernel.DeviceBorrowedAddr4, kernel.DeviceBorrowedAddr6}[family]
		}
		if ip.IsValid() {
			*to = kernel.AddrOf(ip)
		}
	}
	if l.Type() == "veth" && a.NetNsID >= 0 && a.Flags&unix.IFF_UP != 0 && !v.queued[a.Index] && !v.options.IsMirrored(a.Index) {
		k.Flags |= kernel.DevicePeer
	}
	if v.ports[a.Index] {
		k.Flags |= kernel.DevicePort
	}
	if v.uplinks[a.Index] {
		k.Flags |= kernel.DeviceUplink
	}
	if v.IsLink(a.Name) {
		k.Flags |= kernel.DeviceLink
	}
	if !v.options.IsMirrored(a.Index) {
		k.Flags |= v.xdpTargets.flags(a)
	}
	if v.options.IsTunnel(a.Name) {
		k.Flags |= kernel.DeviceTunnel
	}
	// Routes point to a device of a VRF itself, not to the VRF.
	if master := v.links[a.MasterIndex]; a.MasterIndex != 0 && (master == nil || master.Type() != "vrf") {
		k.Flags |= kernel.DeviceMember
	}
	return k
}

// neighbourChanged invalidates the next hops of a neighbour whose MAC address has changed or is
// gone. They are matched by MAC address alone, since packets to the neighbour may leave through a
// device other than the one in its entry: a port of the bridge, or of the bridge below the VLAN
// device. Bridged next hops are skipped: bridging does not resolve neighbours.
func (v *Devices) neighbourChanged(u netlink.NeighUpdate) {
	if u.Family == unix.AF_BRIDGE {
		v.fdbChanged(u)
		return
	}
	ip, ok := netip.AddrFromSlice(u.IP)
	if !ok {
		return
	}
	n := neighbour{u.LinkIndex, ip.Unmap()}
	var mac [6]byte
	gone := u.Type == unix.RTM_DELNEIGH || u.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) != 0 ||
		copy(mac[:], u.HardwareAddr) != len(mac)
	v.mu.Lock()
	old, known := v.neighbours[n]
	v.noteFailed(n, &u)
	if gone {
		delete(v.neighbours, n)
	} else {
		v.neighbours[n] = mac
	}
	v.mu.Unlock()
	if !known || !gone && old == mac {
		return
	}
	v.report(v.options.Invalidate(func(k kernel.NexthopKey) bool {
		return k.Netns == v.namespace.ID && k.Dmac == old && k.Bridged == 0
	}))
}

// fdbChanged invalidates the next hops to a MAC address that a bridge has learnt on another
// port, or deleted.
func (v *Devices) fdbChanged(u netlink.NeighUpdate) {
	var mac [6]byte
	if copy(mac[:], u.HardwareAddr) != len(mac) {
		return
	}
	gone := u.Type == unix.RTM_DELNEIGH
	v.report(v.options.Invalidate(func(k kernel.NexthopKey) bool {
		return k.Netns == v.namespace.ID && k.Dmac == mac && (int(k.Ifindex) == u.LinkIndex) == gone
	}))
}

// underlayChanged records that the paths to peers may have changed.
func (v *Devices) underlayChanged() {
	if v.namespace.ID == hook.Host {
		v.options.PathsChanged()
	}
}

// retry repeats a dump that was interrupted by a change.
func retry[T any](list func() (T, error)) (T, error) { return dump.Retry(list) }

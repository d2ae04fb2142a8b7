// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/fastpath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/keeper"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/nexthop"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/port"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/watch"
	"github.com/loxilight/loxilight/internal/memory"
)

func (d *DataPlane) portsOptions() port.Options {
	return port.Options{
		Dir: filepath.Join(d.dir, "ports"), Attach: d.config.Attach, Programs: programs, Maps: d.maps, Tables: d.tables, Reasons: len(d.reasons),
		Namespaces: d.namespaces, Guards: d.guards, Log: d.log, Signal: d.signal,
		NeedsLoopback: func() bool { return d.services.HasFrontends() || d.nats.HasDNAT() },
		IsMirrored: func(netns uint8, index int) bool {
			b := d.mirrors.Bypass(netns, index)
			return b.In || b.Out
		},
		EndpointAt: func(name datapath.EndpointName, netns uint8, index int) error {
			return d.policies.Attach(name, kernel.PolicyPortOf(uint32(index), uint32(netns)))
		},
		EndpointKept: func(name datapath.EndpointName, netns uint8, index int) {
			d.policies.Keep(name, kernel.PolicyPortOf(uint32(index), uint32(netns)))
		},
		EndpointGone:  d.policies.Detach,
		FollowMirrors: d.followMirrors,
		InUse:         &d.inUse, BeforeFirst: d.beforeFirstPort, AfterFirst: d.afterFirstPort,
	}
}

// releasePause is how long released addresses are collected: then one pass ends their connections.
const releasePause = 250 * time.Millisecond

// endConnections ends the connections of addresses that participants elsewhere no longer have, soon.
func (d *DataPlane) endConnections(addrs []netip.Addr) {
	d.guards.Release(addrs)
	if d.releasing.CompareAndSwap(false, true) {
		time.AfterFunc(releasePause, func() {
			d.releasing.Store(false)
			d.sweeper.Kick()
		})
	}
}

// isIdle reports whether no programs are attached to a port, so that they handle no packets.
func (d *DataPlane) isIdle() bool { return !d.inUse.Load() }

// beforeFirstPort updates the source ports, which are rarely updated while no programs are
// attached, and must be up to date for their first packet.
func (d *DataPlane) beforeFirstPort() {
	if err := d.snat.Refresh(); err != nil {
		d.log.Warn("the source ports for SNAT may be out of date; retrying", "error", err)
	}
}

// afterFirstPort makes others notice that programs are attached.
func (d *DataPlane) afterFirstPort() {
	d.namespaces.LookAtNetfilter()
	d.sweeper.Wake()
	d.keeper.Wake()
}

func (d *DataPlane) keeperOptions(o pin.Origin) keeper.Options {
	return keeper.Options{
		Dir: d.dir, PinDir: d.config.PinDir, Maps: d.maps, Origin: o, Log: d.log, Ports: d.ports, Signal: d.signal,
		PinNote: func(netns uint8, path string) error {
			z, err := d.namespaces.Open(netns)
			if err != nil {
				return err
			}
			return z.PinNote(path)
		},
		IsIdle: func() bool { return !d.ports.AreAttached() && !d.mirrors.AreAttached() },
		// Maintain reports the errors of both.
		EachRound: func() { _ = errors.Join(d.renewSwitch(), d.ports.FollowLoopback(), d.policies.SweepNames()) },
		Severed:   d.mirrors.Severed, Repin: d.mirrors.Repin,
	}
}

func (d *DataPlane) sweepOptions() conn.Options {
	return conn.Options{
		Tables: d.tables, Maps: d.maps, Shares: d.shared.Value, States: d.states, Interval: d.config.SweepInterval, Longest: d.sweepLongest, Log: d.log,
		MinConnections: d.config.Tables.ConnectionsMin, MaxConnections: d.config.Tables.Connections, HasMemory: memory.Enough, IsIdle: d.isIdle,
		// Services are asked first, since most connections that end lead to dead backends. NAT is
		// asked last: it counts the ports of all connections that no judge has ended as used.
		Judges:    []conn.Judge{d.services, d.guards.Judge(), d.nexthops, d.nats},
		IdleTimes: d.services.IdleTimes, Paths: d.nexthops.Paths,
		ServiceOf: d.services.ServiceOf, ServiceName: d.services.Name, NATName: d.nats.Name, RuleName: d.firewall.Name,
		BeforeRules: d.epoch.IsBefore,
	}
}

func (d *DataPlane) namespacesOptions() namespace.Options {
	return namespace.Options{
		SwitchName: d.config.SwitchNamespace, Pins: filepath.Join(d.dir, "ports"), Programs: programs, Maps: d.maps,
		Watch: func(z *hook.Netns) *watch.Devices { return watch.New(d.watchOptions(z)) },
		WatchNetfilter: func(z *hook.Netns) (*fastpath.Gate, error) {
			return fastpath.Watch(fastpath.Options{Netns: z, Tables: d.tables, Log: d.log, IsIdle: d.isIdle, Invalidate: d.nexthops.Invalidate})
		},
	}
}

func (d *DataPlane) watchOptions(z *hook.Netns) watch.Options {
	return watch.Options{
		Netns: z, Tables: d.tables, Log: d.log, Uplinks: &d.uplinkNames,
		LinkDevice: [...]string{netnsHost: d.config.HostDevice, netnsSwitch: d.config.SwitchDevice}[z.ID],
		Guard:      d.guards.MAC, LostAddr: d.sweeper.Kick, FollowAddrs: d.announcer.Follow,
		NamesChanged: d.firewall.DevicesChanged, Invalidate: d.nexthops.Invalidate,
		Forget:       func(to func(netip.Addr) bool) error { return d.forgetNexthops(z.ID, to) },
		IsTunnel:     func(device string) bool { return d.overlay.HasDevice(z.ID, device) },
		PathsChanged: d.overlay.PathsChanged,
		LacksProgram: func(index int, done <-chan struct{}) bool { return d.ports.LacksProgram(z.ID, index, done) },
		HasMirrors:   func(index int) bool { return d.mirrors.IsAttached(z.ID, index) },
		IsMirrored:   func(index int) bool { return d.mirrors.Bypass(z.ID, index).Out },
		Signal:       d.signal,
	}
}

// forgetNexthops takes the next hops off the connections and peers whose packets are routed in a
// netns to an address that to selects.
func (d *DataPlane) forgetNexthops(netns uint8, to func(netip.Addr) bool) error {
	d.tables.ForgetNexthops(netns, to)
	if netns != hook.Host { // tunnels use the host's routes
		return nil
	}
	return d.overlay.ForgetNexthops(to)
}

func (d *DataPlane) nexthopOptions() nexthop.Options {
	return nexthop.Options{
		Tables: d.tables, Free: d.maps[kernel.MapLlNexthopFree], Shares: d.shared.Value,
		Peers:      func() map[uint32]bool { return d.overlay.Nexthops() },
		PeerNames:  func() map[uint32]overlay.Name { return d.overlay.Names() },
		DeviceName: d.namespaces.DeviceName,
	}
}

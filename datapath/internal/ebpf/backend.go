// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/announce"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/keeper"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/lb"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/mirror"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/nat"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/nexthop"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/policies"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/port"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/rules"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/snat"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/watch"
)

// DataPlane is the data plane in this node's kernel. It is safe for concurrent use to the extent
// that [datapath.DataPlane] is.
type DataPlane struct {
	config datapath.Config
	log    *slog.Logger
	dir    string // pins of this layout
	maps   map[string]*ebpf.Map
	tables *kernel.Tables // of maps
	// keptSizes are messages about tables that are larger than configured.
	keptSizes []string
	// The longest interval between sweeps; 0: it is the configured one.
	sweepLongest time.Duration

	namespaces  *namespace.Set
	ports       *port.Table
	guards      *guard.Table
	services    *lb.Table
	images      *rules.Images
	nats        *nat.Table
	announcer   *announce.Announcer
	uplinkNames watch.UplinkNames
	shared      *kernel.Shared[kernel.Shares]
	nexthops    *nexthop.Table
	sweeper     *conn.Sweeper
	conns       *conn.Connections
	counters    *nodeTelemetry
	keeper      *keeper.Keeper
	snat        *snat.Ports
	targets     *snat.Targets
	firewall    *rules.Firewall
	policies    *policies.Policies
	overlay     *overlay.Overlay
	mirrors     *mirror.Table
	epoch       *rules.Epoch
	changed     chan struct{}
	inUse       atomic.Bool // programs are attached to a port
	releasing   atomic.Bool // a pass is about to end the connections of released addresses
	closing     sync.Once

	reasons, verdicts, states []string // by value of the enum
}

var _ datapath.DataPlane = (*DataPlane)(nil)

// snatInterval is the interval at which the node's sockets are read; tests replace it.
var snatInterval = 5 * time.Second

// The namespaces, as config_netns in the programs.
const (
	netnsHost   = hook.Host
	netnsSwitch = hook.Switch
)

// loadMapSpecs returns the specifications of all maps; tests replace it, and the programs.
var (
	loadMapSpecs = kernel.LoadKernel
	programs     = hook.Programs()
)

// Open loads the programs and takes over the pins that an earlier run left in cfg.PinDir: maps with
// their entries, and programs, which are replaced in place. It attaches programs only to devices
// that already have them.
func Open(cfg datapath.Config, log *slog.Logger) (_ *DataPlane, err error) {
	d := &DataPlane{
		config:  cfg,
		log:     log,
		dir:     pin.Dir(cfg.PinDir),
		changed: make(chan struct{}, 1),
	}
	if d.config.SweepInterval == 0 {
		d.config.SweepInterval, d.sweepLongest = 5*time.Second, time.Minute
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	defer kernel.KeepParsed()()
	if err := kernel.CheckFiles(); err != nil {
		return nil, err
	}
	if err := hook.CheckKernel(features.HaveProgramHelper); err != nil {
		return nil, err
	}
	spec, err := loadMapSpecs()
	if err != nil {
		return nil, err
	}
	pins, err := pin.Preflight(cfg, spec.Maps)
	if err != nil {
		return nil, err
	} else if !pins.OK {
		return nil, pins.Refused()
	}
	if err := pin.PrepareDir(d.dir); err != nil {
		return nil, err
	}
	if err := d.readNames(spec); err != nil {
		return nil, err
	}
	r, err := pin.Open(d.dir, spec.Maps, d.config.Tables, log)
	if err != nil {
		return nil, err
	}
	d.maps, d.tables, d.keptSizes = r.Maps, kernel.TablesOf(r.Maps), r.KeptSizes
	d.namespaces = namespace.New(d.namespacesOptions())
	defer r.Close()
	return d, d.takeOver(r, spec.Maps, pins.Action == datapath.PinsNone, pin.Origin{Version: cfg.Version, Sum: pin.LayoutSum(spec.Maps)})
}

// takeOver replaces an earlier run's maps and programs with this run's. It may be interrupted at
// any point: the next run, of whatever version, continues.
func (d *DataPlane) takeOver(r *pin.Replacements, specs map[string]*ebpf.MapSpec, first bool, o pin.Origin) error {
	if err := d.namespaces.LoadUsed(); err != nil {
		return err
	}
	if err := r.Copy(); err != nil {
		return err
	}
	if err := errors.Join(d.tables.MapConnections(d.maps), d.tables.MapBackends(d.maps, specs, d.config.Tables.Backends)); err != nil {
		return err
	}
	// So far nothing in use has changed. From here until the end the maps belong to no single
	// version.
	if r.Pending() {
		if err := pin.WriteOrigin(d.dir, pin.Origin{Version: pin.ReadOrigin(d.dir).Version}); err != nil {
			return err
		}
	}
	if err := r.PinNew(); err != nil {
		return err
	}
	if err := d.adoptTables(first); err != nil {
		return err
	}
	if _, err := d.namespaces.Open(netnsHost); err != nil {
		return err
	}
	if err := d.snat.Refresh(); err != nil {
		return err
	}
	if err := d.ports.Adopt(r); err != nil {
		return err
	}
	if err := d.adoptMirrors(); err != nil {
		return err
	}
	for _, z := range d.namespaces.InUse() {
		if err := z.CloseShadow(); err != nil {
			return err
		}
	}
	if err := r.Finish(); err != nil {
		return err
	}
	if err := pin.WriteOrigin(d.dir, o); err != nil {
		return err
	}
	d.sweeper.FollowLoad()
	if err := d.mirrors.Tidy(); err != nil {
		d.log.Warn("programs of mirrors that an earlier run left cannot be detached", "error", err)
	}
	d.ports.WarnOfOtherHooks()
	if err := d.ports.AnnounceFirst(false); err != nil {
		return err
	}
	d.keeper = keeper.New(d.keeperOptions(o))
	d.ports.KeepWith(d.keeper)
	d.keeper.Start()
	return nil
}

// adoptTables takes over the contents of the tables. first: there were none.
func (d *DataPlane) adoptTables(first bool) (err error) {
	if d.shared, err = kernel.MapShared[kernel.Shares](d.tables.Shares.Raw()); err != nil {
		return err
	}
	nexthops, options := make(chan *nexthop.Table, 1), d.nexthopOptions()
	go func() { nexthops <- nexthop.Adopt(options, first) }() // reads the indexes one by one
	defer func() {
		if d.nexthops == nil {
			d.nexthops = <-nexthops // an error: the maps are about to be closed
		}
	}()
	if d.announcer, err = newAnnouncer(d); err != nil {
		return err
	}
	if d.targets, err = snat.AdoptTargets(d.tables); err != nil {
		return err
	}
	if d.services, err = lb.Adopt(d.tables, d.announcer.Services(), d.targets, d.log); err != nil {
		return err
	}
	if err := d.adoptRules(); err != nil {
		return err
	}
	d.snat = snat.New(snat.Options{
		Tables: d.tables, InNamespaces: d.namespaces.Do, FrontendPorts: d.services.FrontendPorts,
		Interval: snatInterval, IsIdle: d.isIdle,
	})
	if d.nats, err = nat.Adopt(d.tables, d.images, natHost{d}, d.log); err != nil {
		return err
	}
	if err := d.targets.Settle(); err != nil {
		return err
	}
	d.guards = guard.Adopt(d.tables, d.epoch.Raise)
	d.ports = port.New(d.portsOptions())
	d.nexthops = <-nexthops
	if d.sweeper, err = conn.NewSweeper(d.sweepOptions()); err != nil {
		return err
	}
	d.guards.End = d.sweeper.Whole
	d.services.Start(d.sweeper, d.soonOnLoopback)
	d.conns, d.counters = conn.NewConnections(d.sweeper), d.newTelemetry()
	if d.overlay, err = overlay.Adopt(d.overlayOptions()); err != nil {
		return err
	}
	d.mirrors, err = mirror.Adopt(d.tables, mirrorHost{d})
	return err
}

// soonOnLoopback attaches our program to the loopback device if it is needed now.
func (d *DataPlane) soonOnLoopback() {
	if d.ports != nil { // open
		d.ports.SoonOnLoopback()
	}
}

// adoptRules takes over the rule sets that an earlier run put in force.
func (d *DataPlane) adoptRules() (err error) {
	d.epoch = rules.NewEpoch(d.tables)
	if d.images, err = rules.NewImages(d.tables, d.maps); err == nil {
		d.firewall, err = rules.Adopt(d.tables, d.images, d.epoch.Raise, d.log)
	}
	if err == nil {
		d.policies, err = policies.Adopt(policies.Options{Tables: d.tables, Maps: d.maps, NameGrace: d.config.NameGrace, Raise: d.epoch.RaisePorts, Released: d.endConnections, SetInUse: d.setPoliciesInUse})
	}
	return err
}

// setPoliciesInUse prevents, or permits, that a version without policies takes over.
func (d *DataPlane) setPoliciesInUse(inUse bool) error {
	return pin.SetUse(d.config.PinDir, pin.UsePolicies, inUse)
}

func (d *DataPlane) readNames(spec *ebpf.CollectionSpec) (err error) {
	if d.reasons, err = kernel.EnumNames(spec.Types, "drop_reason", "DROP_"); err != nil {
		return err
	}
	if d.verdicts, err = kernel.EnumNames(spec.Types, "verdict_count", "VERDICT_"); err != nil {
		return err
	}
	d.states, err = kernel.EnumNames(spec.Types, "ct_state", "CT_")
	return err
}

// renewSwitch closes the switch's namespace if it was deleted.
func (d *DataPlane) renewSwitch() error {
	closed, err := d.ports.RenewSwitch()
	if closed {
		err = errors.Join(err, d.mirrors.Abandon(netnsSwitch))
		d.signal()
	}
	return err
}

// Ports implements [datapath.DataPlane].
func (d *DataPlane) Ports() datapath.Table[datapath.PortName, datapath.Port] { return d.ports }

// Endpoints implements [datapath.DataPlane].
func (d *DataPlane) Endpoints() datapath.Table[datapath.EndpointName, datapath.Endpoint] {
	return d.ports.Endpoints()
}

// Services implements [datapath.DataPlane].
func (d *DataPlane) Services() datapath.ServiceTable { return d.services }

// Firewall implements [datapath.DataPlane].
func (d *DataPlane) Firewall() datapath.RuleTable[datapath.FirewallSet] {
	return d.firewall
}

// NAT implements [datapath.DataPlane].
func (d *DataPlane) NAT() datapath.RuleTable[datapath.NATSet] {
	return d.nats
}

// Policies implements [datapath.DataPlane].
func (d *DataPlane) Policies() datapath.PolicyTable { return d.policies }

// Tunnels implements [datapath.DataPlane].
func (d *DataPlane) Tunnels() datapath.Table[datapath.TunnelName, datapath.Tunnel] {
	return d.overlay.Tunnels()
}

// Peers implements [datapath.DataPlane].
func (d *DataPlane) Peers() datapath.Table[datapath.PeerName, datapath.Peer] {
	return d.overlay.Peers()
}

// Connections implements [datapath.DataPlane].
func (d *DataPlane) Connections() datapath.Connections { return d.conns }

// Telemetry implements [datapath.DataPlane].
func (d *DataPlane) Telemetry() datapath.Telemetry { return d.counters }

// Maintain implements [datapath.DataPlane].
func (d *DataPlane) Maintain(ctx context.Context) error {
	d.services.DropOld()
	err := errors.Join(d.renewSwitch(), d.sweeper.Maintain(ctx), d.nats.Maintain(), d.announcer.Maintain(), d.overlay.Maintain(), d.ports.FollowLoopback())
	for _, z := range d.namespaces.InUse() {
		err = errors.Join(err, z.Devices.Maintain())
	}
	return errors.Join(err, d.snat.Maintain())
}

// Close implements [datapath.DataPlane]. Pinned maps and programs stay in force. Further calls do
// nothing.
func (d *DataPlane) Close() (err error) {
	d.closing.Do(func() {
		if d.keeper != nil {
			d.keeper.Close()
		}
		if d.sweeper != nil {
			err = errors.Join(err, d.sweeper.Close())
		}
		if d.namespaces != nil {
			err = errors.Join(err, d.namespaces.Close())
		}
		if d.ports != nil {
			d.ports.Close()
		}
		d.mirrors.Close()
		if d.policies != nil {
			err = errors.Join(err, d.policies.Close())
		}
		if d.shared != nil {
			err = errors.Join(err, d.shared.Close())
		}
		if d.tables != nil {
			err = errors.Join(err, d.tables.Close())
		}
		pin.CloseMaps(d.maps)
	})
	return err
}

// signal notifies the reader of Changed of a change.
func (d *DataPlane) signal() {
	select {
	case d.changed <- struct{}{}:
	default: // a notification is already pending
	}
}

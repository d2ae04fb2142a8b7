// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/channel"
	"github.com/loxilight/loxilight/loxilightd/internal/config"
	"github.com/loxilight/loxilight/loxilightd/internal/control"
	"github.com/loxilight/loxilight/loxilightd/internal/health"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
	"github.com/loxilight/loxilight/loxilightd/internal/node"
	"github.com/loxilight/loxilight/loxilightd/internal/pods"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

const (
	// lostStateGrace is how long owners have to configure their objects again after a damaged store
	// was set aside. Objects that have not been configured by then are deleted.
	lostStateGrace = 10 * time.Minute
	// syncTimeout limits how long the daemon waits before it reports that it is ready.
	// syncTimeoutLost applies instead while the daemon is waiting for lostStateGrace anyway.
	syncTimeout     = 30 * time.Second
	syncTimeoutLost = 2 * time.Second
)

// daemonOptions are the options that main has determined.
type daemonOptions struct {
	cfg        *config.Config
	configFile string
	log        *slog.Logger
	level      *slog.LevelVar
	hup        <-chan os.Signal
	// open opens the data plane; nil: [backends.Open].
	open func(name string, cfg datapath.Config, log *slog.Logger) (datapath.DataPlane, error)
}

// loxilightd is the whole daemon.
type loxilightd struct {
	daemonOptions
	started time.Time
	store   *state.Store
	report  *state.Report
	plane   datapath.DataPlane
	network datapath.Network // nil: not available
	channel *channel.Channel
	node    *node.Node
	control *control.Server

	addresses *ipam.Store
	podLinks  datapath.PodLinks
	pods      *pods.Server

	closers []func() error // in the order in which they were opened
}

// runDaemon runs the daemon until ctx ends. It closes everything before it returns; the state in
// the kernel continues to work.
func runDaemon(ctx context.Context, o daemonOptions) (err error) {
	d := &loxilightd{daemonOptions: o, started: time.Now()}
	if d.open == nil {
		d.open = backends.Open
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.start(ctx); err != nil {
		return err
	}
	return d.serve(ctx)
}

// start opens everything, from the lock that keeps out a second daemon to the sockets, but does not
// apply anything yet.
func (d *loxilightd) start(ctx context.Context) error {
	lock, err := channel.Lock(d.cfg.RunDir, "")
	if err != nil {
		return err
	}
	d.closers = append(d.closers, lock.Close)
	d.log.Info("starting", slog.String("instance", d.cfg.Instance), slog.String("version", version))
	d.tellSizes()
	if d.store, d.report, err = state.Open(state.Config{Dir: d.cfg.StateDir, Tables: d.cfg.Tables, Decode: control.Decode,
		History: state.HistoryLimits{Revisions: d.cfg.HistoryRevisions, Bytes: d.cfg.HistoryBytes},
		InUse:   backends.Attached(d.cfg.Backend, d.cfg.PinDir), OneNamespace: merged(d.cfg)}); err != nil {
		return err
	}
	d.closers = append(d.closers, d.store.Close)
	d.tellReport()
	if err := d.openPlane(); err != nil {
		return err
	}
	if err := d.openPods(); err != nil {
		return err
	}
	d.channel, err = channel.Listen(channel.Options{RunDir: d.cfg.RunDir, Log: d.log, TooLong: control.TooLong()})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, d.channel.Close)
	return nil
}

func planeConfig(cfg *config.Config) datapath.Config {
	return datapath.Config{
		PinDir:          cfg.PinDir,
		SwitchNamespace: cfg.SwitchNamespace,
		HostDevice:      cfg.HostDevice,
		SwitchDevice:    cfg.SwitchDevice,
		Instance:        cfg.Instance,
		StateDir:        cfg.StateDir,
		MakeSwitch:      switchMaker(),
		Tables:          cfg.Tables,
		Attach:          cfg.Attach,
		Version:         version,
		SweepInterval:   cfg.SweepInterval,
		NameGrace:       cfg.NameGrace,
	}
}

// tellSizes logs the sizes of the tables, and why they were chosen.
func (d *loxilightd) tellSizes() {
	t := d.cfg.Tables
	d.log.Info("sizes of the tables",
		slog.String("chosen_by_memory", strings.Join(d.cfg.AutoSizes, " ")),
		slog.Uint64("memory_mib", d.cfg.Memory.Bytes>>20), slog.String("memory_of", d.cfg.Memory.From),
		slog.Group("tables",
			slog.Uint64("connections", uint64(t.Connections)), slog.Uint64("connections_min", uint64(t.ConnectionsMin)),
			slog.Uint64("services", uint64(t.Services)), slog.Uint64("backends", uint64(t.Backends)),
			slog.Uint64("affinity", uint64(t.Affinity)),
			slog.Uint64("ranges", uint64(t.Ranges)), slog.Uint64("rules", uint64(t.Rules)),
			slog.Uint64("prefixes", uint64(t.Prefixes)), slog.Uint64("entities", uint64(t.Entities))))
}

// tellReport logs the faults of the store.
func (d *loxilightd) tellReport() {
	if x := d.report.Damage; x != nil {
		message := "the desired state was lost: apply the objects again"
		if x.Restored != 0 {
			message = "the desired state was damaged and restored from its copy: check that it is complete"
		}
		d.log.Error(message, slog.String("cause", x.Cause), slog.String("file", x.File), slog.Time("at", x.At), slog.Uint64("copy_revision", x.Restored))
	}
	if d.report.RolledBack {
		d.log.Error("the desired state was damaged and may lack its last change: check that it is complete")
	}
	if why := d.report.HistoryLost; why != "" {
		d.log.Warn("the history of the store cannot be used and a new one is started: earlier revisions cannot be restored", slog.String("cause", why))
	}
	if p := d.report.Unconfirmed; p != nil {
		d.log.Error("an unconfirmed change cannot be rolled back: check the configuration", slog.Uint64("revision", p.Revision))
	}
	for _, u := range d.report.Unreadable {
		d.log.Warn("this version cannot decode a stored object; it stays in the store, and in the data plane what an earlier run applied",
			slog.String("object", u.Key.String()), slog.Any("error", u.Err))
	}
}

// pruneNotBefore returns when the grace period of lost objects ends. The time is on the monotonic
// clock, at most lostStateGrace after the start, whatever the wall clock showed when the store was
// set aside.
func (d *loxilightd) pruneNotBefore() time.Time {
	switch x := d.report.Damage; {
	case d.report.RolledBack:
		return d.started.Add(lostStateGrace)
	case x != nil:
		left := x.At.Add(lostStateGrace).Sub(d.started.Round(0))
		return d.started.Add(min(left, lostStateGrace))
	}
	return time.Time{}
}

// merged reports whether host and switch are the same network namespace.
func merged(cfg *config.Config) bool {
	return cfg.SwitchNamespace == "" || cfg.SwitchNamespace == "host"
}

// devices returns the names of the link between host and switch, if configured.
func devices(cfg *config.Config) node.Devices {
	if merged(cfg) {
		return node.Devices{}
	}
	return node.Devices{Host: cfg.HostDevice, Switch: cfg.SwitchDevice, Namespace: cfg.SwitchNamespace}
}

// newNode returns a node that reports the status of objects to d.control.
func (d *loxilightd) newNode() *node.Node {
	o := node.Options{
		Store: d.store, Plane: d.plane, Network: d.network, Devices: devices(d.cfg), Exempt: d.cfg.Exempt, Failsafe: d.cfg.Failsafe, Log: d.log, PruneNotBefore: d.pruneNotBefore(),
		StatusChanged: func(k state.Key, s node.Status) {
			if s.State != reconcile.Removed { // deletion is reported with its change
				d.control.StatusChanged(k, statusOf(s))
			}
		},
		HealthChanged: func(t health.Target, r health.Result) {
			d.control.HealthChanged(t.Service, t.Backend, r.State.String(), r.Message)
		},
	}
	o.DevicesChanged = func() { d.pods.Wake() }
	o.Opening = func(endpoint string) bool { return d.pods.Opening(endpoint) }
	o.Missing = func(endpoint string) string { return d.pods.Missing(endpoint) }
	return node.New(o)
}

func (d *loxilightd) newControl() *control.Server {
	lister, _ := d.network.(datapath.NetworkLister) // nil if the network cannot list
	return control.New(control.Options{
		Network: lister,
		Leases:  d.addresses, SwitchDevice: devices(d.cfg).Switch, SwitchNamespace: cmp.Or(d.cfg.SwitchNamespace, "host"),
		CNI: func(ctx context.Context, p *api.CNIParams) (json.RawMessage, *api.Error) {
			return d.pods.Handle(ctx, p)
		},
		PodProblems: func() []string { return d.pods.Problems() },
		PodRates: func(device, endpoint string) (ingress, egress datapath.PodRate) {
			return d.pods.Rates(device, endpoint)
		},
		Instance: d.cfg.Instance, StateDir: d.cfg.StateDir, Version: version, Build: build(),
		Store: d.store, Report: d.report, Plane: d.plane, Progress: progress{d.node}, ObjectDir: d.cfg.ObjectDir,
		Publish: func(topic string, event control.Event) error { return d.channel.Publish(topic, event) },
		Log:     d.log,
	})
}

// serve applies the desired state and answers requests until ctx ends.
func (d *loxilightd) serve(ctx context.Context) error {
	d.node = d.newNode()
	d.control = d.newControl()
	d.pods = d.newPods()
	d.control.Expire() // before a change whose deadline has passed reaches the data plane
	d.reloadFiles()
	ctx, stop := context.WithCancel(ctx)
	// The daemon's parts outlive ctx: requests that are still being answered need them.
	partsCtx, stopParts := context.WithCancel(context.WithoutCancel(ctx))
	var parts sync.WaitGroup
	defer func() { stop(); stopParts(); parts.Wait() }()
	parts.Go(func() { d.node.Run(partsCtx) })
	parts.Go(func() { d.control.Run(partsCtx) })
	parts.Go(func() {
		d.store.KeepCopy(partsCtx, func(err error) { d.log.Warn("the copy of the store is not up to date", slog.Any("error", err)) })
	})
	parts.Go(func() { d.pods.Run(partsCtx) })
	parts.Go(func() { d.ready(ctx) })
	parts.Go(func() { d.reloadOnSignal(ctx) })
	parts.Go(func() { watchdog(partsCtx, d.log, d.alive) })
	err := d.channel.Serve(ctx, func(ctx context.Context, p channel.Peer, request []byte) []byte {
		return d.control.Handle(ctx, control.Caller{UID: p.UID, Admin: p.Admin}, request)
	})
	if err == nil {
		d.log.Info("stopping; the data plane continues")
	}
	notifySystemd(d.log, daemon.SdNotifyStopping)
	return err
}

// ready reports to the service manager that the data plane was adopted and the desired state
// applied, except for objects that cannot be applied yet.
func (d *loxilightd) ready(ctx context.Context) {
	begin := time.Now()
	timeout := syncTimeout
	if begin.Before(d.pruneNotBefore()) {
		timeout = syncTimeoutLost
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := d.node.Synced(bounded); ctx.Err() != nil {
		return
	} else if err != nil {
		d.log.Warn("not everything could be applied or pruned yet, see llcli status")
	}
	_, waiting := d.node.NotDone(0)
	now := d.store.Snapshot()
	d.log.Info("ready", slog.Uint64("revision", now.Revision), slog.Int("objects", now.Len()),
		slog.Int("not_ready", waiting), slog.Duration("took", time.Since(begin).Round(time.Millisecond)))
	notifySystemd(d.log, daemon.SdNotifyReady)
}

// alive returns once it has acquired and released the daemon's locks.
func (d *loxilightd) alive() {
	d.node.NotDone(0)
	d.store.Changes(0)
}

// reloadOnSignal reloads the configuration and the object files on each SIGHUP.
func (d *loxilightd) reloadOnSignal(ctx context.Context) {
	for {
		select {
		case <-d.hup:
			notifyReloading(d.log)
			d.reloadConfig()
			d.reloadFiles()
			notifySystemd(d.log, daemon.SdNotifyReady)
		case <-ctx.Done():
			return
		}
	}
}

// reloadConfig applies the keys that can change at run time. After an error, everything stays
// unchanged.
func (d *loxilightd) reloadConfig() {
	cfg, err := config.Load(d.configFile)
	if err != nil {
		d.log.Error("new configuration not applied, the previous one stays in force", slog.Any("error", err))
		return
	}
	d.level.Set(cfg.LogLevel)
	if !reflect.DeepEqual(d.cfg.Exempt, cfg.Exempt) {
		d.cfg.Exempt = cfg.Exempt
		d.node.SetExempt(cfg.Exempt)
		d.log.Info("exemptions from the firewall changed", slog.Int("count", len(cfg.Exempt)))
	}
	if !reflect.DeepEqual(d.cfg.Failsafe, cfg.Failsafe) {
		d.cfg.Failsafe = cfg.Failsafe
		d.node.SetFailsafe(cfg.Failsafe)
		d.log.Info("failsafe of policies changed", slog.Int("in", len(cfg.Failsafe[0])), slog.Int("out", len(cfg.Failsafe[1])))
	}
	if keys := d.cfg.RestartNeeded(cfg); len(keys) > 0 {
		d.log.Warn("changed configuration needs a restart", slog.Any("keys", keys))
	}
}

// reloadFiles applies the object files. After an error, the previous objects stay, and the daemon's
// health reports the error.
func (d *loxilightd) reloadFiles() {
	result, err := d.control.Reload()
	if err != nil {
		d.log.Error("object files not applied; their previous objects stay in force", slog.Any("error", err))
		return
	}
	d.log.Info("object files read", slog.Int("files", len(result.Files)), slog.Any("changes", result.Summary))
}

// close closes everything in reverse order. Pins are kept.
func (d *loxilightd) close() error {
	var err error
	for i := len(d.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, d.closers[i]())
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// Present reports whether [Detach] may have something to do.
func Present(cfg datapath.Config) bool {
	_, err := os.Stat(filepath.Join(cfg.StateDir, journalName))
	_, there := namespace.Find(cfg.SwitchNamespace)
	return !errors.Is(err, fs.ErrNotExist) || !isHost(cfg) && there
}

// Detach removes everything that is ours: routes, addresses, bridges, the link between host and
// switch, and the network namespace, unless they existed before us. A missing item is not an error.
func Detach(cfg datapath.Config, log *slog.Logger) (err error) {
	n := &Network{cfg: cfg, log: log, signals: newSignals(), ports: map[string]bool{}}
	if n.journal, err = openJournal(cfg.StateDir); errors.Is(err, fs.ErrNotExist) {
		n.journal, err = &journal{current: newRecords()}, nil // no state file: nothing is ours
	}
	if err != nil {
		return err
	}
	if n.host, err = namespace.Open(""); err != nil {
		return errors.Join(err, n.journal.close())
	}
	n.bridges = &bridges{n: n, wanted: map[datapath.BridgeName]datapath.Bridge{}}
	n.routes, n.links, n.tunnels = newRoutes(n), newLinks(n), newTunnels(n)
	n.endpoints = &endpoints{n: n, wanted: map[datapath.EndpointName]datapath.Endpoint{}}
	defer func() { err = errors.Join(err, n.Close()) }()
	if !isHost(cfg) {
		if _, there := namespace.Find(cfg.SwitchNamespace); there {
			if n.sw, err = namespace.Open(cfg.SwitchNamespace); err != nil {
				return err
			}
		}
	}
	if err := n.removeAll(context.Background()); err != nil {
		return err
	}
	if err := n.removeSwitch(); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(cfg.StateDir, journalName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeAll removes every route and bridge, and our settings on other devices, according to the
// journal.
func (n *Network) removeAll(ctx context.Context) error {
	err := deleteAll(ctx, n.log, n.routes, "route", "route removed")
	if err == nil {
		err = deleteAll(ctx, n.log, n.links, "link", "")
	}
	if err == nil {
		err = deleteAll(ctx, n.log, n.endpoints, "endpoint", "")
	}
	if err == nil {
		err = deleteAll(ctx, n.log, n.Peers(), "peer", "routes to a peer removed")
	}
	if err == nil {
		err = deleteAll(ctx, n.log, n.tunnels, "tunnel", "device of a tunnel removed")
	}
	if err == nil {
		err = deleteAll(ctx, n.log, n.bridges, "bridge", "bridge removed")
	}
	return err
}

// deleteAll deletes all rows of a table, up to the first failure. The message done, unless empty,
// is logged for each row.
func deleteAll[K ~string, V any](ctx context.Context, log *slog.Logger, t datapath.Table[K, V], what, done string) error {
	for name, err := range t.Keys(ctx) {
		if err == nil {
			err = t.Delete(ctx, name)
		}
		if err != nil {
			return fmt.Errorf("%s %q: %w", what, name, err)
		}
		if done != "" {
			log.Info(done, slog.String(what, string(name)))
		}
	}
	return nil
}

// removeSwitch removes the link between host and switch, and the namespace.
func (n *Network) removeSwitch() error {
	if isHost(n.cfg) {
		return nil
	}
	if n.cfg.HostDevice != "" {
		outer, err := n.host.Link(n.cfg.HostDevice)
		if err != nil {
			return err
		}
		if outer != nil && outer.Type() == "veth" && isOurs(n.cfg, outer) {
			if err := n.host.Netlink.LinkDel(outer); err != nil && !namespace.IsAbsent(err) {
				return fmt.Errorf("device %q: %w", n.cfg.HostDevice, err)
			}
			n.log.Info("link between host and switch removed", slog.String("host_device", n.cfg.HostDevice))
		}
	}
	if n.sw == nil {
		return nil
	}
	ours, err := madeByUs(n.cfg, n.sw)
	if err != nil || !ours {
		return err
	}
	n.warnOfDevices()
	n.sw.Drop()
	n.sw = nil
	if err := namespace.Delete(n.cfg.SwitchNamespace); err != nil {
		return fmt.Errorf("remove network namespace %q: %w", n.cfg.SwitchNamespace, err)
	}
	n.log.Info("network namespace of the switch removed", slog.String("namespace", n.cfg.SwitchNamespace))
	return nil
}

// warnOfDevices names other programs' devices that are deleted with the switch's namespace: all
// except physical devices, which return to the host.
func (n *Network) warnOfDevices() {
	links, err := dump.Retry(n.sw.Netlink.LinkList)
	if err != nil {
		return // only the warning is lost
	}
	var devices []string
	for _, link := range links {
		if kind := link.Type(); kind != "device" && !isOurs(n.cfg, link) {
			devices = append(devices, link.Attrs().Name+" ("+kind+")")
		}
	}
	if len(devices) > 0 {
		n.log.Warn("devices are deleted with the network namespace of the switch",
			slog.String("namespace", n.cfg.SwitchNamespace), slog.String("devices", strings.Join(devices, ", ")))
	}
}

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

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// Present says whether there is something that [Detach] would have to look at.
func Present(cfg datapath.Config) bool {
	_, err := os.Stat(filepath.Join(cfg.StateDir, journalName))
	_, there := namedID(cfg.SwitchNamespace)
	return !errors.Is(err, fs.ErrNotExist) || !isHost(cfg) && there
}

// Detach removes all that is ours: routes, addresses, bridges, the link between host
// and switch, and the network namespace, each unless it was there before. What is not
// there is no error.
func Detach(cfg datapath.Config, log *slog.Logger) (err error) {
	n := &Network{cfg: cfg, log: log, signals: newSignals(), ports: map[string]bool{}}
	if n.journal, err = openJournal(cfg.StateDir); errors.Is(err, fs.ErrNotExist) {
		n.journal, err = &journal{held: newRecords()}, nil // no state, nothing that it says is ours
	}
	if err != nil {
		return err
	}
	if n.host, err = openSpace(""); err != nil {
		return errors.Join(err, n.journal.close())
	}
	n.bridges = &bridges{n: n, wanted: map[datapath.BridgeName]datapath.Bridge{}}
	n.routes, n.links, n.tunnels = newRoutes(n), newLinks(n), newTunnels(n)
	n.endpoints = &endpoints{n: n, wanted: map[datapath.EndpointName]datapath.Endpoint{}}
	defer func() { err = errors.Join(err, n.Close()) }()
	if !isHost(cfg) {
		if _, there := namedID(cfg.SwitchNamespace); there {
			if n.sw, err = openSpace(cfg.SwitchNamespace); err != nil {
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

// removeAll removes every route and bridge, and what is ours of other devices, as far
// as the journal knows.
func (n *Network) removeAll(ctx context.Context) error {
	for name, err := range n.routes.Keys(ctx) {
		if err == nil {
			err = n.routes.Delete(ctx, name)
		}
		if err != nil {
			return fmt.Errorf("route %q: %w", name, err)
		}
		n.log.Info("route removed", slog.String("route", string(name)))
	}
	for name, err := range n.links.Keys(ctx) {
		if err == nil {
			err = n.links.Delete(ctx, name)
		}
		if err != nil {
			return err
		}
	}
	for name, err := range n.endpoints.Keys(ctx) {
		if err == nil {
			err = n.endpoints.Delete(ctx, name)
		}
		if err != nil {
			return fmt.Errorf("endpoint %q: %w", name, err)
		}
	}
	for name, err := range n.Peers().Keys(ctx) {
		if err == nil {
			err = n.Peers().Delete(ctx, name)
		}
		if err != nil {
			return fmt.Errorf("peer %q: %w", name, err)
		}
		n.log.Info("routes to a peer removed", slog.String("peer", string(name)))
	}
	for name, err := range n.tunnels.Keys(ctx) {
		if err == nil {
			err = n.tunnels.Delete(ctx, name)
		}
		if err != nil {
			return fmt.Errorf("tunnel %q: %w", name, err)
		}
		n.log.Info("device of a tunnel removed", slog.String("tunnel", string(name)))
	}
	for name, err := range n.bridges.Keys(ctx) {
		if err == nil {
			err = n.bridges.Delete(ctx, name)
		}
		if err != nil {
			return fmt.Errorf("bridge %q: %w", name, err)
		}
		n.log.Info("bridge removed", slog.String("bridge", string(name)))
	}
	return nil
}

// removeSwitch removes the link between host and switch, and the namespace.
func (n *Network) removeSwitch() error {
	if isHost(n.cfg) {
		return nil
	}
	if n.cfg.HostDevice != "" {
		outer, err := n.host.link(n.cfg.HostDevice)
		if err != nil {
			return err
		}
		if outer != nil && outer.Type() == "veth" && isOurs(n.cfg, outer) {
			if err := n.host.nl.LinkDel(outer); err != nil && !isGone(err) {
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
	n.sw.drop()
	n.sw = nil
	path := filepath.Join(netnsDir, n.cfg.SwitchNamespace)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("remove network namespace %q: %w", n.cfg.SwitchNamespace, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network namespace %q: %w", n.cfg.SwitchNamespace, err)
	}
	n.log.Info("network namespace of the switch removed", slog.String("namespace", n.cfg.SwitchNamespace))
	return nil
}

// isGone says that what was to be removed is not there.
func isGone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EADDRNOTAVAIL)
}

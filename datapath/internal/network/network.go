// SPDX-License-Identifier: Apache-2.0

// Package network configures the kernel's own forwarding through netlink: the network namespace of
// the switch, the link between it and the host, bridges and routes. It forwards no packet itself,
// holds no desired state except the values of the last updates, and changes neither firewall rules
// nor anything that other programs created.
package network

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// hostNamespace is the name for a switch without a namespace of its own.
const hostNamespace = "host"

// Network is the kernel's own forwarding on this node.
type Network struct {
	cfg       datapath.Config
	log       *slog.Logger
	journal   *journal
	bridges   *bridges
	routes    *routes
	links     *links
	endpoints *endpoints
	tunnels   *tunnels
	signals   *signals
	repairs   atomic.Uint64 // of state outside the tables

	mu        sync.Mutex // guards the following
	host      *namespace.Handle
	sw        *namespace.Handle // of the switch; nil: does not exist, or is not needed
	ports     map[string]bool   // that need the switch
	asked     time.Time
	linked    bool   // the link between host and switch existed in this run
	linkError string // error about the link between host and switch; logged once
	linkNext  linkCheck
	sysctls   switchFiles
}

var _ datapath.Network = (*Network)(nil)

// Open reads the records from an earlier run, and changes nothing.
func Open(cfg datapath.Config, log *slog.Logger) (_ *Network, err error) {
	n := &Network{cfg: cfg, log: log, signals: newSignals(), ports: map[string]bool{}}
	if n.journal, err = openJournal(cfg.StateDir); err != nil {
		return nil, err
	}
	if n.host, err = namespace.Open(""); err != nil {
		return nil, errors.Join(err, n.journal.close())
	}
	n.bridges = &bridges{n: n, wanted: map[datapath.BridgeName]datapath.Bridge{}}
	n.routes, n.links, n.tunnels = newRoutes(n), newLinks(n), newTunnels(n)
	n.endpoints = &endpoints{n: n, wanted: map[datapath.EndpointName]datapath.Endpoint{}}
	if err = n.watch(n.host); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	if !n.isHost() {
		go n.watchName(n.host)
	}
	return n, nil
}

// Problems returns messages about network faults that are not in the status of an object.
func (n *Network) Problems() []string {
	if err := n.journal.problem(); err != nil {
		return []string{"the record of our network objects is in memory only: after a restart, they would be treated as another program's: " + err.Error()}
	}
	return nil
}

// Bridges implements [datapath.Network].
func (n *Network) Bridges() datapath.Table[datapath.BridgeName, datapath.Bridge] { return n.bridges }

// Routes implements [datapath.Network].
func (n *Network) Routes() datapath.Table[datapath.RouteName, datapath.Route] { return n.routes }

// Links implements [datapath.Network].
func (n *Network) Links() datapath.Table[datapath.LinkName, datapath.Link] { return n.links }

// Tunnels implements [datapath.Network].
func (n *Network) Tunnels() datapath.Table[datapath.TunnelName, datapath.Tunnel] { return n.tunnels }

// Peers implements [datapath.Network].
func (n *Network) Peers() datapath.Table[datapath.PeerName, datapath.Peer] { return peers{n} }

// Changed implements [datapath.Network].
func (n *Network) Changed() <-chan struct{} { return n.signals.out }

// Maintain implements [datapath.Network].
func (n *Network) Maintain(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	needed := n.needsSwitch()
	if n.isHost() || !needed && n.sw == nil {
		return nil
	}
	before := n.sw
	s, err := n.ensureSwitch(needed)
	if n.sw != before {
		n.signals.raise()
	}
	if !needed && errors.Is(err, datapath.ErrAbsent) {
		return nil
	}
	if err != nil || !needed {
		return err
	}
	return errors.Join(n.checkLink(s), n.tendSysctls(s))
}

// Repairs implements [datapath.Network].
func (n *Network) Repairs() uint64 { return n.repairs.Load() }

// needsSwitch reports whether an object needs the switch. n.mu is held.
func (n *Network) needsSwitch() bool {
	return len(n.ports) > 0 || n.bridges.count() > 0 || n.routes.inSwitch() > 0 || n.tunnels.count() > 0
}

// Close implements [datapath.Network].
func (n *Network) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range []*namespace.Handle{n.host, n.sw} {
		if s != nil {
			s.Drop()
		}
	}
	n.host, n.sw = nil, nil
	n.sysctls.close()
	n.signals.close()
	return n.journal.close()
}

// isHost reports whether host and switch are the same namespace.
func (n *Network) isHost() bool { return isHost(n.cfg) }

func isHost(cfg datapath.Config) bool {
	return cfg.SwitchNamespace == "" || cfg.SwitchNamespace == hostNamespace
}

// space returns the namespace of the host or of the switch, to be released by done. The switch's
// namespace is created if it does not exist, and then kept.
func (n *Network) space(ofSwitch bool) (s *namespace.Handle, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer func() {
		if err == nil {
			s.Acquire()
		}
	}()
	if n.host == nil {
		return nil, errors.New("network: closed")
	}
	if !ofSwitch || n.isHost() {
		return n.host, nil
	}
	before := n.sw
	if s, err = n.ensureSwitch(true); err != nil {
		return nil, err
	}
	if s != before {
		if err := n.tendLink(s); err != nil {
			n.log.Warn("the link between host and switch does not exist", slog.Any("error", err))
		}
	}
	return s, nil
}

// NeedSwitch creates the network namespace of the switch, if it has one of its own and it does not
// exist, and keeps it as long as the port needs it; see [Network.ForgetSwitch].
func (n *Network) NeedSwitch(port string) error {
	n.mu.Lock()
	n.ports[port] = true
	n.mu.Unlock()
	s, err := n.space(true)
	if err == nil {
		n.done(s)
	}
	return err
}

// ForgetSwitch records that the port no longer needs the switch.
func (n *Network) ForgetSwitch(port string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.ports, port)
}

// done releases a namespace.
func (n *Network) done(s *namespace.Handle) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Release()
}

// present returns the namespace with the given id if it still exists, to be released by done. It
// never creates one; nil: it does not exist.
func (n *Network) present(id namespace.ID) (s *namespace.Handle, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer func() {
		if err == nil && s != nil {
			s.Acquire()
		}
	}()
	if n.host == nil {
		return nil, errors.New("network: closed")
	}
	if n.host.ID == id {
		return n.host, nil
	}
	if n.isHost() {
		return nil, nil
	}
	s, err = n.ensureSwitch(false)
	if errors.Is(err, datapath.ErrAbsent) || err == nil && s.ID != id {
		return nil, nil
	}
	return s, err
}

// mark returns the alias of devices that we create.
func mark(cfg datapath.Config) string {
	if cfg.Instance == "" {
		return "loxilight"
	}
	return "loxilight " + cfg.Instance
}

// isOurs reports whether we created a device: it has our mark, or, if we were killed before setting
// the mark, our MAC address.
func isOurs(cfg datapath.Config, link netlink.Link) bool {
	a := link.Attrs()
	return a.Alias == mark(cfg) || bytes.Equal(a.HardwareAddr, macOf(cfg, a.Name))
}

// macOf returns the MAC address for a device that we create: the same each time the device is
// created, and different from those of all other devices on this and other machines.
func macOf(cfg datapath.Config, device string) net.HardwareAddr {
	machine, err := os.ReadFile("/etc/machine-id")
	if err != nil || len(machine) == 0 {
		name, _ := os.Hostname() // an empty name will do
		machine = []byte(name)
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{string(machine), cfg.Instance, cfg.SwitchNamespace, cfg.StateDir, device}, "\x00")))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^0x01 | 0x02 // unicast, locally administered
	return mac
}

// absent returns the error for something that does not exist yet.
func absent(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), datapath.ErrAbsent)
}

// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// askPause is the minimum time between two requests to create the namespace.
const askPause = 3 * time.Second

// ensureSwitch returns the current handle of the switch. If another program deleted the namespace,
// the old handle is released, and a new namespace is created if make allows it. n.mu is held.
func (n *Network) ensureSwitch(make bool) (*namespace.Handle, error) {
	name := n.cfg.SwitchNamespace
	id, there := namespace.Find(name)
	if n.sw != nil && there && id == n.sw.ID {
		return n.sw, nil
	}
	if n.sw != nil {
		n.log.Warn("another program deleted the network namespace of the switch", slog.String("namespace", name))
		n.sw.Drop() // or it would continue to exist without a name
		n.sw = nil
	}
	if !there {
		if !make {
			return nil, absent("network namespace %q (switch.namespace)", name)
		}
		if err := n.makeSwitch(); err != nil {
			return nil, err
		}
		n.log.Info("network namespace of the switch created", slog.String("namespace", name))
	}
	s, err := namespace.Open(name)
	if err != nil {
		return nil, err
	}
	if err := n.watch(s); err != nil {
		s.Drop()
		return nil, err
	}
	n.sw = s
	return s, nil
}

// makeSwitch creates the namespace, or requests it from a process that has the privileges.
func (n *Network) makeSwitch() error {
	err := MakeSwitch(n.cfg)
	if err == nil || n.cfg.MakeSwitch == nil || !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
		return err
	}
	// In the sandbox of the systemd unit, mounts are not visible to other processes.
	if time.Since(n.asked) > askPause {
		n.asked = time.Now()
		if err := n.cfg.MakeSwitch(); err != nil {
			return fmt.Errorf("network namespace %q: %w", n.cfg.SwitchNamespace, err)
		}
	}
	if _, there := namespace.Find(n.cfg.SwitchNamespace); !there {
		return absent("network namespace %q (switch.namespace) is being created", n.cfg.SwitchNamespace)
	}
	return nil
}

// MakeSwitch creates the network namespace of the switch under the name that ip netns uses. If the
// namespace exists and is ours, MakeSwitch restores its sysctls; any other namespace stays
// unchanged.
func MakeSwitch(cfg datapath.Config) error {
	if isHost(cfg) {
		return nil
	}
	if _, there := namespace.Find(cfg.SwitchNamespace); there {
		return restoreSysctls(cfg)
	}
	if err := namespace.Create(cfg.SwitchNamespace, func() error { return furnish(cfg) }); err != nil {
		return fmt.Errorf("create network namespace %q (switch.namespace): %w", cfg.SwitchNamespace, err)
	}
	return nil
}

// switchSysctls configure forwarding in the namespace. A new namespace inherits some of the host's
// settings. The reverse-path filter is off because replies may take a different path through
// bridges and tunnels.
var switchSysctls = map[string]string{
	"net/ipv4/ip_forward":                  "1",
	"net/ipv4/conf/all/rp_filter":          "0",
	"net/ipv4/conf/default/rp_filter":      "0",
	"net/ipv4/conf/all/send_redirects":     "0",
	"net/ipv4/conf/default/send_redirects": "0",
	"net/ipv6/conf/all/forwarding":         "1",
	"net/ipv6/conf/default/forwarding":     "1",
	"net/ipv6/conf/all/accept_ra":          "0",
	"net/ipv6/conf/default/accept_ra":      "0",
	// A bridge solicits pods with its link-local address, which must be usable at once, not a
	// second or two after the bridge gets its first port.
	"net/ipv6/conf/all/accept_dad":     "0",
	"net/ipv6/conf/default/accept_dad": "0",
}

// furnish turns the thread's namespace into the switch.
func furnish(cfg datapath.Config) error {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer nl.Close()
	lo, err := nl.LinkByName("lo")
	if err != nil {
		return err
	}
	// The mark permits us to remove the namespace.
	if err := errors.Join(nl.LinkSetAlias(lo, mark(cfg)), nl.LinkSetUp(lo)); err != nil {
		return err
	}
	return setSysctls()
}

// madeByUs reports whether this instance created the namespace.
func madeByUs(cfg datapath.Config, s *namespace.Handle) (bool, error) {
	lo, err := s.Link("lo")
	if err != nil || lo == nil {
		return false, err
	}
	return lo.Attrs().Alias == mark(cfg), nil
}

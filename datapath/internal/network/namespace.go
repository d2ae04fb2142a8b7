// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

const (
	// netnsDir is where ip netns keeps the names of namespaces.
	netnsDir = "/run/netns"
	// nsfs is the file system type of namespaces.
	nsfs = 0x6e736673
	// askPause is the minimum time between two requests to create the namespace.
	askPause = 3 * time.Second
)

// ensureSwitch returns the current space of the switch. If another program deleted the namespace,
// the old space is released, and a new namespace is created if make allows it. n.mu is held.
func (n *Network) ensureSwitch(make bool) (*space, error) {
	name := n.cfg.SwitchNamespace
	id, there := namedID(name)
	if n.sw != nil && there && id == n.sw.id {
		return n.sw, nil
	}
	if n.sw != nil {
		n.log.Warn("another program deleted the network namespace of the switch", slog.String("namespace", name))
		n.sw.drop() // or it would continue to exist without a name
		n.sw = nil
	}
	if !there {
		if !make {
			return nil, absent("network namespace %q (switch.namespace)", name)
		}
		if err := n.makeSwitch(); err != nil {
			return nil, err
		}
		n.log.Info("network namespace of the switch made", slog.String("namespace", name))
	}
	s, err := openSpace(name)
	if err != nil {
		return nil, err
	}
	if err := n.watch(s); err != nil {
		s.drop()
		return nil, err
	}
	n.sw = s
	return s, nil
}

// namedID returns the ID of the namespace called name; false if none exists.
func namedID(name string) (spaceID, bool) {
	path := filepath.Join(netnsDir, name)
	var st unix.Stat_t
	var at unix.Statfs_t
	if unix.Statfs(path, &at) != nil || at.Type != nsfs || unix.Stat(path, &st) != nil {
		return spaceID{}, false
	}
	return spaceID{Dev: st.Dev, Ino: st.Ino}, true
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
	if _, there := namedID(n.cfg.SwitchNamespace); !there {
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
	if _, there := namedID(cfg.SwitchNamespace); there {
		return restoreSysctls(cfg)
	}
	path := filepath.Join(netnsDir, cfg.SwitchNamespace)
	err := prepareNetnsDir()
	if err == nil {
		err = touch(path)
	}
	if err == nil {
		err = onNewNamespace(func() error {
			if err := furnish(cfg); err != nil {
				return err
			}
			// Last, so that the namespace is complete when its name appears.
			return unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, "")
		})
	}
	if err != nil {
		return fmt.Errorf("create network namespace %q (switch.namespace): %w", cfg.SwitchNamespace, err)
	}
	return nil
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o444)
	if err != nil {
		return err
	}
	return f.Close()
}

// prepareNetnsDir creates the directory as ip netns does: mounts in it propagate to other mount
// namespaces, and so do unmounts.
func prepareNetnsDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(netnsDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil { // as ip netns does: mount once
		return fmt.Errorf("lock %s: %w", netnsDir, err)
	}
	err = unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Mount(netnsDir, netnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
}

// onNewNamespace runs f on a thread in a network namespace of its own, which vanishes when f
// returns unless f keeps a reference to it.
func onNewNamespace(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
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
func madeByUs(cfg datapath.Config, s *space) (bool, error) {
	lo, err := s.link("lo")
	if err != nil || lo == nil {
		return false, err
	}
	return lo.Attrs().Alias == mark(cfg), nil
}

// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/sysctl"
)

// The ids of the namespaces, as config_netns in the programs.
const (
	Host   = 0 // the daemon's own
	Switch = 1 // the switch's, if it has one of its own
)

// labels are the names of the namespaces in the API and in messages.
var labels = [2]string{Host: "host", Switch: "switch"}

// Netns is a network namespace in which the programs run. Each connection, device and next hop
// belongs to one namespace. Load, LoadShadow and Close must not run at the same time as any other
// method.
type Netns struct {
	ID      uint8  // [Host] or [Switch]
	Name    string // empty: the namespace of the daemon itself
	Handle  netns.NsHandle
	Netlink *netlink.Handle // of NETLINK_ROUTE
	Pair                    // set by Load
	shadow  Pair            // loaded while this run's programs replace an earlier run's
	maps    map[string]*ebpf.Map
	own     *sysctl.Files // ownSettings; nil: not open
}

// OpenNetns opens the namespace with this name, or the daemon's own if name is empty. It loads no
// programs. The error wraps [datapath.ErrAbsent] if the namespace does not exist.
func OpenNetns(id uint8, name string) (_ *Netns, err error) {
	z := &Netns{ID: id, Name: name, Handle: -1}
	if name == "" {
		z.Handle, err = netns.Get()
	} else {
		z.Handle, err = netns.GetFromName(name)
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("network namespace %q (switch.namespace): %w", name, datapath.ErrAbsent)
		}
	}
	if err != nil {
		return nil, err
	}
	if z.Netlink, err = netlink.NewHandleAt(z.Handle, unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(fmt.Errorf("netlink: %w", err), z.Handle.Close())
	}
	return z, nil
}

// Current reports whether the name still refers to this namespace, which may have been deleted and
// created again.
func (z *Netns) Current() bool {
	if z.Name == "" {
		return true
	}
	named, err := netns.GetFromName(z.Name)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EINVAL)
	}
	defer named.Close()
	return named.Equal(z.Handle)
}

// Close closes the handles of the namespace and of its programs; attached programs stay attached.
func (z *Netns) Close() error {
	err := errors.Join(z.Pair.Close(), z.shadow.Close())
	z.own.Close()
	z.Netlink.Close()
	return errors.Join(err, z.Handle.Close())
}

// Label returns the name of the namespace in the API: "host" or "switch".
func (z *Netns) Label() string { return labels[z.ID] }

// Do calls f on a thread that is in the namespace, and returns its error.
func (z *Netns) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread is in the wrong namespace, so it must end with the goroutine.
		runtime.LockOSThread()
		if err := unix.Setns(int(z.Handle), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

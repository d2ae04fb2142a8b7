// SPDX-License-Identifier: Apache-2.0

// Package namespace opens network namespaces and changes them through netlink: devices, addresses
// with their connected routes, FDB entries of bridges. It makes single changes, and holds no
// desired state except the addresses of which [Handle.NoteConnected] was informed.
package namespace

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
)

// Protocol marks routes (RTPROT) and addresses (IFA_PROTO) as ours: the L of loxilight, which no
// other program uses.
const Protocol = 0x4c

// ID identifies a network namespace. A name does not identify it, because another program may have
// replaced the namespace with a new one of the same name.
type ID struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// Handle is an open network namespace, with netlink sockets in it. It is safe for concurrent use,
// except for Acquire, Release, Drop and Close, for which the caller holds a lock.
type Handle struct {
	Host    bool   // the daemon's own
	Name    string // empty: the daemon's own, or not known
	ID      ID
	NS      netns.NsHandle // open for reading only
	Netlink *netlink.Handle
	Strict  *netlink.Handle // the kernel filters its dumps; not for devices
	raw     *nl.SocketHandle
	done    chan struct{} // closed when the namespace is no longer watched

	connected sync.Map // destinations of the connected routes of our addresses

	users   int  // current users
	dropped bool // closed when the last user releases it
}

func idOf(fd int) (ID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return ID{}, err
	}
	return ID{Dev: st.Dev, Ino: st.Ino}, nil
}

// Open opens the namespace called name, or the daemon's own if name is empty. The error wraps
// [datapath.ErrAbsent] if the namespace does not exist.
func Open(name string) (_ *Handle, err error) {
	var ns netns.NsHandle
	if name == "" {
		ns, err = netns.Get()
	} else {
		ns, err = netns.GetFromName(name)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("network namespace %q (switch.namespace): %w", name, datapath.ErrAbsent)
	}
	if err != nil {
		return nil, err
	}
	h, err := handleOf(int(ns), name == "")
	if err != nil {
		return nil, fmt.Errorf("network namespace %q: %w", name, err)
	}
	h.Name = name
	return h, nil
}

// Duplicate opens the same namespace again, without its name.
func (h *Handle) Duplicate() (*Handle, error) {
	fd, err := unix.FcntlInt(uintptr(h.NS), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return handleOf(fd, h.Host)
}

// handleOf opens the descriptor of a namespace, which the result owns.
func handleOf(fd int, host bool) (_ *Handle, err error) {
	h := &Handle{Host: host, NS: netns.NsHandle(fd), done: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.NS.Close())
		}
	}()
	if h.ID, err = idOf(fd); err != nil {
		return nil, err
	}
	if h.Netlink, err = netlink.NewHandleAt(h.NS, unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	if h.Strict, err = netlink.NewHandleAt(h.NS, unix.NETLINK_ROUTE); err != nil {
		h.Netlink.Close()
		return nil, err
	}
	socket, err := nl.GetNetlinkSocketAt(h.NS, netns.None(), unix.NETLINK_ROUTE)
	if err == nil {
		h.raw = &nl.SocketHandle{Socket: socket}
		err = errors.Join(h.Strict.SetStrictCheck(true),
			unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1))
	}
	if err != nil {
		h.Netlink.Close()
		h.Strict.Close()
		return nil, err
	}
	return h, nil
}

// Acquire adds a user, which calls Release.
func (h *Handle) Acquire() { h.users++ }

// Release removes a user.
func (h *Handle) Release() {
	if h.users--; h.dropped && h.users == 0 {
		h.Close()
	}
}

// Drop releases the namespace as soon as it has no users: a request with a closed handle would act
// on the namespace of the daemon.
func (h *Handle) Drop() {
	close(h.done)
	if h.dropped = true; h.users == 0 {
		h.Close()
	}
}

// Dropped returns a channel that is closed when the namespace is dropped.
func (h *Handle) Dropped() <-chan struct{} { return h.done }

// Close closes all handles. If the namespace has no name, the kernel then deletes it.
func (h *Handle) Close() {
	h.Netlink.Close()
	h.Strict.Close()
	h.raw.Close()
	_ = h.NS.Close() // it was open for reading only
}

// Enter calls f on a thread that is in the namespace.
func (h *Handle) Enter(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(h.NS), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Execute executes a request for which the library has no call.
func (h *Handle) Execute(r *nl.NetlinkRequest, answers uint16) ([][]byte, error) {
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: h.raw}
	return r.Execute(unix.NETLINK_ROUTE, answers)
}

// Link returns the device called name; nil if it does not exist.
func (h *Handle) Link(name string) (netlink.Link, error) {
	l, err := h.Netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", name, err)
	}
	return l, nil
}

// Links returns all devices.
func (h *Handle) Links() ([]netlink.Link, error) {
	l, err := dump.Retry(h.Netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	return l, nil
}

// Where names the namespace for messages.
func (h *Handle) Where() string {
	if h.Host {
		return "host"
	}
	return "switch"
}

// IsAbsent reports whether err means that the item to be removed does not exist.
func IsAbsent(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
)

// spaceID identifies a network namespace. A name does not identify it, because another program may
// have replaced the namespace with a new one of the same name.
type spaceID struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// space is a network namespace, with netlink handles for it.
type space struct {
	host   bool
	name   string // empty: the daemon's own, or not known
	id     spaceID
	ns     netns.NsHandle
	nl     *netlink.Handle
	strict *netlink.Handle // the kernel filters its dumps; not for devices
	raw    *nl.SocketHandle
	done   chan struct{} // closed when the space is no longer watched

	connected sync.Map // destinations of the connected routes of our addresses

	users   int  // current users; guarded by Network.mu, like dropped
	dropped bool // closed when the last user releases it
}

func idOf(fd int) (spaceID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return spaceID{}, err
	}
	return spaceID{Dev: st.Dev, Ino: st.Ino}, nil
}

// openSpace opens the namespace called name, or the daemon's own if name is empty. The error wraps
// [datapath.ErrAbsent] if the namespace does not exist.
func openSpace(name string) (_ *space, err error) {
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
	s, err := spaceOf(int(ns), name == "")
	if err != nil {
		return nil, fmt.Errorf("network namespace %q: %w", name, err)
	}
	s.name = name
	return s, nil
}

// spaceOf opens the descriptor of a namespace, which the result owns.
func spaceOf(fd int, host bool) (_ *space, err error) {
	s := &space{host: host, ns: netns.NsHandle(fd), done: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.ns.Close())
		}
	}()
	if s.id, err = idOf(fd); err != nil {
		return nil, err
	}
	if s.nl, err = netlink.NewHandleAt(s.ns, unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	if s.strict, err = netlink.NewHandleAt(s.ns, unix.NETLINK_ROUTE); err != nil {
		s.nl.Close()
		return nil, err
	}
	socket, err := nl.GetNetlinkSocketAt(s.ns, netns.None(), unix.NETLINK_ROUTE)
	if err == nil {
		s.raw = &nl.SocketHandle{Socket: socket}
		err = errors.Join(s.strict.SetStrictCheck(true),
			unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1))
	}
	if err != nil {
		s.nl.Close()
		s.strict.Close()
		return nil, err
	}
	return s, nil
}

// drop releases the namespace as soon as it has no users: a request with a closed handle would act
// on the namespace of the daemon. Network.mu is held.
func (s *space) drop() {
	close(s.done)
	if s.dropped = true; s.users == 0 {
		s.close()
	}
}

// close closes all handles. If the namespace has no name, the kernel then deletes it.
func (s *space) close() {
	s.nl.Close()
	s.strict.Close()
	s.raw.Close()
	_ = s.ns.Close() // it was open for reading only
}

// execute executes a request for which the library has no call.
func (s *space) execute(r *nl.NetlinkRequest, answers uint16) ([][]byte, error) {
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: s.raw}
	return r.Execute(unix.NETLINK_ROUTE, answers)
}

// link returns the device called name; nil if it does not exist.
func (s *space) link(name string) (netlink.Link, error) {
	l, err := s.nl.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", name, err)
	}
	return l, nil
}

func (s *space) links() ([]netlink.Link, error) {
	l, err := dump.Retry(s.nl.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	return l, nil
}

// where names the namespace for messages.
func (s *space) where() string {
	if s.host {
		return "host"
	}
	return "switch"
}

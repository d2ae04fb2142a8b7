// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
	"github.com/loxilight/loxilight/internal/tick"
)

// signalPause is the minimum time between two signals: devices may be added and removed all the
// time.
const signalPause = 100 * time.Millisecond

// signals signals changes: the first at once, further ones at a limited rate.
type signals struct {
	out   chan struct{}
	count atomic.Uint64 // of signals

	mu     sync.Mutex
	last   time.Time
	later  *time.Timer
	closed bool
}

func newSignals() *signals { return &signals{out: make(chan struct{}, 1)} }

func (s *signals) raise() {
	s.count.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := signalPause - time.Since(s.last)
	switch {
	case s.closed || s.later != nil:
	case rest <= 0:
		s.send()
	default:
		s.later = time.AfterFunc(rest, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.later = nil
			s.send()
		})
	}
}

// send sends a signal. s.mu is held.
func (s *signals) send() {
	s.last = time.Now()
	select {
	case s.out <- struct{}{}:
	default: // the pending signal covers this change
	}
}

func (s *signals) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.later != nil {
		s.later.Stop()
	}
}

// watchBuffer is large enough for bursts of device changes; after an overflow everything is
// checked.
const watchBuffer = 1 << 20

// watch signals changes in a namespace until it is closed.
func (n *Network) watch(s *namespace.Handle) error {
	socket, err := nl.SubscribeAt(s.NS, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return fmt.Errorf("watch devices: %w", err)
	}
	// Exceeds the system-wide limit if permitted; the kernel's default size is sufficient, too.
	_ = socket.SetReceiveBufferSize(watchBuffer, true)
	go func() {
		<-s.Dropped()
		socket.Close()
	}()
	go func() {
		names := map[int32]string{}
		for {
			messages, from, err := socket.Receive()
			switch {
			case err == nil && from.Pid == nl.PidKernel:
				n.look(s, names, messages)
			case err == nil: // not from the kernel
			case errors.Is(err, unix.ENOBUFS):
				// Messages were lost; the socket can still be read.
				n.routes.stale()
				n.signals.raise()
			case errors.Is(err, os.ErrClosed) || isClosed(s):
				return
			default:
				n.log.Warn("cannot watch the devices of the node; retrying", slog.Any("error", err))
				time.Sleep(time.Second) // the error may persist
			}
		}
	}()
	return nil
}

// The name of the switch's namespace is checked after each change to the mounts of the process, since
// such a name is a mount, and every nameInterval. If the kernel does not report these changes, it is
// checked every namePause.
const (
	nameInterval = 5 * time.Second
	namePause    = 100 * time.Millisecond
	mountPause   = 100 * time.Millisecond // after a change to the mounts
)

// watchName signals when the switch's name starts to refer to a different namespace, or to none,
// until host is closed.
func (n *Network) watchName(host *namespace.Handle) {
	interval := nameInterval
	mounts, err := namespace.WatchMounts(host.Dropped())
	if err != nil {
		n.log.Warn("cannot watch the mounts of the node; checking the name of the switch's namespace often", slog.Any("error", err))
		interval = namePause
	}
	before, existed := namespace.Find(n.cfg.SwitchNamespace)
	for {
		select {
		case <-mounts:
			// "ip netns del" deletes the file after it has removed the mount. It would fail if the
			// namespace were created again in between.
			time.Sleep(mountPause)
		case <-tick.After(interval):
		case <-host.Dropped():
			return
		}
		id, exists := namespace.Find(n.cfg.SwitchNamespace)
		if id != before || exists != existed {
			n.signals.raise()
		}
		before, existed = id, exists
	}
}

// isForeign reports whether a message is about a route of the main table that is not ours: it may
// belong to the underlay.
func isForeign(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofRtMsg {
		return false
	}
	x := nl.DeserializeRtMsg(m.Data)
	return x.Table == unix.RT_TABLE_MAIN && x.Protocol != namespace.Protocol && x.Flags&unix.RTM_F_CLONED == 0
}

func isClosed(s *namespace.Handle) bool {
	select {
	case <-s.Dropped():
		return true
	default:
		return false
	}
}

// look raises a signal for messages that may concern us. names holds the names of the devices seen.
// When a device goes down, or loses its last address, the kernel removes IPv4 routes without a
// message.
func (n *Network) look(s *namespace.Handle, names map[int32]string, messages []syscall.NetlinkMessage) {
	for _, m := range messages {
		switch m.Header.Type {
		case unix.RTM_DELADDR, unix.RTM_NEWADDR:
			if len(m.Data) < unix.SizeofIfAddrmsg {
				continue
			}
			if name, known := names[int32(nl.DeserializeIfAddrmsg(m.Data).Index)]; !known || n.names(name) {
				n.routes.stale()
				n.signals.raise()
			}
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			if n.concerns(names, m) {
				n.routes.stale()
				n.signals.raise()
			}
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			if n.routes.concerns(s, m) || s.ConcernsConnected(m) || s.Host && n.tunnels.count() > 0 && isForeign(m) {
				n.signals.raise()
			}
		}
	}
}

// concerns reports whether a message is about a device that an object names, by its current or its
// previous name.
func (n *Network) concerns(names map[int32]string, m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	x := nl.DeserializeIfInfomsg(m.Data)
	attrs, err := nl.ParseRouteAttr(m.Data[x.Len():])
	if err != nil {
		return true // unknown
	}
	before, now := names[x.Index], ""
	for _, a := range attrs {
		if a.Attr.Type == unix.IFLA_IFNAME {
			now = unix.ByteSliceToString(a.Value)
		}
	}
	if m.Header.Type == unix.RTM_DELLINK && x.Family == unix.AF_UNSPEC {
		delete(names, x.Index)
	} else {
		names[x.Index] = now
	}
	return n.names(now) || before != now && n.names(before)
}

// names reports whether an object, or the configuration, names the device.
func (n *Network) names(device string) bool {
	return device == n.cfg.HostDevice || device == n.cfg.SwitchDevice || n.bridges.names(device) || n.routes.names(device) || n.links.names(device) ||
		n.tunnels.names(device)
}

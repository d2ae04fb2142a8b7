// SPDX-License-Identifier: Apache-2.0

// Package netfilter reports whether packets that are forwarded in a network namespace pass through
// rules: nftables, iptables, ebtables, and IPsec policies. Bypassing these rules would make them
// ineffective. The package only reads; it ignores the meaning of rules, except for chain policies
// that drop.
package netfilter

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/tick"
)

// State is the state of a namespace's rules.
type State struct {
	Routed  bool   // rules, or policies, that routed packets pass through
	Bridged bool   // rules that bridged frames pass through
	Why     string // such as "nftables: chain inet filter forward has 3 rules"; empty: no rules
}

// finding is one set of rules or policies that packets pass through.
type finding struct {
	routed, bridged bool
	ip              bool // bridged frames pass through it as well if br_netfilter is enabled
	why             string
	drops           string // the chain, if its policy drops routed packets
}

// stateOf summarizes findings.
func stateOf(found []finding, bridgesCall bool) (s State) {
	var whys []string
	for _, f := range found {
		s.Routed = s.Routed || f.routed
		s.Bridged = s.Bridged || f.bridged || f.ip && bridgesCall
		whys = append(whys, f.why)
	}
	const most = 3 // findings named
	if more := len(whys) - most; more > 0 {
		whys = append(whys[:most], fmt.Sprintf("and %d more", more))
	}
	s.Why = strings.Join(whys, "; ")
	return s
}

// Drops returns the chains whose policy drops packets that are routed through the namespace of the
// calling thread, such as "nftables chain ip filter FORWARD". Docker and host firewalls create
// such chains.
func Drops() (chains []string, err error) {
	found, err := nftables()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	legacy, err := legacyTables(os.ReadFile)
	if err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	for _, f := range append(found, legacy...) {
		if f.drops != "" {
			chains = append(chains, f.drops)
		}
	}
	return chains, nil
}

// Changes without a notification are polled every second, or every five seconds while no programs are
// attached. A notification is followed by a pause, which is longer if reading takes long, so that a
// stream of changes does not keep the CPU busy. Messages can be lost, so everything is reread
// periodically.
const (
	pollInterval  = time.Second
	idleInterval  = 5 * time.Second
	pauseMin      = 50 * time.Millisecond
	pauseMax      = 900 * time.Millisecond
	pauseTimes    = 9 // the pause is this many times as long as reading took
	rereadEvery   = 30
	messageGroups = 2
)

// Options are what a [Watcher] uses. All calls come from one goroutine.
type Options struct {
	// Changed is called with the state at first, and then within a second or two after each change;
	// within six seconds while IsIdle returns true.
	Changed func(State)
	// Failed is called with the reason, once, if the rules cannot be read. The namespace is then treated
	// as having rules.
	Failed func(error)
	IsIdle func() bool
}

// Watch watches the namespace ns, a file descriptor that must stay open. It returns when the first
// call of Changed has returned.
func Watch(ns int, o Options) (_ *Watcher, err error) {
	w := &Watcher{options: o, stale: true, done: make(chan struct{}), files: files{}}
	if w.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	go func() {
		defer close(w.done)
		// Never unlocked: the thread ends with the goroutine, so that no other goroutine runs in
		// the wrong namespace.
		runtime.LockOSThread()
		defer w.close() // errors are harmless: the sockets only receive
		err := w.open(ns)
		if err == nil {
			w.look()
		}
		ready <- err
		if err == nil {
			w.run()
		}
	}()
	if err := <-ready; err != nil {
		w.Stop()
		return nil, fmt.Errorf("watch netfilter: %w", err)
	}
	return w, nil
}

// Watcher watches the rules of a namespace, on a thread in the namespace. Its methods are safe for
// concurrent use.
type Watcher struct {
	options Options
	done    chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex // guards the following
	stopped bool
	event   int // an eventfd that becomes readable when ended or asked is set

	ended, asked atomic.Bool

	// Used by the goroutine only.
	sockets []int // that receive notifications of changes
	files   files
	found   []finding
	stale   bool // found is out of date
	known   bool // changed was called with state
	failing bool
	state   State
}

// Look makes the watcher read the state soon.
func (w *Watcher) Look() {
	w.asked.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.signal()
}

// Stop ends the watch.
func (w *Watcher) Stop() {
	w.ended.Store(true)
	w.mu.Lock()
	w.signal()
	w.mu.Unlock()
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.stopped = true
		unix.Close(w.event) // errors are harmless
	}
}

// signal makes event readable. w.mu is held.
func (w *Watcher) signal() {
	if !w.stopped {
		_, _ = unix.Write(w.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // never blocks
	}
}

func (w *Watcher) open(ns int) error {
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace: %w", err)
	}
	for _, group := range [messageGroups]struct{ protocol, group int }{
		{unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES}, {unix.NETLINK_XFRM, xfrmGroupPolicy},
	} {
		fd, err := subscribe(group.protocol, group.group)
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			continue // a kernel without this protocol
		}
		if err != nil {
			return err
		}
		w.sockets = append(w.sockets, fd)
	}
	return nil
}

func subscribe(protocol, group int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return -1, err
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("netlink protocol %d, group %d: %w", protocol, group, err), unix.Close(fd))
	}
	return fd, nil
}

func (w *Watcher) close() {
	w.files.close()
	for _, fd := range w.sockets {
		unix.Close(fd)
	}
}

// run calls look periodically, and after each notification.
func (w *Watcher) run() {
	for round := 1; !w.ended.Load(); round++ {
		interval := pollInterval
		if w.options.IsIdle() {
			interval = idleInterval
		}
		received := w.await(tick.Until(interval))
		w.stale = w.stale || received || round%rereadEvery == 0
		if w.ended.Load() {
			return
		}
		begin := time.Now()
		w.look()
		if received {
			w.pause(min(max(pauseMin, pauseTimes*time.Since(begin)), pauseMax))
		}
	}
}

// pause waits, even if a notification arrives in the meantime.
func (w *Watcher) pause(limit time.Duration) {
	event := []unix.PollFd{{Fd: int32(w.event), Events: unix.POLLIN}}
	for deadline := time.Now().Add(limit); !w.ended.Load() && time.Now().Before(deadline); {
		_, _ = unix.Poll(event, int(time.Until(deadline).Milliseconds())+1) // interrupted: again
		w.readEvent()
	}
}

// readEvent makes event unreadable until the next signal.
func (w *Watcher) readEvent() {
	var b [8]byte
	_, _ = unix.Read(w.event, b[:]) // never blocks
}

// await waits for a message or a call of Look, and reads all pending messages. It returns false if
// nothing arrived in time.
func (w *Watcher) await(limit time.Duration) (received bool) {
	fds := []unix.PollFd{{Fd: int32(w.event), Events: unix.POLLIN}}
	for _, fd := range w.sockets {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	for deadline := time.Now().Add(limit); !w.ended.Load(); {
		if w.asked.Swap(false) {
			return true
		}
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		if err != nil || n == 0 {
			continue // interrupted or timed out
		}
		w.readEvent()
		for _, fd := range w.sockets {
			received = drain(fd) || received
		}
		if received {
			return true
		}
	}
	return false
}

// drain reads and discards all messages from a socket. An error that reports lost messages counts
// as a message.
func drain(fd int) (any bool) {
	var b [1 << 14]byte
	for {
		_, _, err := unix.Recvfrom(fd, b[:], 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return any
		case err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR):
			return any
		}
		any = true
	}
}

// look reads the current state, and reports it if it has changed.
func (w *Watcher) look() {
	s, err := w.find()
	if err != nil {
		s = State{Routed: true, Bridged: true, Why: err.Error()}
		if !w.failing {
			w.options.Failed(err)
		}
	}
	w.failing = err != nil
	if w.known && s == w.state {
		return
	}
	w.known, w.state = true, s
	w.options.Changed(s)
}

func (w *Watcher) find() (State, error) {
	if w.stale {
		chains, err := nftables()
		if err != nil {
			return State{}, fmt.Errorf("nftables: %w", err)
		}
		policies, err := xfrmPolicies()
		if err != nil {
			return State{}, fmt.Errorf("IPsec policies: %w", err)
		}
		w.found, w.stale = append(chains, policies...), false
	}
	tables, err := legacyTables(w.files.read)
	if err != nil {
		return State{}, fmt.Errorf("iptables: %w", err)
	}
	frames, err := ebtables(w.files.read)
	if err != nil {
		return State{}, fmt.Errorf("ebtables: %w", err)
	}
	call, err := bridgesCallIP(w.files.read)
	if err != nil {
		return State{}, fmt.Errorf("br_netfilter: %w", err)
	}
	all := append(append(append([]finding(nil), w.found...), tables...), frames...)
	return stateOf(all, call), nil
}

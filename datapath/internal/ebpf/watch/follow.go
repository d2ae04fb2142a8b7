// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// receive receives messages from a socket; tests replace it.
var receive = func(s *nl.NetlinkSocket) ([]syscall.NetlinkMessage, error) {
	messages, _, err := s.Receive()
	return messages, err
}

// listen calls handle with the messages that a socket receives, until v.done, and then closes the
// socket. lost is called if messages were lost. On any other error the subscription ends, and
// Maintain opens all subscriptions again. about names the subject in errors.
func (v *Devices) listen(s *nl.NetlinkSocket, about string, lost func(), handle func([]syscall.NetlinkMessage)) {
	listening := v.whileSubscribed(func(done <-chan struct{}) {
		<-done
		s.Close()
	}, func(done <-chan struct{}) {
		for {
			messages, err := receive(s)
			select {
			case <-done:
				return
			default:
			}
			switch {
			case errors.Is(err, unix.ENOBUFS):
				lost()
			case err != nil:
				v.report(fmt.Errorf("%s: %w", about, err))
				v.unheard()
				return
			default:
				handle(messages)
			}
		}
	})
	if !listening {
		s.Close()
	}
}

// followPolicy takes all next hops off connections if routing rules (ip rule) change, or if forwarding is
// enabled or disabled on any device. No table here depends on these settings.
func (v *Devices) followPolicy() error {
	s, err := nl.SubscribeAt(v.namespace.Handle, netns.None(), unix.NETLINK_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return fmt.Errorf("watch routing rules: %w", err)
	}
	v.listen(s, "routing rules", v.Lost, func(messages []syscall.NetlinkMessage) {
		v.settings.version.Add(1)
		for i := range messages {
			if v.forwardingOf(&messages[i]) {
				v.reroute(netip.Prefix{})
			}
		}
	})
	return nil
}

// whileSubscribed starts functions that return when their argument is closed. It starts none and
// returns false if the subscriptions are being ended.
func (v *Devices) whileSubscribed(run ...func(done <-chan struct{})) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	done := v.done
	select {
	case <-done:
		return false
	default:
	}
	for _, f := range run {
		v.wg.Go(func() { f(done) })
	}
	return true
}

// follow handles updates until the channel is closed.
func follow[T any](v *Devices, updates <-chan T, handle func(T)) {
	defer v.wg.Done()
	for u := range updates {
		handle(u)
	}
	v.unheard()
}

// followRest limits rescans: the pause after each is this many times as long as the rescan took.
// Otherwise a node with hundreds of devices, to which new ones are constantly added, would do
// nothing else. A rescan may also take long because it waits, as for programs that are loaded, so the
// pause is at most followRestMax.
const (
	followRest    = 3
	followRestMax = 500 * time.Millisecond
)

// followAll calls each with every update, and handle after updates, until the channel is closed. Updates that arrive while
// handle runs, or during the pause after it, are handled together: a new device causes half a
// dozen.
func followAll[T any](v *Devices, updates <-chan T, each func(T), handle func()) {
	defer v.wg.Done()
	rest := time.NewTimer(0)
	defer rest.Stop()
	rested, pending := false, false
	for {
		select {
		case u, more := <-updates:
			if !more {
				v.unheard()
				return
			}
			each(u)
			pending = true
		case <-rest.C:
			rested = true
		}
		if !pending || !rested || len(updates) > 0 {
			continue
		}
		begin := time.Now()
		handle()
		rested, pending = false, false
		rest.Reset(min(followRest*time.Since(begin), followRestMax))
	}
}

// unheard records that a subscription has ended.
func (v *Devices) unheard() {
	select {
	case <-v.done:
	default:
		// The library ends a subscription at the first receive buffer overflow.
		v.mu.Lock()
		defer v.mu.Unlock()
		v.stale, v.deaf = true, true
	}
}

// Lost records that messages were lost; Maintain then reads the current state.
func (v *Devices) Lost() {
	v.settings.version.Add(1)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stale = true
}

// Maintain subscribes and scans again if messages were lost, and scans periodically.
func (v *Devices) Maintain() error {
	v.mu.Lock()
	stale, deaf, due := v.stale, v.deaf, time.Since(v.scanned) > rescanInterval
	v.stale = false
	v.mu.Unlock()
	if deaf {
		if err := v.listenAgain(); err != nil {
			v.Lost()
			return err
		}
	}
	if !stale && !due {
		return nil
	}
	err := v.Scan()
	if stale {
		v.reroute(netip.Prefix{})
		v.options.Signal() // after the scan: others read its result
	}
	return err
}

// listenAgain ends the remaining subscriptions and subscribes again.
func (v *Devices) listenAgain() error {
	v.endSubscriptions()
	err := v.subscribe()
	if err != nil {
		v.endSubscriptions() // subscribe has closed v.done
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.deaf = false
	return nil
}

// endSubscriptions ends the subscriptions, so that others can begin.
func (v *Devices) endSubscriptions() {
	v.mu.Lock()
	select {
	case <-v.done:
	default:
		close(v.done)
	}
	v.mu.Unlock()
	v.wg.Wait()
	v.mu.Lock()
	v.done = make(chan struct{})
	v.mu.Unlock()
}

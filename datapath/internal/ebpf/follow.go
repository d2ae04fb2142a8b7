// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// listen calls handle with the messages that a socket receives, until v.done, and then closes the
// socket. lost is called if messages were lost. about names the subject in errors.
func (v *devices) listen(s *nl.NetlinkSocket, about string, lost func(), handle func([]syscall.NetlinkMessage)) {
	v.wg.Go(func() {
		<-v.done
		s.Close()
	})
	v.wg.Go(func() {
		for {
			messages, _, err := s.Receive()
			select {
			case <-v.done:
				return
			default:
			}
			switch {
			case errors.Is(err, unix.ENOBUFS):
				lost()
			case err != nil:
				v.report(fmt.Errorf("%s: %w", about, err))
				return
			default:
				handle(messages)
			}
		}
	})
}

// follow handles updates until they end.
func follow[T any](v *devices, updates <-chan T, handle func(T)) {
	defer v.wg.Done()
	for u := range updates {
		handle(u)
	}
	v.unheard()
}

// followRest limits rescans: after each the pause is this many times as long as the rescan took.
// Otherwise a node with hundreds of devices, and new ones all the time, would do nothing else.
const followRest = 3

// followAll calls handle after updates, until they end. Updates that arrive while handle runs, and
// during the pause after it, are handled together: a new device causes half a dozen.
func followAll[T any](v *devices, updates <-chan T, handle func()) {
	defer v.wg.Done()
	rest := time.NewTimer(0)
	defer rest.Stop()
	rested, pending := false, false
	for {
		select {
		case _, more := <-updates:
			if !more {
				v.unheard()
				return
			}
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
		rest.Reset(followRest * time.Since(begin))
	}
}

// unheard records that a subscription has ended.
func (v *devices) unheard() {
	select {
	case <-v.done:
	default:
		// The library ends a subscription at the first receive buffer overflow.
		v.mu.Lock()
		defer v.mu.Unlock()
		v.stale, v.deaf = true, true
	}
}

// lost records that messages were lost; maintain then reads the current state.
func (v *devices) lost() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stale = true
}

// maintain subscribes and scans again if messages were lost, and scans periodically.
func (v *devices) maintain() error {
	v.mu.Lock()
	stale, deaf, due := v.stale, v.deaf, time.Since(v.scanned) > rescanInterval
	v.stale = false
	v.mu.Unlock()
	if deaf {
		if err := v.listenAgain(); err != nil {
			v.lost()
			return err
		}
	}
	if !stale && !due {
		return nil
	}
	if stale {
		if err := v.invalidateAll(); err != nil {
			return err
		}
		v.d.signal()
	}
	return v.scan()
}

// listenAgain ends the remaining subscriptions and subscribes again.
func (v *devices) listenAgain() error {
	close(v.done)
	v.wg.Wait()
	v.done = make(chan struct{})
	if err := v.subscribe(); err != nil {
		v.done = make(chan struct{}) // subscribe has closed the old one
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.deaf = false
	return nil
}

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

// listen has handle take what a socket receives, until v.done, and then closes it. lost is
// called where messages were lost. about names what is listened to in errors.
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

// followRest is for how many times as long as it took nothing is looked at again: where
// there are hundreds of devices, and more come all the time, that would be all that is done.
const followRest = 3

// followAll has handle look at what there is after updates, until they end. What has piled
// up while it did, and while it rests, is handled as one: a device that comes makes half a
// dozen.
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

// unheard notes that a subscription has ended.
func (v *devices) unheard() {
	select {
	case <-v.done:
	default:
		// The library ends a subscription with the first message that did not fit.
		v.mu.Lock()
		defer v.mu.Unlock()
		v.stale, v.deaf = true, true
	}
}

// lost notes that messages were lost; maintain makes up for them.
func (v *devices) lost() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stale = true
}

// maintain listens and scans again where messages were lost, and scans from time to
// time.
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

// listenAgain ends what is left of the subscriptions, and begins anew.
func (v *devices) listenAgain() error {
	close(v.done)
	v.wg.Wait()
	v.done = make(chan struct{})
	if err := v.subscribe(); err != nil {
		v.done = make(chan struct{}) // which subscribe has closed
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.deaf = false
	return nil
}

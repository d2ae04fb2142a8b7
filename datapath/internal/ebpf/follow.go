// SPDX-License-Identifier: Apache-2.0

package ebpf

import "time"

// follow handles updates until they end.
func follow[T any](v *devices, updates <-chan T, handle func(T)) {
	defer v.wg.Done()
	for u := range updates {
		handle(u)
	}
	v.unheard()
}

// followAll has handle look at what there is after updates, until they end. What has piled
// up while it did is handled as one: a device that comes makes half a dozen.
func followAll[T any](v *devices, updates <-chan T, handle func()) {
	defer v.wg.Done()
	for range updates {
		for more := true; more; {
			select {
			case _, more = <-updates:
			default:
				more = false
			}
		}
		handle()
	}
	v.unheard()
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

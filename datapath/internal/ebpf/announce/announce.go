// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Announcer maintains ll_announced, the addresses for which the programs answer requests. It is
// safe for concurrent use.
type Announcer struct {
	table       *bpfmap.Map[kernel.AnnounceKey, kernel.Announced]
	switchNetns uint8
	netns       func() []Netns
	log         *slog.Logger

	mu      sync.Mutex
	wanted  map[source][]announcement
	said    map[source]bool // sources that called set in this run
	written map[kernel.AnnounceKey]kernel.Announced
	served  map[netip.Addr]bool // addresses of services in written; nil: to be rebuilt
	again   []notice            // to be announced a second time

	failed error         // of the last attempt to write the table
	pause  time.Duration // before the next attempt
	retry  time.Time     // of the next attempt
	unsent []notice      // addresses written by failed attempts
}

// After each failed attempt to write the table, the pause doubles, from announceRetry up to
// announceRetryMax.
const (
	announceRetry    = time.Second
	announceRetryMax = 30 * time.Second
)

// New takes over the announcements that an earlier run wrote.
func New(o Options) (*Announcer, error) {
	a := &Announcer{
		table: o.Table, switchNetns: o.SwitchNetns, netns: o.Netns, log: o.Log,
		wanted: make(map[source][]announcement), said: make(map[source]bool), written: make(map[kernel.AnnounceKey]kernel.Announced),
	}
	var key kernel.AnnounceKey
	var value kernel.Announced
	it := a.table.Iterate()
	for it.Next(&key, &value) {
		a.written[key] = value
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("adopt announcements of an earlier run: %w", err)
	}
	return a, nil
}

// set replaces the announcements of one source.
func (a *Announcer) set(from source, list []announcement) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wanted[from], a.said[from] = list, true
	return a.apply()
}

// seed sets the announcements of one source from an earlier run, so that its entries stay.
func (a *Announcer) seed(from source, list []announcement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wanted[from] = list
}

// Follow updates the announcements to match the current devices.
func (a *Announcer) Follow() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.apply()
}

// apply writes the wanted entries and announces new addresses. If that fails, Maintain retries.
// a.mu is held.
func (a *Announcer) apply() error {
	if a.failed = a.update(); a.failed == nil {
		a.pause = 0
		return nil
	}
	a.pause = min(max(2*a.pause, announceRetry), announceRetryMax)
	a.retry = time.Now().Add(a.pause)
	return a.failed
}

// update writes the wanted entries and announces new addresses. Entries of an earlier run stay
// until their source has called set.
func (a *Announcer) update() error {
	if len(a.said) == 0 {
		return nil
	}
	wanted := make(map[kernel.AnnounceKey]kernel.Announced)
	var news []notice
	for _, z := range a.netns() {
		networks := z.Networks()
		placeOnUplinks(a.wanted[sourceServices], networks)
		for _, n := range networks {
			t := notice{due: time.Now().Add(announcePause), netns: z, index: n.Index, mac: n.MAC}
			for _, list := range a.wanted {
				for i := range list {
					t.addrs = append(t.addrs, a.byNetwork(wanted, z, &n, &list[i])...)
				}
			}
			if len(t.addrs) > 0 {
				news = append(news, t)
			}
		}
	}
	a.alone(wanted)
	if err := a.write(wanted); err != nil {
		a.unsent = a.stillAnnounced(append(a.unsent, news...)) // the next attempt finds the others
		return err
	}
	news = append(news, a.stillAnnounced(a.unsent)...)
	a.unsent = nil
	for i := range news {
		a.send(&news[i])
	}
	a.again = append(a.again, news...)
	return nil
}

// write makes the table equal wanted. It inserts before it deletes, since an entry for a single
// address may exclude that address from a prefix.
func (a *Announcer) write(wanted map[kernel.AnnounceKey]kernel.Announced) error {
	a.served = nil
	for key, value := range wanted {
		if have, ok := a.written[key]; ok && have == value {
			continue
		}
		if err := a.table.Put(key, value); err != nil {
			return kernel.TableError("prefixes", err)
		}
		a.written[key] = value
	}
	for key, value := range a.written {
		if _, ok := wanted[key]; ok || !a.said[wantedBy(value)] && !isServices(key, value) {
			continue
		}
		if err := a.table.Delete(key); err != nil {
			return err
		}
		delete(a.written, key)
	}
	return nil
}

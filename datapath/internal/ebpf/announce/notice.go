// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"slices"
	"time"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/gratuitous"
)

// announcePause is ANNOUNCE_INTERVAL of RFC 5227.
const announcePause = 2 * time.Second

// notice is a device with the addresses that were announced on it.
type notice struct {
	due   time.Time
	netns Netns
	index int
	mac   [6]byte
	addrs []netip.Addr
}

// stillAnnounced returns the addresses of list that ll_announced still contains.
func (a *Announcer) stillAnnounced(list []notice) (rest []notice) {
	for _, t := range list {
		t.addrs = slices.DeleteFunc(t.addrs, func(addr netip.Addr) bool { return !a.announces(&t, addr) })
		if len(t.addrs) > 0 && slices.Contains(a.netns(), t.netns) {
			rest = append(rest, t)
		}
	}
	return rest
}

// send transmits unsolicited announcements. Neighbours that miss them send requests later, which
// are answered.
func (a *Announcer) send(t *notice) {
	err := t.netns.Do(func() error { return gratuitous.Send(t.index, t.mac[:], t.addrs) })
	if err != nil {
		a.log.Warn("cannot announce addresses; ARP and NDP requests are still answered", "device", t.index, "error", err)
	}
}

// Maintain repeats recent announcements after a pause (RFC 5227, section 2.3), and writes the table
// again after a failed attempt. It returns the error of the last attempt.
func (a *Announcer) Maintain() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.failed != nil && !now.Before(a.retry) {
		_ = a.apply() // kept in a.failed
	}
	for len(a.again) > 0 && !now.Before(a.again[0].due) {
		if t := &a.again[0]; slices.Contains(a.netns(), t.netns) {
			t.addrs = slices.DeleteFunc(t.addrs, func(addr netip.Addr) bool { return !a.announces(t, addr) })
			a.send(t)
		}
		a.again = a.again[1:]
	}
	return a.failed
}

// Pending returns the addresses that Maintain will announce a second time.
func (a *Announcer) Pending() (addrs []netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.again {
		addrs = append(addrs, t.addrs...)
	}
	return addrs
}

// announces reports whether ll_announced still contains an address for the device on which it was
// announced.
func (a *Announcer) announces(t *notice, addr netip.Addr) bool {
	for key, value := range a.written {
		p := netip.PrefixFrom(netip.AddrFrom16(key.Addr.Addr().As16()), int(key.PrefixLen)-64)
		if value.Flags&kernel.AnnouncedNot == 0 && int(key.Ifindex) == t.index && key.Netns == uint32(t.netns.ID()) && p.Contains(netip.AddrFrom16(addr.As16())) {
			return true
		}
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
	"github.com/loxilight/loxilight/datapath/internal/network/route"
)

// listingAge is the minimum time for which a listing of our routes is reused: verifying ten
// thousand routes lists them a few times, not ten thousand times. A listing that took long is
// reused for longer: listingShare times as long as it took.
const (
	listingAge   = 500 * time.Millisecond
	listingShare = 10
)

// listing is a cached dump of our routes in one namespace.
type listing struct {
	until time.Time
	byKey map[route.Key][]netlink.Route
	own   map[netip.Addr]bool // next hops: whether they are addresses of the node
}

// ours returns our entries with this key, from a listing that has not expired.
func (r *routes) ours(s *namespace.Handle, key route.Key) ([]netlink.Route, error) {
	r.mu.Lock()
	l := r.listings[s.ID]
	r.mu.Unlock()
	if begin := time.Now(); l == nil || begin.After(l.until) {
		l = &listing{byKey: map[route.Key][]netlink.Route{}, own: map[netip.Addr]bool{}}
		filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, Protocol: namespace.Protocol}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			list, err := dump.Retry(func() ([]netlink.Route, error) {
				return s.Strict.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
			})
			if err != nil {
				return nil, fmt.Errorf("list routes: %w", err)
			}
			for _, x := range list {
				if k, ok := route.KeyOfEntry(&x); ok {
					l.byKey[k] = append(l.byKey[k], x)
				}
			}
		}
		took := time.Since(begin)
		l.until = begin.Add(max(listingAge, listingShare*took))
		r.mu.Lock()
		r.listings[s.ID] = l
		r.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(l.byKey[key]), nil
}

// isOwn reports whether an address belongs to the namespace. The result is cached as long as the
// listing.
func (r *routes) isOwn(s *namespace.Handle, addr netip.Addr) bool {
	r.mu.Lock()
	l := r.listings[s.ID]
	if l != nil && time.Now().Before(l.until) {
		if own, known := l.own[addr]; known {
			r.mu.Unlock()
			return own
		}
	}
	r.mu.Unlock()
	found, err := s.Netlink.RouteGet(addr.AsSlice())
	own := err == nil && len(found) > 0 && found[0].Type == unix.RTN_LOCAL
	r.mu.Lock()
	defer r.mu.Unlock()
	if l != nil {
		l.own[addr] = own
	}
	return own
}

// enlist records in the listing that the entries with this key have changed, so that no new listing
// is necessary. entry is now the only one; nil: none exists. After an error, the state of the
// entries is unknown.
func (r *routes) enlist(s *namespace.Handle, key route.Key, entry *netlink.Route, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.listings[s.ID]
	switch {
	case l == nil:
	case err != nil:
		delete(r.listings, s.ID)
	case entry == nil:
		delete(l.byKey, key)
	default:
		l.byKey[key] = []netlink.Route{*entry}
	}
}

// stale discards the cached listings.
func (r *routes) stale() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.listings)
}

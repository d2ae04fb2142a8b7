// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
	"github.com/loxilight/loxilight/datapath/internal/network/route"
)

// routes is the table of routes.
type routes struct {
	n *Network

	mu       sync.Mutex
	wanted   map[datapath.RouteName]datapath.Route // the values of the last Update
	places   map[place]int                         // number of entries of wanted at each place
	switched int                                   // how many of wanted are for the switch
	devices  map[string]int                        // how many of wanted depend on it; "": on any
	listings map[namespace.ID]*listing
	owned    map[routeOwner]map[datapath.RouteName]bool // those of wanted that belong to no Route
}

// place is the namespace and key of a route.
type place struct {
	host bool
	key  route.Key
}

func newRoutes(n *Network) *routes {
	return &routes{n: n, wanted: map[datapath.RouteName]datapath.Route{}, places: map[place]int{}, devices: map[string]int{},
		listings: map[namespace.ID]*listing{}, owned: map[routeOwner]map[datapath.RouteName]bool{}}
}

func (r *routes) placeOf(v *datapath.Route) place {
	return place{host: !v.Switch || r.n.isHost(), key: route.KeyOf(v)}
}

// want records the value of the last Update, or nil if the route was deleted. It reports whether
// the route had the same place before.
func (r *routes) want(name datapath.RouteName, value *datapath.Route) (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wantOfOwner(name, value != nil)
	if old, ok := r.wanted[name]; ok {
		again = value != nil && r.placeOf(&old) == r.placeOf(value)
		count(r.places, r.placeOf(&old), -1)
		r.countDevices(&old, -1)
		delete(r.wanted, name)
	}
	if value != nil {
		r.wanted[name] = *value
		count(r.places, r.placeOf(value), 1)
		r.countDevices(value, 1)
	}
	return again
}

// countDevices counts the devices on which a route depends: any device, if the kernel chooses it
// or the node must have the route's source on some device. r.mu is held.
func (r *routes) countDevices(v *datapath.Route, by int) {
	if v.Switch {
		r.switched += by
	}
	for _, h := range v.NextHops {
		count(r.devices, h.Device, by)
	}
	if v.Source.IsValid() {
		count(r.devices, "", by)
	}
}

// inSwitch returns how many routes are wanted in the switch.
func (r *routes) inSwitch() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.switched
}

// names reports whether a wanted route may depend on the device.
func (r *routes) names(device string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.devices[device] > 0 || r.devices[""] > 0
}

// The old entry of a moved route is kept under another name until it is deleted. A daemon that is
// killed leaves it there, so that a route may have several old entries.
const (
	befores    = 4 // names for the old entries of a route
	beforeMark = " (before"
)

// before returns one of these names, i from 0 to befores-1.
func before(name datapath.RouteName, i int) string {
	if i == 0 {
		return string(name) + beforeMark + ")"
	}
	return fmt.Sprintf("%s%s %d)", name, beforeMark, i+1)
}

// keepOld records the entry old of a route that moves to record as one to be deleted.
func (r *routes) keepOld(name datapath.RouteName, old, record *routeRecord) error {
	free, last := "", before(name, befores-1)
	for i := range befores {
		n := before(name, i)
		switch there := r.n.journal.route(n); {
		case there != nil && *there == *old:
			return nil
		case there == nil && free == "":
			free = n
		case there != nil && *there != *record:
			last = n
		}
	}
	if free == "" {
		if err := r.remove(last, r.n.journal.route(last)); err != nil {
			return err
		}
		free = last
	}
	return r.n.journal.note(line{Kind: kindRoute, Name: free, Route: old})
}

// removeOld removes the old entries of a route, but not record.
func (r *routes) removeOld(name datapath.RouteName, record *routeRecord) (err error) {
	for i := range befores {
		n := before(name, i)
		switch there := r.n.journal.route(n); {
		case there == nil:
		case record != nil && *there == *record:
			err = errors.Join(err, r.n.journal.note(line{Kind: kindRoute, Name: n}))
		default:
			err = errors.Join(err, r.remove(n, there))
		}
	}
	return err
}

// Update implements [datapath.Table]. An entry that changes is replaced, so that an entry exists at
// every moment.
func (r *routes) Update(_ context.Context, name datapath.RouteName, value datapath.Route) error {
	// A new value may take over from a route that is about to be removed.
	if again := r.want(name, &value); again {
		if first := r.rival(name, &value); first != "" {
			return fmt.Errorf("route %s: already configured by Route %s; host and switch share one netns (switch.namespace: host): delete one of the two, or change the metric of one",
				value.Prefix, first)
		}
	}
	s, err := r.n.space(value.Switch)
	if err != nil {
		return err
	}
	defer r.n.done(s)
	record := &routeRecord{Space: s.ID, Key: route.KeyOf(&value)}
	old := r.n.journal.route(string(name))
	if old != nil && *old != *record {
		// The new entry is added first.
		if err := r.keepOld(name, old, record); err != nil {
			return err
		}
	}
	err = errors.Join(r.put(s, string(name), record, &value), r.removeOld(name, record))
	if errors.Is(err, route.ErrDown) {
		return err // it says what to do, and is the same for all Routes of the device
	}
	if err != nil {
		return fmt.Errorf("route %s in %s: %w", value.Prefix, s.Where(), err)
	}
	return nil
}

// put ensures that the entry exists.
func (r *routes) put(s *namespace.Handle, name string, record *routeRecord, value *datapath.Route) error {
	known := r.takeRecord(name, record)
	wanted, missing, err := route.Build(s, value, r.isOwn)
	if err != nil {
		return err
	}
	there, err := r.ours(s, record.Key)
	if err != nil {
		return err
	}
	if wanted == nil { // no next hop is left
		if known && len(there) > 0 {
			if err := r.removeAll(s, there); err != nil {
				return err
			}
		}
		return errors.Join(r.note(name, record), missing)
	}
	if len(there) == 1 && route.Same(&there[0], wanted, value) {
		return errors.Join(r.note(name, record), missing)
	}
	if len(there) > 0 && !known {
		return fmt.Errorf("metric %d already exists, from another instance of loxilight, or from an earlier run whose state was lost: %w; remove it (ip route del %s metric %d), or choose another metric",
			record.Key.Metric, errTaken, value.Prefix, record.Key.Metric)
	}
	if err := r.note(name, record); err != nil {
		return err
	}
	if len(there) > 0 {
		err = s.Netlink.RouteReplace(wanted)
	} else {
		err = s.Netlink.RouteAdd(wanted)
	}
	r.enlist(s, record.Key, wanted, err)
	if errors.Is(err, unix.EEXIST) {
		return errors.Join(r.n.journal.note(line{Kind: kindRoute, Name: name}), route.Conflict(s, value, record.Key))
	}
	if err != nil {
		return route.Explain(s, err, value)
	}
	if len(there) > 0 && value.Prefix.Addr().Is6() {
		if err := r.removeRest(s, record.Key, wanted, value); err != nil {
			return err
		}
	}
	return missing
}

var errTaken = errors.New("taken")

// takeRecord reports whether the entry is known to be ours. Another route that held it until now
// loses it, so that an entry that moves between objects is never unowned.
func (r *routes) takeRecord(name string, record *routeRecord) (known bool) {
	holder, known := r.n.journal.holder(*record)
	if known && holder != name {
		// If this write fails, both hold the entry after a crash.
		_ = r.n.journal.note(line{Kind: kindRoute, Name: holder})
	}
	return known
}

func (r *routes) note(name string, record *routeRecord) error {
	if old := r.n.journal.route(name); old != nil && *old == *record {
		return nil
	}
	return r.n.journal.note(line{Kind: kindRoute, Name: name, Route: record})
}

// Delete implements [datapath.Table].
func (r *routes) Delete(_ context.Context, name datapath.RouteName) error {
	r.want(name, nil)
	if record := r.n.journal.route(string(name)); record != nil {
		if err := r.remove(string(name), record); err != nil {
			return err
		}
	}
	return r.removeOld(name, nil)
}

// remove removes a route from the kernel, then its record from the journal.
func (r *routes) remove(name string, record *routeRecord) error {
	s, err := r.n.present(record.Space)
	if err != nil {
		return err
	}
	if s != nil {
		defer r.n.done(s)
		there, err := r.ours(s, record.Key)
		if err == nil {
			err = r.removeAll(s, there)
		}
		if err != nil {
			return fmt.Errorf("remove route %s: %w", record.Key.Prefix, err)
		}
	}
	return r.n.journal.note(line{Kind: kindRoute, Name: name})
}

func (r *routes) removeAll(s *namespace.Handle, list []netlink.Route) error {
	for i := range list {
		err := s.Netlink.RouteDel(&list[i])
		if k, ok := route.KeyOfEntry(&list[i]); ok {
			r.enlist(s, k, nil, err)
		}
		if err != nil && !namespace.IsAbsent(err) {
			return err
		}
	}
	return nil
}

// removeRest removes the leftovers of a replacement: in IPv6 a key may have several entries.
func (r *routes) removeRest(s *namespace.Handle, key route.Key, wanted *netlink.Route, value *datapath.Route) error {
	r.stale()
	there, err := r.ours(s, key)
	if err != nil || len(there) < 2 {
		return err
	}
	return r.removeAll(s, slices.DeleteFunc(there, func(x netlink.Route) bool { return route.Same(&x, wanted, value) }))
}

// Keys implements [datapath.Table].
func (r *routes) Keys(context.Context) iter.Seq2[datapath.RouteName, error] {
	names := namesOf(r.n.journal, r.n.journal.current.Routes)
	names = slices.DeleteFunc(names, func(name string) bool { return ownerOf(name) != "" })
	return keysOf[datapath.RouteName](names)
}

// Verify implements [datapath.Table].
func (r *routes) Verify(_ context.Context, name datapath.RouteName) (bool, error) {
	r.mu.Lock()
	value, ok := r.wanted[name]
	r.mu.Unlock()
	record := r.n.journal.route(string(name))
	if !ok || record == nil {
		return false, nil
	}
	s, err := r.n.present(record.Space)
	if err != nil || s == nil {
		return false, err
	}
	defer r.n.done(s)
	there, err := r.ours(s, record.Key)
	if err != nil || len(there) != 1 {
		return false, err
	}
	wanted, missing, err := route.Build(s, &value, r.isOwn)
	return err == nil && missing == nil && wanted != nil && route.Same(&there[0], wanted, &value), nil
}

// concerns reports whether a message from the kernel is about an entry that may have been ours and
// was removed or replaced.
func (r *routes) concerns(s *namespace.Handle, m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofRtMsg {
		return false
	}
	x := nl.DeserializeRtMsg(m.Data)
	replaced := m.Header.Type == unix.RTM_NEWROUTE && m.Header.Flags&unix.NLM_F_REPLACE != 0 && x.Protocol != namespace.Protocol
	if x.Table != unix.RT_TABLE_MAIN || m.Header.Type == unix.RTM_NEWROUTE && !replaced {
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[x.Len():])
	if err != nil {
		return false
	}
	key, ok := route.KeyOfMessage(x, attrs)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ok || r.places[place{s.Host, key}] == 0 {
		return false
	}
	clear(r.listings)
	return true
}

// count adds the number by to the count of key.
func count[K comparable](counts map[K]int, key K, by int) {
	if counts[key] += by; counts[key] == 0 {
		delete(counts, key)
	}
}

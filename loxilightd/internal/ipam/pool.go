// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Reserved is the number of addresses at the beginning of a subnet that pods cannot get: the
// subnet's own address (in IPv6, the Subnet-Router anycast address), [Gateway] and [Host].
const Reserved = 3

// Gateway returns the switch's address in a subnet.
func Gateway(subnet netip.Prefix) netip.Addr { return subnet.Masked().Addr().Next() }

// Host returns the node's own address in a subnet.
func Host(subnet netip.Prefix) netip.Addr { return Gateway(subnet).Next() }

// bounds returns the first and the last address in a subnet that pods can get; ok is false if the
// subnet is too small.
func bounds(subnet netip.Prefix) (first, last netip.Addr, ok bool) {
	if subnet.Addr().BitLen()-subnet.Bits() < 2 {
		return first, last, false
	}
	first = Host(subnet).Next()
	b := subnet.Masked().Addr().AsSlice()
	for i := subnet.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ = netip.AddrFromSlice(b)
	if last.Is4() {
		last = last.Prev() // last is the broadcast address
	}
	return first, last, !last.Less(first)
}

// mostSize is what is reported as the size of larger subnets: the largest number that JSON decoders
// represent exactly.
const mostSize = 1 << 53

// size returns how many addresses in a subnet pods can get, at most mostSize.
func size(subnet netip.Prefix) uint64 {
	first, last, ok := bounds(subnet)
	if !ok {
		return 0
	}
	a, b := first.As16(), last.As16()
	if binary.BigEndian.Uint64(a[:8]) != binary.BigEndian.Uint64(b[:8]) {
		return mostSize
	}
	return min(binary.BigEndian.Uint64(b[8:])-binary.BigEndian.Uint64(a[8:])+1, mostSize)
}

// resting is a released address that is not assigned again for the time [Rest].
type resting struct {
	addr  netip.Addr
	since time.Time
}

// allocate creates the requested lease, and adds it to the batch. The caller holds s.mu.
func (s *Store) allocate(r *Request, subnets []netip.Prefix) (*Lease, error) {
	if len(subnets) == 0 {
		return nil, fmt.Errorf("PodNetwork/%s: %w with a subnet on this node: apply one, or name another", r.Network, ErrNetwork)
	}
	if r.Owner.ContainerID == "" || r.Owner.IfName == "" {
		return nil, fmt.Errorf("owner %q: %w: container ID and interface name are required", r.Owner, ErrAddress)
	}
	old := s.leases[r.Owner]
	if old != nil && old.Network == r.Network && fits(old, subnets, r.Addresses) {
		return s.again(old, r), nil
	}
	l := &Lease{Network: r.Network, Owner: r.Owner, Netns: r.Netns, Pod: r.Pod, Boot: s.opts.Boot, Since: s.opts.Now().UTC().Truncate(time.Millisecond)}
	var err error
	var picked []netip.Prefix
	if l.Addresses, picked, err = s.choose(r, subnets, old); err != nil {
		return nil, err
	}
	if old != nil {
		s.release(old)
	}
	s.grant(l)
	s.advance(picked)
	s.note(record{Lease: l, Picked: picked}, func() { s.drop(l) })
	return l, nil
}

// again returns the owner's existing lease, updated with data from the request.
func (s *Store) again(old *Lease, r *Request) *Lease {
	if old.Netns == r.Netns && old.Pod == r.Pod && old.Boot == s.opts.Boot {
		return old
	}
	l := old.clone()
	l.Netns, l.Pod, l.Boot = r.Netns, r.Pod, s.opts.Boot
	s.leases[l.Owner] = &l
	s.note(record{Lease: &l}, func() { s.leases[old.Owner] = old })
	return &l
}

// fits reports whether a lease has exactly one address in each subnet, including the requested
// addresses.
func fits(l *Lease, subnets []netip.Prefix, asked []netip.Addr) bool {
	for _, subnet := range subnets {
		has := func(p netip.Prefix) bool { return p.Bits() == subnet.Bits() && subnet.Contains(p.Addr()) }
		if !slices.ContainsFunc(l.Addresses, has) {
			return false
		}
	}
	for _, p := range l.Addresses {
		if !slices.ContainsFunc(subnets, func(subnet netip.Prefix) bool { return subnet.Contains(p.Addr()) }) {
			return false
		}
	}
	for _, a := range asked {
		if !slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return false
		}
	}
	return true
}

// choose returns one address in each subnet for a request, and in picked the addresses that it
// picked because none was requested; or it returns an error.
func (s *Store) choose(r *Request, subnets []netip.Prefix, old *Lease) (list, picked []netip.Prefix, err error) {
	served := make([]bool, len(subnets))
	for i, a := range r.Addresses {
		in := slices.IndexFunc(subnets, func(p netip.Prefix) bool { return p.Contains(a) })
		if in < 0 {
			return nil, nil, fmt.Errorf("%s is %w: PodNetwork/%s has %v", a, ErrAddress, r.Network, subnets)
		}
		if first, last, ok := bounds(subnets[in]); !ok || a.Less(first) || last.Less(a) {
			return nil, nil, fmt.Errorf("%s is %w: pod addresses in %s are %s to %s", a, ErrAddress, subnets[in], first, last)
		}
		if holder, ok := s.taken[a]; ok && (old == nil || holder != old.Owner) {
			return nil, nil, fmt.Errorf("%s is %w by %s", a, ErrTaken, s.name(holder))
		}
		if who, used := s.opts.Used(a); used && (old == nil || s.taken[a] != old.Owner) {
			return nil, nil, fmt.Errorf("%s is %w by %s", a, ErrTaken, who)
		}
		if slices.Contains(r.Addresses[:i], a) {
			return nil, nil, fmt.Errorf("%s is %w: it is requested twice", a, ErrAddress)
		}
		served[in] = true
		list = append(list, netip.PrefixFrom(a, subnets[in].Bits()))
	}
	for i, subnet := range subnets {
		if served[i] {
			continue
		}
		a, ok := s.pick(subnet)
		if !ok {
			return nil, nil, fmt.Errorf("PodNetwork/%s: subnet %s: %w: %d pods have all of them", r.Network, subnet, ErrFull, size(subnet))
		}
		picked = append(picked, netip.PrefixFrom(a, subnet.Bits()))
	}
	list = append(list, picked...)
	slices.SortStableFunc(list, func(a, b netip.Prefix) int {
		return slices.Index(subnets, a.Masked()) - slices.Index(subnets, b.Masked())
	})
	return list, picked, nil
}

// name returns the name of an owner for use in messages.
func (s *Store) name(o Owner) string {
	if l := s.leases[o]; l != nil && l.Pod != "" {
		return "pod " + l.Pod + " (" + o.String() + ")"
	}
	return o.String()
}

// pick returns the next free address in sequence that has rested, or else the address that has
// rested longest.
func (s *Store) pick(subnet netip.Prefix) (netip.Addr, bool) {
	first, last, ok := bounds(subnet)
	if !ok {
		return netip.Addr{}, false
	}
	at := s.next[subnet]
	if !at.IsValid() || at.Less(first) || last.Less(at) {
		at = first
	}
	// Among this many consecutive addresses, at least one is free, unless the subnet is smaller.
	// Addresses that are in use without a lease are skipped in addition.
	begin := at
	for left := len(s.taken) + len(s.rests) + 1; left > 0; left-- {
		_, isTaken := s.taken[at]
		_, rests := s.rests[at]
		if !isTaken && !rests {
			if _, used := s.opts.Used(at); !used && !s.opts.Elsewhere(at) {
				return at, true
			}
			left++
		}
		if at = at.Next(); !at.IsValid() || last.Less(at) {
			at = first
		}
		if at == begin {
			break
		}
	}
	for _, r := range s.queue {
		if since, rests := s.rests[r.addr]; rests && since.Equal(r.since) && subnet.Contains(r.addr) && !r.addr.Less(first) && !last.Less(r.addr) {
			if _, used := s.opts.Used(r.addr); !used && !s.opts.Elsewhere(r.addr) {
				return r.addr, true
			}
		}
	}
	return netip.Addr{}, false
}

// wake makes addresses available that have rested long enough.
func (s *Store) wake() {
	now := s.opts.Now()
	for len(s.queue) > 0 {
		r := s.queue[0]
		if now.Sub(r.since) < Rest {
			return
		}
		if since, ok := s.rests[r.addr]; ok && since.Equal(r.since) {
			delete(s.rests, r.addr)
		}
		s.queue = s.queue[1:]
	}
}

// grant assigns the addresses of a lease to its owner. After a partial loss of the file, one of the
// addresses may have a different owner, which then loses its lease.
func (s *Store) grant(l *Lease) {
	for _, p := range l.Addresses {
		if holder, ok := s.taken[p.Addr()]; ok && holder != l.Owner {
			s.drop(s.leases[holder])
		}
		s.taken[p.Addr()] = l.Owner
		delete(s.rests, p.Addr())
	}
	s.leases[l.Owner] = l
}

// advance makes the next search continue after the picked addresses.
func (s *Store) advance(picked []netip.Prefix) {
	for _, p := range picked {
		s.next[p.Masked()] = p.Addr().Next()
	}
}

// drop releases the addresses of a lease; the addresses are free immediately.
func (s *Store) drop(l *Lease) {
	for _, p := range l.Addresses {
		delete(s.taken, p.Addr())
	}
	delete(s.leases, l.Owner)
}

// release releases a lease, and adds the release to the batch. The caller holds s.mu.
func (s *Store) release(l *Lease) {
	now := s.opts.Now()
	s.retire(l, now)
	s.note(record{Free: &freed{Owner: l.Owner, At: now}}, func() { s.grant(l) })
}

// retire releases the addresses of a lease; the addresses rest before they are free.
func (s *Store) retire(l *Lease, since time.Time) {
	s.drop(l)
	for _, p := range l.Addresses {
		s.rest(p.Addr(), since)
	}
}

func (s *Store) rest(a netip.Addr, since time.Time) {
	s.rests[a] = since
	s.queue = append(s.queue, resting{a, since})
}

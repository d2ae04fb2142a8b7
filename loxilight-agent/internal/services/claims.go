// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Claims knows which Service has which frontend. The cluster's own assignments come first (cluster
// IPs, node ports), then pool addresses, then other addresses in a status, then external IPs. Among
// equals the oldest Service wins, then the first by name. A pool address belongs, on all ports, to
// the Service that holds it: no other Service gets a port of the address, even if the holder does
// not use that port. A Service that lost a frontend gets it when the winner is deleted. The zero
// value is ready for use. Not safe for concurrent use.
type Claims struct {
	services map[Key]*claim
	holders  map[claimKey]*claim
	rivals   map[claimKey][]*claim   // of frontends that several want, all of them
	at       map[netip.Addr][]*claim // claims on addresses that the cluster did not give out
}

// claimKey is a frontend in comparable form.
type claimKey struct {
	addr  netip.AddrPort
	proto byte
}

func keyOf(f frontend) claimKey { return claimKey{f.addr, protocolWord(f.proto)[0]} }

// claim contains all frontends that one service wants.
type claim struct {
	key     Key
	created time.Time
	wants   []bid
}

// rank orders bids for one frontend: the lowest rank wins, regardless of the age of the Service.
type rank uint8

const (
	rankGiven    rank = iota // a cluster IP or node port, which the cluster gave to the Service
	rankPool                 // a pool address, in the Service's status
	rankStatus               // another address in the Service's status, written by a controller
	rankExternal             // an external IP: every editor of the Service can write it
	rankNone                 // no bid
)

// bid is one frontend that a service wants.
type bid struct {
	key  claimKey
	rank rank
}

func (c *claim) rank(k claimKey) rank {
	for _, b := range c.wants {
		if b.key == k {
			return b.rank
		}
	}
	return rankNone
}

// before reports whether c wins k over other.
func (c *claim) before(other *claim, k claimKey) bool {
	return cmp.Or(cmp.Compare(c.rank(k), other.rank(k)), c.compare(other)) < 0
}

// compare orders claims by age and name.
func (c *claim) compare(other *claim) int {
	return cmp.Or(
		c.created.Compare(other.created),
		cmp.Compare(c.key.Namespace, other.key.Namespace), cmp.Compare(c.key.Name, other.key.Name),
	)
}

// addresses calls f once for each address of the claim that the cluster did not give out.
func (c *claim) addresses(f func(netip.Addr)) {
	var seen []netip.Addr
	for _, b := range c.wants {
		if a := b.key.addr.Addr(); b.rank != rankGiven && !slices.Contains(seen, a) {
			seen = append(seen, a)
			f(a)
		}
	}
}

// pooled reports whether the claim holds a pool address.
func (c *claim) pooled(a netip.Addr) bool {
	return slices.ContainsFunc(c.wants, func(b bid) bool { return b.rank == rankPool && b.key.addr.Addr() == a })
}

// Set adds or updates a service, and returns the other services that gained or lost a frontend as a
// result: they must be translated again, and sent in the same transaction.
func (c *Claims) Set(n *Node, s *corev1.Service) []Key {
	key := Key{Namespace: s.Namespace, Name: s.Name}
	next := &claim{key: key, created: s.CreationTimestamp.Time}
	if n.Concerns(s) {
		for _, w := range addressesOf(n, s).frontends(s) {
			next.wants = append(next.wants, bid{keyOf(w.frontend), n.rank(w)})
		}
	}
	old := c.services[key]
	if old != nil && old.created.Equal(next.created) && slices.Equal(old.wants, next.wants) {
		return nil
	}
	return c.change(key, old, next)
}

// rank returns the rank of a frontend that a Service wants.
func (n *Node) rank(w wanted) rank {
	switch {
	case w.role == roleCluster || w.role == roleNodePort:
		return rankGiven
	case w.role == roleExternal:
		return rankExternal
	case n.inPool(w.addr.Addr()):
		return rankPool
	default:
		return rankStatus
	}
}

// Delete forgets a service, and returns the other services that gained a frontend as a result.
func (c *Claims) Delete(key Key) []Key {
	old := c.services[key]
	if old == nil {
		return nil
	}
	return c.change(key, old, nil)
}

// change removes the claims of old and adds the claims of next; either may be nil.
func (c *Claims) change(key Key, old, next *claim) []Key {
	if c.services == nil {
		c.services, c.holders, c.rivals = map[Key]*claim{}, map[claimKey]*claim{}, map[claimKey][]*claim{}
		c.at = map[netip.Addr][]*claim{}
	}
	touched := c.touched(old, next)
	others := func(k claimKey) Key { // the service that serves it, unless it is this one
		if h := c.holder(k); h != nil && h.key != key && h.rank(k) != rankNone {
			return h.key
		}
		return Key{}
	}
	before := make([]Key, len(touched))
	for i, k := range touched {
		before[i] = others(k)
	}
	if old != nil {
		c.withdraw(old)
		delete(c.services, key)
	}
	if next != nil && len(next.wants) > 0 {
		c.services[key] = next
		c.enter(next)
	}
	var affected []Key
	for i, k := range touched {
		if after := others(k); after != before[i] {
			affected = append(affected, before[i], after)
		}
	}
	slices.SortFunc(affected, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	affected = slices.Compact(affected)
	return slices.DeleteFunc(affected, func(k Key) bool { return k == (Key{}) })
}

// touched lists the frontends whose holder may change: the frontends of both versions of a
// Service, and all other frontends of the pool addresses that one of them holds.
func (c *Claims) touched(versions ...*claim) (keys []claimKey) {
	seen := map[claimKey]bool{}
	add := func(k claimKey) {
		if !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	for _, cl := range versions {
		if cl == nil {
			continue
		}
		for _, b := range cl.wants {
			add(b.key)
			if b.rank != rankPool {
				continue
			}
			for _, rival := range c.at[b.key.addr.Addr()] {
				for _, other := range rival.wants {
					if other.key.addr.Addr() == b.key.addr.Addr() {
						add(other.key)
					}
				}
			}
		}
	}
	return keys
}

func (c *Claims) enter(cl *claim) {
	cl.addresses(func(a netip.Addr) { c.at[a] = append(c.at[a], cl) })
	for _, b := range cl.wants {
		holder := c.holders[b.key]
		if holder == nil {
			c.holders[b.key] = cl
			continue
		}
		if len(c.rivals[b.key]) == 0 {
			c.rivals[b.key] = []*claim{holder}
		}
		c.rivals[b.key] = append(c.rivals[b.key], cl)
		if cl.before(holder, b.key) {
			c.holders[b.key] = cl
		}
	}
}

func (c *Claims) withdraw(cl *claim) {
	cl.addresses(func(a netip.Addr) {
		c.at[a] = slices.DeleteFunc(c.at[a], func(r *claim) bool { return r == cl })
		if len(c.at[a]) == 0 {
			delete(c.at, a)
		}
	})
	for _, b := range cl.wants {
		rest := slices.DeleteFunc(c.rivals[b.key], func(r *claim) bool { return r == cl })
		switch len(rest) {
		case 0:
			delete(c.rivals, b.key)
			delete(c.holders, b.key)
			continue
		case 1:
			delete(c.rivals, b.key)
		default:
			c.rivals[b.key] = rest
		}
		c.holders[b.key] = slices.MinFunc(rest, func(x, y *claim) int {
			if x.before(y, b.key) {
				return -1
			}
			return 1
		})
	}
}

// owner returns the claim that holds a pool address, or nil if no claim does.
func (c *Claims) owner(a netip.Addr) (owner *claim) {
	for _, cl := range c.at[a] {
		if cl.pooled(a) && (owner == nil || cl.compare(owner) < 0) {
			owner = cl
		}
	}
	return owner
}

// holder returns the claim that has a frontend, or that excludes others from it because it holds
// the address. It returns nil if no claim does.
func (c *Claims) holder(k claimKey) *claim {
	h := c.holders[k]
	if h == nil || h.rank(k) == rankGiven {
		return h
	}
	if owner := c.owner(k.addr.Addr()); owner != nil {
		return owner
	}
	return h
}

// Holder returns the service that has a frontend.
func (c *Claims) Holder(addr netip.AddrPort, proto corev1.Protocol) (Key, bool) {
	h := c.holder(keyOf(frontend{addr, proto}))
	if h == nil {
		return Key{}, false
	}
	return h.key, true
}

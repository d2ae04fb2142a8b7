// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Claims knows which service has which frontend. One that several want is that of the
// service that the cluster gave it to as cluster IP or node port, among equals that
// of the oldest, and then of the first by name. A service that lost one gets it when the
// winner goes. The zero value is ready for use. Not safe for concurrent use.
type Claims struct {
	services map[Key]*claim
	holders  map[claimKey]*claim
	rivals   map[claimKey][]*claim // of frontends that several want, all of them
}

// claimKey is a frontend, compared by what it is.
type claimKey struct {
	addr  netip.AddrPort
	proto byte
}

func keyOf(f frontend) claimKey { return claimKey{f.addr, protocolWord(f.proto)[0]} }

// claim is all that one service wants.
type claim struct {
	key     Key
	created time.Time
	wants   []bid
}

// bid is one frontend that a service wants; given: the cluster gave it to the service.
type bid struct {
	key   claimKey
	given bool
}

func (c *claim) given(k claimKey) bool {
	for _, b := range c.wants {
		if b.key == k {
			return b.given
		}
	}
	return false
}

// before says whether c goes before other, where both want k.
func (c *claim) before(other *claim, k claimKey) bool {
	return cmp.Or(
		flag(!c.given(k), !other.given(k)), c.created.Compare(other.created),
		cmp.Compare(c.key.Namespace, other.key.Namespace), cmp.Compare(c.key.Name, other.key.Name),
	) < 0
}

// Set tells of a service that is new or has changed, and returns the other services
// that have won or lost a frontend by it: those are to be translated again, and to
// be told in the same transaction.
func (c *Claims) Set(n *Node, s *corev1.Service) []Key {
	key := Key{Namespace: s.Namespace, Name: s.Name}
	next := &claim{key: key, created: s.CreationTimestamp.Time}
	if n.Concerns(s) {
		for _, w := range addressesOf(n, s).frontends(s) {
			next.wants = append(next.wants, bid{keyOf(w.frontend), w.role == roleCluster || w.role == roleNodePort})
		}
	}
	old := c.services[key]
	if old != nil && old.created.Equal(next.created) && slices.Equal(old.wants, next.wants) {
		return nil
	}
	return c.change(key, old, next)
}

// Delete forgets a service, and returns the others that have won a frontend by it.
func (c *Claims) Delete(key Key) []Key {
	old := c.services[key]
	if old == nil {
		return nil
	}
	return c.change(key, old, nil)
}

// change takes back what a service wanted, and enters what it wants now; nil: nothing.
func (c *Claims) change(key Key, old, next *claim) []Key {
	if c.services == nil {
		c.services, c.holders, c.rivals = map[Key]*claim{}, map[claimKey]*claim{}, map[claimKey][]*claim{}
	}
	before := map[claimKey]Key{} // holders that are other services
	note := func(k claimKey) {
		if h := c.holders[k]; h != nil && h.key != key {
			before[k] = h.key
		}
	}
	var touched []claimKey
	for _, cl := range []*claim{old, next} {
		if cl != nil {
			for _, b := range cl.wants {
				note(b.key)
				touched = append(touched, b.key)
			}
		}
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
	for _, k := range touched {
		was, after := before[k], Key{}
		if h := c.holders[k]; h != nil && h.key != key {
			after = h.key
		}
		if was != after {
			for _, other := range []Key{was, after} {
				if other != (Key{}) && !slices.Contains(affected, other) {
					affected = append(affected, other)
				}
			}
		}
	}
	slices.SortFunc(affected, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return affected
}

func (c *Claims) enter(cl *claim) {
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

// Holder returns the service that has a frontend.
func (c *Claims) Holder(addr netip.AddrPort, proto corev1.Protocol) (Key, bool) {
	h := c.holders[keyOf(frontend{addr, proto})]
	if h == nil {
		return Key{}, false
	}
	return h.key, true
}

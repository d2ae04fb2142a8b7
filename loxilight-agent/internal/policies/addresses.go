// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Addresses decides which of several pods has an address. This happens when a node has assigned the
// address of a pod again before the API server reports the end of the pod. The zero value has no
// pods. It is not safe for concurrent use.
type Addresses struct {
	pods   map[string]*Pod // by namespace/name
	claims map[netip.Addr][]*Pod
}

// Set replaces the pod with a key, namespace/name; nil removes it. It returns the keys of the other
// pods that gained or lost an address as a result.
func (a *Addresses) Set(key string, p *Pod) (affected []string) {
	if a.pods == nil {
		a.pods, a.claims = map[string]*Pod{}, map[netip.Addr][]*Pod{}
	}
	if !p.Participates() || len(p.addresses) == 0 {
		p = nil
	}
	before := a.pods[key]
	var concerned []netip.Addr
	if before != nil {
		concerned = append(concerned, before.addresses...)
	}
	if p != nil {
		concerned = append(concerned, p.addresses...)
	}
	owners := make([]*Pod, len(concerned))
	for i, ip := range concerned {
		owners[i] = a.Owner(ip)
	}
	a.replace(key, before, p)
	for i, ip := range concerned {
		for _, other := range []*Pod{owners[i], a.Owner(ip)} {
			if owners[i] != a.Owner(ip) && other != nil && other != before && other != p && !slices.Contains(affected, other.Key()) {
				affected = append(affected, other.Key())
			}
		}
	}
	return affected
}

// Get returns the pod with a key if it claims addresses, as it was last set, otherwise nil.
func (a *Addresses) Get(key string) *Pod { return a.pods[key] }

func (a *Addresses) replace(key string, before, now *Pod) {
	delete(a.pods, key)
	if before != nil {
		for _, ip := range before.addresses {
			a.claims[ip] = slices.DeleteFunc(a.claims[ip], func(p *Pod) bool { return p == before })
			if len(a.claims[ip]) == 0 {
				delete(a.claims, ip)
			}
		}
	}
	if now != nil {
		a.pods[key] = now
		for _, ip := range now.addresses {
			a.claims[ip] = append(a.claims[ip], now)
		}
	}
}

// Owner returns the pod that has an address, or nil if none does: the running pod, of several the
// youngest, of several the first by namespace and name. A terminating pod does not count as running,
// because its address may be free already.
func (a *Addresses) Owner(ip netip.Addr) *Pod {
	list := a.claims[ip]
	if len(list) == 0 {
		return nil
	}
	return slices.MinFunc(list, func(p, q *Pod) int {
		if p.running != q.running {
			if p.running {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(q.created, p.created), strings.Compare(p.Namespace(), q.Namespace()), strings.Compare(p.name, q.name))
	})
}

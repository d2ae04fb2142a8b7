// SPDX-License-Identifier: Apache-2.0

// Package pools decides which addresses of configured pools belong to which Services of type
// LoadBalancer, and which node announces each. It is pure computation without state: the assigned
// addresses are stored in the Services themselves.
package pools

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
)

// Class is the loadBalancerClass of Services that are ours; Services without a class are ours, too.
const Class = "loxilight.io/lb"

// Annotations of Services.
const (
	// AnnotationAddresses are the requested addresses of the Service, separated by commas; it takes
	// precedence over spec.loadBalancerIP.
	AnnotationAddresses = "loxilight.io/addresses"
	// AnnotationPool names the pool for its addresses.
	AnnotationPool = "loxilight.io/pool"
)

// Manager is the field manager of assigned addresses: it marks the addresses in a Service as
// assigned by this controller.
const Manager = "loxilight-agent"

// written is the content of the controller's fields. It must not be modified.
var written = metav1.NewFieldsV1(`{"f:ingress":{}}`)

// Given returns the fields that mark the addresses in the status of a Service as assigned by this
// controller, or nil if there are no such fields.
func Given(s *corev1.Service) []metav1.ManagedFieldsEntry {
	for _, f := range s.ManagedFields {
		if f.Manager == Manager && f.Subresource == "status" && f.FieldsV1 != nil &&
			strings.Contains(f.FieldsV1.GetRawString(), `"f:ingress":`) {
			return []metav1.ManagedFieldsEntry{{Manager: f.Manager, Subresource: f.Subresource, FieldsV1: written}}
		}
	}
	return nil
}

// Pools are sets of addresses. They do not change.
type Pools struct{ pools []pool }

type pool struct {
	name   string
	ranges []config.Range
}

// New returns the configured pools.
func New(configured []config.Pool) (*Pools, error) {
	p := &Pools{}
	for _, c := range configured {
		one := pool{name: c.Name}
		for _, text := range c.Addresses {
			r, err := config.ParseRange(text)
			if err != nil {
				return nil, fmt.Errorf("pool %s: %w", c.Name, err)
			}
			one.ranges = append(one.ranges, r)
		}
		p.pools = append(p.pools, one)
	}
	return p, nil
}

// Has reports whether an address belongs to a pool.
func (p *Pools) Has(a netip.Addr) bool { return p.poolOf(a, "") }

func (p *Pools) poolOf(a netip.Addr, name string) bool {
	for _, one := range p.pools {
		if name != "" && one.name != name {
			continue
		}
		if slices.ContainsFunc(one.ranges, func(r config.Range) bool { return r.Contains(a) }) {
			return true
		}
	}
	return false
}

// Assignment contains the addresses for one Service.
type Assignment struct {
	Service   *corev1.Service
	Addresses []netip.Addr // IPv4 first, or as the Service orders its families
	Problem   string       // why it does not get all requested addresses; empty: it does
}

// Changed reports whether the Service's status differs.
func (a *Assignment) Changed() bool { return !slices.Equal(a.Addresses, Ingress(a.Service)) }

// Ingress returns the addresses that the status of a Service has.
func Ingress(s *corev1.Service) (addresses []netip.Addr) {
	for _, i := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// Assign returns for each Service that is ours the addresses that it gets, and for others a message
// if there is one. Services keep their addresses if possible, and no other Service gets an address
// that a Service has, not even in the round that removes it; Services that request the same address
// are served in the order of their age.
func (p *Pools) Assign(services []*corev1.Service) []Assignment {
	var all, rest []Assignment
	taken := map[netip.Addr]*corev1.Service{}
	for _, s := range services {
		if p.ours(s) {
			all = append(all, Assignment{Service: s})
		} else if lost := p.lost(s); len(lost) > 0 {
			rest = append(rest, Assignment{Service: s, Addresses: Ingress(s),
				Problem: join(lost) + " is no longer in any pool: no node announces it, and the service keeps it until it is removed from its status"})
		}
	}
	slices.SortFunc(all, func(a, b Assignment) int {
		x, y := a.Service, b.Service
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
	})
	wants := make([]want, len(all))
	for i := range all {
		wants[i] = p.read(all[i].Service)
		wants[i].hold(p, taken)
	}
	for _, s := range services { // Services being deleted, and addresses from other controllers
		hold(s, taken)
	}
	for i := range all {
		wants[i].ask(taken)
	}
	for i := range all {
		w := &wants[i]
		w.fill(p, taken)
		all[i].Addresses, all[i].Problem = w.addresses(), w.problem
	}
	return append(all, rest...)
}

// hold reserves the addresses in a Service's status for it, unless a different Service has them.
func hold(s *corev1.Service, taken map[netip.Addr]*corev1.Service) {
	for _, a := range Ingress(s) {
		if taken[a] == nil {
			taken[a] = s
		}
	}
}

// lost returns the addresses of a Service without class that were assigned from a pool but are no
// longer in any pool. Clients may have used them for a long time, so they are not changed.
func (p *Pools) lost(s *corev1.Service) []netip.Addr {
	if Given(s) == nil || s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.DeletionTimestamp != nil || s.Spec.LoadBalancerClass != nil {
		return nil
	}
	return slices.DeleteFunc(Ingress(s), p.Has)
}

func join(addresses []netip.Addr) string {
	texts := make([]string, len(addresses))
	for i, a := range addresses {
		texts[i] = a.String()
	}
	return strings.Join(texts, ", ")
}

// ours reports whether a Service gets its addresses from our pools. A Service to which another
// controller has given an address is left alone, unless its class says that it is ours.
func (p *Pools) ours(s *corev1.Service) bool {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.DeletionTimestamp != nil {
		return false
	}
	if s.Spec.LoadBalancerClass != nil {
		return *s.Spec.LoadBalancerClass == Class
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); i.Hostname != "" || err != nil || !p.Has(a) {
			return false
		}
	}
	return true
}

// want contains the requests of one Service.
type want struct {
	service  *corev1.Service
	families []bool // of each address: whether it is IPv4
	asked    map[bool]netip.Addr
	pool     string
	current  map[bool]netip.Addr // by family: its current address
	lost     []netip.Addr        // its addresses that are in no pool
	has      map[bool]netip.Addr // by family: its future address
	wrong    bool                // its request is invalid, or no pool can satisfy it
	problem  string
}

func (p *Pools) read(s *corev1.Service) want {
	w := want{service: s, asked: map[bool]netip.Addr{}, current: map[bool]netip.Addr{}, has: map[bool]netip.Addr{}, pool: s.Annotations[AnnotationPool]}
	for _, f := range s.Spec.IPFamilies {
		w.families = append(w.families, f == corev1.IPv4Protocol)
	}
	if len(w.families) == 0 {
		w.families = []bool{!strings.Contains(s.Spec.ClusterIP, ":")}
	}
	if w.pool != "" && !slices.ContainsFunc(p.pools, func(one pool) bool { return one.name == w.pool }) {
		w.tell("there is no pool %q", w.pool)
	}
	text := s.Annotations[AnnotationAddresses]
	if text == "" {
		text = s.Spec.LoadBalancerIP
	}
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		a, err := netip.ParseAddr(word)
		switch {
		case err != nil:
			w.tell("%q is not an address", word)
		case !slices.Contains(w.families, a.Is4()):
			w.tell("%s is of a family that the service does not have", a)
		case !p.poolOf(a, w.pool):
			w.tell("%s is in no pool available to this service", a)
		case w.asked[a.Is4()].IsValid():
			w.tell("%s and %s are of one family: a service has one address of each", w.asked[a.Is4()], a)
		default:
			w.asked[a.Is4()] = a
		}
	}
	w.wrong = w.problem != ""
	return w
}

func (w *want) tell(format string, args ...any) {
	if w.problem != "" {
		w.problem += "; "
	}
	w.problem += fmt.Sprintf(format, args...)
}

// hold takes the addresses that the Service already has.
func (w *want) hold(p *Pools, taken map[netip.Addr]*corev1.Service) {
	for _, a := range Ingress(w.service) {
		switch {
		case !p.Has(a):
			w.lost = append(w.lost, a)
		case slices.Contains(w.families, a.Is4()) && !w.current[a.Is4()].IsValid() && taken[a] == nil:
			w.current[a.Is4()] = a
		}
	}
	hold(w.service, taken)
}

// ask takes the addresses that the Service requests. If a part of the request is invalid, the rest
// may be a mistake too: then it does not replace an address that the Service has.
func (w *want) ask(taken map[netip.Addr]*corev1.Service) {
	for _, is4 := range w.families {
		a := w.asked[is4]
		if !a.IsValid() || w.wrong && w.current[is4].IsValid() {
			continue
		}
		if holder := taken[a]; holder != nil && holder != w.service {
			w.tell("%s belongs to Service %s/%s", a, holder.Namespace, holder.Name)
			continue
		}
		w.has[is4], taken[a] = a, w.service
	}
}

// fill assigns each family without an address its current one, or the first free address. A Service
// does not get a different address in place of a requested one.
func (w *want) fill(p *Pools, taken map[netip.Addr]*corev1.Service) {
	refused := w.problem != ""
	var kept []netip.Addr
	for _, is4 := range w.families {
		now := w.current[is4]
		switch {
		case w.has[is4].IsValid():
			continue
		case !refused && now.IsValid() && p.poolOf(now, w.pool):
			w.has[is4] = now
			continue
		case !refused:
			if a, ok := p.free(is4, w.pool, taken); ok {
				w.has[is4], taken[a] = a, w.service
				continue
			}
			w.tell("no pool has a free address of %s", map[bool]string{true: "IPv4", false: "IPv6"}[is4])
		}
		if now.IsValid() {
			w.has[is4], kept = now, append(kept, now)
		}
	}
	if len(w.lost) > 0 {
		w.tell("%s is no longer in any pool", join(w.lost))
	}
	if len(kept) > 0 {
		w.tell("the service keeps %s", join(kept))
	}
}

func (p *Pools) free(is4 bool, name string, taken map[netip.Addr]*corev1.Service) (netip.Addr, bool) {
	for _, one := range p.pools {
		if name != "" && one.name != name {
			continue
		}
		for _, r := range one.ranges {
			if r.First.Is4() != is4 {
				continue
			}
			for a := r.First; r.Contains(a); a = a.Next() {
				if taken[a] == nil {
					return a, true
				}
			}
		}
	}
	return netip.Addr{}, false
}

func (w *want) addresses() (list []netip.Addr) {
	for _, is4 := range w.families {
		if a := w.has[is4]; a.IsValid() {
			list = append(list, a)
		}
	}
	return list
}

// Announcer returns which of the nodes announces an address, or an empty string if there are no
// nodes. All nodes with the same list agree, and a node that joins or leaves moves only its own
// addresses.
func Announcer(a netip.Addr, nodes []string) (best string) {
	var most uint64
	for _, n := range nodes {
		h := fnv.New64a()
		_, _ = h.Write(append(a.AsSlice(), n...)) // never fails
		if sum := mix(h.Sum64()); best == "" || sum > most || sum == most && n < best {
			best, most = n, sum
		}
	}
	return best
}

// mix spreads the bits of a hash, as the end of MurmurHash3 does: FNV hashes of names that differ
// only in their last characters are close together.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

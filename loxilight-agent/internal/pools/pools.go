// SPDX-License-Identifier: Apache-2.0

// Package pools says which addresses of configured pools belong to which Services of type
// LoadBalancer, and which node announces each. It is arithmetic: it remembers nothing,
// since what was given out stands in the Services themselves.
package pools

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
)

// Class is the loadBalancerClass of Services that are ours; those without one are, too.
const Class = "loxilight.io/lb"

// Annotations of Services.
const (
	// AnnotationAddresses are the addresses that the Service is to have, with commas between
	// them; it goes before spec.loadBalancerIP.
	AnnotationAddresses = "loxilight.io/addresses"
	// AnnotationPool names the pool that its addresses come from.
	AnnotationPool = "loxilight.io/pool"
)

// Pools are sets of addresses. They do not change.
type Pools struct{ pools []pool }

type pool struct {
	name   string
	ranges []config.Range
}

// New makes pools of what was configured.
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

// Has says whether an address belongs to a pool.
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

// Assignment is what one Service is to have.
type Assignment struct {
	Service   *corev1.Service
	Addresses []netip.Addr // IPv4 first, or as the Service orders its families
	Problem   string       // why it does not have all that it wants; empty: it has
}

// Changed says whether the Service does not say so yet.
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

// Assign says for each Service that is ours which addresses it has. What it has stays as
// far as that may be; two that want the same are served in the order of their age.
func (p *Pools) Assign(services []*corev1.Service) []Assignment {
	var all []Assignment
	for _, s := range services {
		if p.ours(s) {
			all = append(all, Assignment{Service: s})
		}
	}
	slices.SortFunc(all, func(a, b Assignment) int {
		x, y := a.Service, b.Service
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
	})
	taken := map[netip.Addr]*corev1.Service{}
	wants := make([]want, len(all))
	for i := range all { // what they have, and what they ask for by its address
		wants[i] = p.read(all[i].Service)
		wants[i].hold(p, taken)
	}
	for i := range all {
		w := &wants[i]
		w.fill(p, taken)
		all[i].Addresses, all[i].Problem = w.addresses(), w.problem
	}
	return all
}

// ours says whether a Service gets its addresses from here. One that somebody else has
// given an address to is left alone, unless its class says that it is ours.
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

// want is what one Service wants.
type want struct {
	service  *corev1.Service
	families []bool // of each address: whether it is IPv4
	asked    map[bool]netip.Addr
	pool     string
	has      map[bool]netip.Addr // by family
	problem  string
}

func (p *Pools) read(s *corev1.Service) want {
	w := want{service: s, asked: map[bool]netip.Addr{}, has: map[bool]netip.Addr{}, pool: s.Annotations[AnnotationPool]}
	for _, f := range s.Spec.IPFamilies {
		w.families = append(w.families, f == corev1.IPv4Protocol)
	}
	if len(w.families) == 0 {
		w.families = []bool{!strings.Contains(s.Spec.ClusterIP, ":")}
	}
	text := s.Annotations[AnnotationAddresses]
	if text == "" {
		text = s.Spec.LoadBalancerIP
	}
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		a, err := netip.ParseAddr(word)
		switch {
		case err != nil:
			w.tell("%q is no address", word)
		case !slices.Contains(w.families, a.Is4()):
			w.tell("%s is of a family that the service does not have", a)
		case !p.poolOf(a, w.pool):
			w.tell("%s belongs to no pool that the service may have it from", a)
		case w.asked[a.Is4()].IsValid():
			w.tell("%s and %s are of one family: a service has one address of each", w.asked[a.Is4()], a)
		default:
			w.asked[a.Is4()] = a
		}
	}
	return w
}

func (w *want) tell(format string, args ...any) {
	if w.problem != "" {
		w.problem += "; "
	}
	w.problem += fmt.Sprintf(format, args...)
}

// hold takes what the Service has already, and what it asks for.
func (w *want) hold(p *Pools, taken map[netip.Addr]*corev1.Service) {
	for _, is4 := range w.families {
		if a := w.asked[is4]; a.IsValid() {
			if holder := taken[a]; holder != nil {
				w.tell("%s belongs to Service %s/%s", a, holder.Namespace, holder.Name)
				continue
			}
			w.has[is4], taken[a] = a, w.service
		}
	}
	if w.problem != "" { // it does not get another one in place of what it asks for
		return
	}
	for _, a := range Ingress(w.service) {
		if slices.Contains(w.families, a.Is4()) && !w.has[a.Is4()].IsValid() && p.poolOf(a, w.pool) && taken[a] == nil {
			w.has[a.Is4()], taken[a] = a, w.service
		}
	}
}

// fill takes the first free addresses for what is missing.
func (w *want) fill(p *Pools, taken map[netip.Addr]*corev1.Service) {
	if w.problem != "" {
		return
	}
	for _, is4 := range w.families {
		if w.has[is4].IsValid() {
			continue
		}
		a, ok := p.free(is4, w.pool, taken)
		if !ok {
			w.tell("no pool has a free address of %s", map[bool]string{true: "IPv4", false: "IPv6"}[is4])
			continue
		}
		w.has[is4], taken[a] = a, w.service
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

// Announcer returns which of the nodes announces an address; empty: there are none. All
// nodes that know the same nodes agree, and one that comes or goes moves its own only.
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

// mix spreads the bits of a sum, as the end of MurmurHash3 does: those of FNV differ little
// where only the ends of the names do.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

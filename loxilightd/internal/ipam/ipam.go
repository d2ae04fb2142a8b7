// SPDX-License-Identifier: Apache-2.0

// Package ipam assigns addresses to the pods of the node, from the subnets of its pod networks,
// and stores the owners on disk. It neither configures addresses nor observes pods: callers
// release leases.
package ipam

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
)

// Rest is how long a released address is not assigned again, unless no other is free or it is
// requested: other hosts may still send to its previous owner.
const Rest = 30 * time.Second

// Errors of [Store.Allocate]. Any other error is an I/O error; then no address was assigned.
var (
	ErrNetwork = errors.New("no such pod network") // or it has no subnet
	ErrAddress = errors.New("not an address for pods")
	ErrTaken   = errors.New("taken")
	ErrFull    = errors.New("no address is left")
)

// Owner is the owner of a lease: an interface of a container.
type Owner struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// String returns containerID/ifName.
func (o Owner) String() string { return o.ContainerID + "/" + o.IfName }

func (o Owner) compare(p Owner) int {
	return cmp.Or(strings.Compare(o.ContainerID, p.ContainerID), strings.Compare(o.IfName, p.IfName))
}

// Request requests addresses: one of each subnet of the network.
type Request struct {
	Network string // name of the PodNetwork
	Owner   Owner
	// Addresses are required addresses. In a subnet that contains none of them, a free address is
	// chosen.
	Addresses []netip.Addr
	Netns     string // path of the network namespace; empty: unknown
	Pod       string // namespace/name; empty: unknown
}

// Lease assigns addresses to an owner.
type Lease struct {
	Network string `json:"network"`
	Owner
	Addresses []netip.Prefix `json:"addresses"` // each with the prefix length of its subnet
	Netns     string         `json:"netns,omitempty"`
	Pod       string         `json:"pod,omitempty"`
	Boot      string         `json:"boot,omitempty"` // boot id of the machine when it was assigned
	Since     time.Time      `json:"since"`
}

// clone returns a deep copy.
func (l *Lease) clone() Lease {
	c := *l
	c.Addresses = slices.Clone(l.Addresses)
	return c
}

// Pool is the usage of a subnet.
type Pool struct {
	Network string
	Subnet  netip.Prefix
	Used    uint64 // addresses in use by pods
	Size    uint64 // addresses available for pods, at most 2^53
}

// Options are the parameters of a [Store].
type Options struct {
	// Path is the file with the leases; empty: they are not stored.
	Path string
	// Networks returns the subnets of all desired pod networks. They do not overlap. It must not
	// call the Store.
	Networks func() map[string][]netip.Prefix
	// Live returns leases that other sources report as in use. Leases that the file lacks are added
	// at the start. Nil: no other source.
	Live func() []Lease
	// Used returns the user of an address that is in use without a lease; nil: there is no such
	// address. It must not call the Store.
	Used func(netip.Addr) (who string, used bool)
	// Elsewhere reports whether a pod of another node has an address. Such an address is assigned
	// only on request; nil: there is no such address. It must not call the Store.
	Elsewhere func(netip.Addr) bool
	Log       *slog.Logger

	Now  func() time.Time // nil: time.Now
	Boot string           // boot id of the machine; empty: the kernel's
}

func (o *Options) setDefaults() error {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Used == nil {
		o.Used = func(netip.Addr) (string, bool) { return "", false }
	}
	if o.Elsewhere == nil {
		o.Elsewhere = func(netip.Addr) bool { return false }
	}
	if o.Boot == "" {
		b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return err
		}
		o.Boot = strings.TrimSpace(string(b))
	}
	return nil
}

// Boot returns the boot id of new leases.
func (s *Store) Boot() string { return s.opts.Boot }

// Gone returns why the owner of a lease cannot exist any more; empty: it may exist.
func (s *Store) Gone(l Lease) string {
	if l.Boot != "" && l.Boot != s.opts.Boot {
		return "the machine was booted since"
	}
	if l.Netns == "" {
		return ""
	}
	if _, err := os.Stat(l.Netns); errors.Is(err, os.ErrNotExist) {
		return "its network namespace " + l.Netns + " is gone"
	}
	return ""
}

// Leases returns all leases, by network and owner.
func (s *Store) Leases() []Lease {
	s.mu.Lock()
	list := make([]Lease, 0, len(s.leases))
	for _, l := range s.leases {
		list = append(list, l.clone())
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b Lease) int {
		return cmp.Or(strings.Compare(a.Network, b.Network), a.Owner.compare(b.Owner))
	})
	return list
}

// Lease returns the lease of an owner.
func (s *Store) Lease(o Owner) (Lease, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[o]; l != nil {
		return l.clone(), true
	}
	return Lease{}, false
}

// Pools returns the usage of the subnets, by network and subnet.
func (s *Store) Pools() []Pool {
	var list []Pool
	for name, subnets := range s.opts.Networks() {
		for _, subnet := range subnets {
			list = append(list, Pool{Network: name, Subnet: subnet, Size: size(subnet)})
		}
	}
	slices.SortFunc(list, func(a, b Pool) int {
		return cmp.Or(strings.Compare(a.Network, b.Network), a.Subnet.Compare(b.Subnet))
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.taken {
		for i := range list {
			if list[i].Subnet.Contains(a) {
				list[i].Used++
			}
		}
	}
	return list
}

// Allocate assigns addresses to an owner, and returns when the assignment is durable. An owner that
// already has addresses of the network receives the same ones again if they fit the request. After
// an error of ctx the assignment may exist: Release it.
func (s *Store) Allocate(ctx context.Context, r Request) (Lease, error) {
	subnets := s.opts.Networks()[r.Network]
	if err := s.begin(ctx); err != nil {
		return Lease{}, err
	}
	l, err := s.allocate(&r, subnets)
	if err != nil {
		s.mu.Unlock()
		return Lease{}, err
	}
	given := l.clone()
	if err := s.commit(ctx); err != nil {
		return Lease{}, err
	}
	return given, nil
}

// Release releases the addresses of an owner, and returns when the release is durable. Releasing an
// owner without addresses is no error.
func (s *Store) Release(ctx context.Context, o Owner) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	if l := s.leases[o]; l != nil {
		s.release(l)
	}
	return s.commit(ctx)
}

// Keep releases the leases of a network for which keep returns false, and returns them. keep must
// not call the Store.
func (s *Store) Keep(ctx context.Context, network string, keep func(Lease) bool) ([]Lease, error) {
	var gone []Lease
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	for _, l := range s.leases {
		if l.Network == network && !keep(l.clone()) {
			gone = append(gone, l.clone())
			s.release(l)
		}
	}
	if err := s.commit(ctx); err != nil {
		return nil, err
	}
	slices.SortFunc(gone, func(a, b Lease) int { return a.Owner.compare(b.Owner) })
	return gone, nil
}

// Problem describes a past or present fault of the file; empty: no fault.
func (s *Store) Problem() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil && !s.flushing && !s.closed { // writing may be possible again
		s.failure = s.file.rewrite(s.whole())
	}
	switch {
	case s.failure != nil:
		return "no address can be assigned or released: " + s.failure.Error()
	default:
		return s.problem
	}
}

// Close waits until all pending operations are done.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.flushes.Wait()
	return s.file.close()
}

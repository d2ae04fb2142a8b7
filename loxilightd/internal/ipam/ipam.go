// SPDX-License-Identifier: Apache-2.0

// Package ipam assigns addresses from the subnets of the node's pod networks to pods, and stores
// the owners on disk. It neither configures addresses nor observes pods: callers release leases.
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

// Rest is how long a released address is not assigned again, unless it is requested or no other
// address is free: other hosts may still be sending to its previous owner.
const Rest = 30 * time.Second

// Errors of [Store.Allocate]. Any other error is an I/O error, in which case no address was
// assigned.
var (
	ErrNetwork = errors.New("no such pod network") // or the pod network has no subnet
	ErrAddress = errors.New("not an address for pods")
	ErrTaken   = errors.New("taken")
	ErrFull    = errors.New("no address is left")
)

// Owner is the owner of a lease: a container's interface.
type Owner struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// String returns containerID/ifName.
func (o Owner) String() string { return o.ContainerID + "/" + o.IfName }

func (o Owner) compare(p Owner) int {
	return cmp.Or(strings.Compare(o.ContainerID, p.ContainerID), strings.Compare(o.IfName, p.IfName))
}

// Request requests addresses: one from each of the network's subnets.
type Request struct {
	Network string // name of the PodNetwork
	Owner   Owner
	// Addresses are the addresses that the owner must get. In a subnet that contains none of them,
	// a free address is chosen.
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
	Boot      string         `json:"boot,omitempty"` // the machine's boot id when the lease was assigned
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
	// Path is the file with the leases; empty: the leases are not stored.
	Path string
	// Networks returns the subnets of all desired pod networks. The subnets do not overlap. The
	// function must not call the Store.
	Networks func() map[string][]netip.Prefix
	// Live returns leases that other sources report as in use. Leases that are missing from the
	// file are added at startup. Nil: no other source.
	Live func() []Lease
	// Used returns who uses an address that is in use without a lease. The function must not call
	// the Store. Nil: no address is in use without a lease.
	Used func(netip.Addr) (who string, used bool)
	// Elsewhere reports whether a pod on another node has an address. Such an address is assigned
	// only on request. The function must not call the Store. Nil: no pod on another node has an
	// address.
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

// Boot returns the boot id for new leases.
func (s *Store) Boot() string { return s.opts.Boot }

// Gone returns why the owner of a lease can no longer exist, or an empty string if it may exist.
func (s *Store) Gone(l Lease) string {
	if l.Boot != "" && l.Boot != s.opts.Boot {
		return "the machine has rebooted since"
	}
	if l.Netns == "" {
		return ""
	}
	if _, err := os.Stat(l.Netns); errors.Is(err, os.ErrNotExist) {
		return "its network namespace " + l.Netns + " no longer exists"
	}
	return ""
}

// Leases returns all leases, ordered by network and owner.
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

// Pools returns the usage of the subnets, ordered by network and subnet.
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
// already has addresses in the network receives the same addresses again if they fit the request.
// After an error from ctx, the assignment may exist, and must be released with Release.
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
// owner that has no addresses is not an error.
func (s *Store) Release(ctx context.Context, o Owner) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	if l := s.leases[o]; l != nil {
		s.release(l)
	}
	return s.commit(ctx)
}

// Keep releases the leases in a network for which the function keep returns false, and returns the
// released leases. keep must not call the Store.
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

// Problem describes a past or present fault in the file. It returns an empty string if there is no
// fault.
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

// Close waits until all pending operations have completed.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.flushes.Wait()
	return s.file.close()
}

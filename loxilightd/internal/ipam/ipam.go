// SPDX-License-Identifier: Apache-2.0

// Package ipam gives the pods of the node their addresses, out of the subnets of its
// pod networks, and remembers on disk whose each is. It neither configures addresses
// nor knows what became of a pod; that a lease is not needed any more it is told.
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

// Rest is how long an address that was given back is not given out again, unless no
// other is left or somebody asks for it: others may still send to who had it before.
const Rest = 30 * time.Second

// What [Store.Allocate] may refuse. Any other error is one of the disk: nothing was
// given then.
var (
	ErrNetwork = errors.New("no such pod network") // or it has no subnet
	ErrAddress = errors.New("not an address for pods")
	ErrTaken   = errors.New("taken")
	ErrFull    = errors.New("no address is left")
)

// Owner is whom a lease belongs to: an interface of a container.
type Owner struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// String returns containerID/ifName.
func (o Owner) String() string { return o.ContainerID + "/" + o.IfName }

func (o Owner) compare(p Owner) int {
	return cmp.Or(strings.Compare(o.ContainerID, p.ContainerID), strings.Compare(o.IfName, p.IfName))
}

// Request asks for addresses: one of each subnet of the network.
type Request struct {
	Network string // name of the PodNetwork
	Owner   Owner
	// Addresses are asked for and no others will do. A subnet in which none of them
	// lies gives one as usual.
	Addresses []netip.Addr
	Netns     string // path of the network namespace; empty: not known
	Pod       string // namespace/name; empty: not known
}

// Lease says that addresses belong to an owner.
type Lease struct {
	Network string `json:"network"`
	Owner
	Addresses []netip.Prefix `json:"addresses"` // each with the length of its subnet
	Netns     string         `json:"netns,omitempty"`
	Pod       string         `json:"pod,omitempty"`
	Boot      string         `json:"boot,omitempty"` // id of the boot of the machine in which it was given
	Since     time.Time      `json:"since"`
}

// clone returns a copy that shares nothing.
func (l *Lease) clone() Lease {
	c := *l
	c.Addresses = slices.Clone(l.Addresses)
	return c
}

// Pool tells how much of a subnet is in use.
type Pool struct {
	Network string
	Subnet  netip.Prefix
	Used    uint64 // addresses that pods have
	Size    uint64 // addresses that there are for pods, at most 2^53
}

// Options are what a [Store] needs.
type Options struct {
	// Path is the file that the leases are kept in; empty: they are not kept.
	Path string
	// Networks returns the subnets of all pod networks as they are wanted now. No two
	// of them overlap. It must not call the Store.
	Networks func() map[string][]netip.Prefix
	// Live returns leases of which is known from elsewhere that they are in use. What
	// of them the file lacks is taken over at the start. Nil: nothing is known.
	Live func() []Lease
	// Used says who has an address of which no lease tells; nil: nobody. It must not call
	// the Store.
	Used func(netip.Addr) (who string, used bool)
	// Elsewhere says whether a pod of another node has an address, which is given to who asks
	// for it alone; nil: none has any. It must not call the Store.
	Elsewhere func(netip.Addr) bool
	Log       *slog.Logger

	Now  func() time.Time // nil: time.Now
	Boot string           // id of this boot of the machine; empty: the kernel's
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

// Boot is the id of the boot of the machine that new leases bear.
func (s *Store) Boot() string { return s.opts.Boot }

// Gone says why the owner of a lease cannot be alive any more; empty: it may be.
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

// Lease returns that of an owner.
func (s *Store) Lease(o Owner) (Lease, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[o]; l != nil {
		return l.clone(), true
	}
	return Lease{}, false
}

// Pools tells how full the subnets are, by network and subnet.
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

// Allocate gives addresses to an owner, and answers when that is durable. An owner that
// has some of the network is given the same again. An error of ctx leaves open whether
// something was given: Release it.
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

// Release gives back what an owner has, and answers when that is durable. Whoever has
// nothing has nothing afterwards: that is no error.
func (s *Store) Release(ctx context.Context, o Owner) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	if l := s.leases[o]; l != nil {
		s.release(l)
	}
	return s.commit(ctx)
}

// Keep gives back the leases of a network that keep does not want kept, and returns
// them. It must not call the Store.
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

// Problem says what was wrong with the file at the start, or is now; empty: nothing.
func (s *Store) Problem() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil && !s.flushing && !s.closed { // it may have become possible
		s.failure = s.file.rewrite(s.whole())
	}
	switch {
	case s.failure != nil:
		return "no address can be given out or taken back: " + s.failure.Error()
	default:
		return s.problem
	}
}

// Close waits until all that was begun is done.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.flushes.Wait()
	return s.file.close()
}

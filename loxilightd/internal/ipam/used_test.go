// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"net/netip"
	"testing"
)

// TestUsedWithoutLease: an address in use without a lease is not assigned.
func TestUsedWithoutLease(t *testing.T) {
	used := map[netip.Addr]bool{}
	s, err := Open(Options{
		Networks: func() map[string][]netip.Prefix {
			return map[string][]netip.Prefix{"default": {netip.MustParsePrefix("10.7.1.0/28")}}
		},
		Used: func(a netip.Addr) (string, bool) { return "Endpoint/by-hand", used[a] }, Boot: "first",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for _, a := range []string{"10.7.1.3", "10.7.1.4", "10.7.1.6", "10.7.1.14"} {
		used[netip.MustParseAddr(a)] = true
	}
	give := func(id string, asked ...netip.Addr) (Lease, error) {
		return s.Allocate(t.Context(), Request{Network: "default", Owner: Owner{id, "eth0"}, Addresses: asked})
	}
	if _, err := give("asks", netip.MustParseAddr("10.7.1.4")); !errors.Is(err, ErrTaken) {
		t.Errorf("asked for a used address: %v", err)
	}
	given := map[netip.Addr]string{}
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} { // 12 addresses minus 4 in use
		l, err := give(id)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		a := l.Addresses[0].Addr()
		if used[a] || given[a] != "" {
			t.Errorf("%s has %s, which is used by %q", id, a, given[a])
		}
		given[a] = id
	}
	if _, err := give("i"); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	if err := s.Release(t.Context(), Owner{"c", "eth0"}); err != nil {
		t.Fatal(err)
	}
	if l, err := give("i"); err != nil || given[l.Addresses[0].Addr()] != "c" {
		t.Errorf("the address that rests: %v, %v", l.Addresses, err)
	}
}

// TestElsewhere: an address of a pod on another node is assigned only on request.
func TestElsewhere(t *testing.T) {
	r := newRig(t, "10.7.1.0/29") // addresses 3 to 6
	r.o.Elsewhere = func(a netip.Addr) bool { return a == netip.MustParseAddr("10.7.1.4") }
	r.reopen()
	r.want("a", "[10.7.1.3/29]")
	r.want("b", "[10.7.1.5/29]")
	r.want("c", "[10.7.1.6/29]")
	r.refused("d", ErrFull)
	r.want("d", "[10.7.1.4/29]", "10.7.1.4")
	r.release("d")
	r.refused("e", ErrFull) // the address is not assigned after the release either
	r.release("a")
	r.want("e", "[10.7.1.3/29]")
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"strings"
)

// Range is a range of addresses of one family, both ends included.
type Range struct{ First, Last netip.Addr }

// ParseRange reads an address, a prefix or a range, as in 192.0.2.10-192.0.2.20. All addresses of a
// prefix count, including the first and the last.
func ParseRange(text string) (Range, error) {
	if first, last, ok := strings.Cut(text, "-"); ok {
		a, errA := netip.ParseAddr(strings.TrimSpace(first))
		b, errB := netip.ParseAddr(strings.TrimSpace(last))
		if errA != nil || errB != nil || a.Is4() != b.Is4() || b.Less(a) {
			return Range{}, fmt.Errorf("%q is not a range, such as 192.0.2.10-192.0.2.20", text)
		}
		return Range{a, b}, nil
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.Is4In6() {
		return Range{a, a}, nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return Range{}, fmt.Errorf("%q is neither an address nor a prefix nor a range", text)
	}
	p = p.Masked()
	return Range{p.Addr(), lastOf(p)}, nil
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// Contains reports whether a lies in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && !a.Less(r.First) && !r.Last.Less(a)
}

// SPDX-License-Identifier: Apache-2.0

package object

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
)

// families is a set of address families.
type families uint8

const (
	ipv4 families = 1 << iota
	ipv6
	bothFamilies = ipv4 | ipv6
)

func (f families) String() string {
	return [...]string{"no address", "IPv4", "IPv6", "IPv4 and IPv6"}[f]
}

func familyOf(a netip.Addr) families {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// checkAddr rejects scoped addresses and IPv4-mapped IPv6 addresses.
func checkAddr(a netip.Addr) error {
	switch {
	case a.Zone() != "":
		return fmt.Errorf("has a scope: omit %%%s", a.Zone())
	case a.Is4In6():
		return fmt.Errorf("is an IPv4-mapped IPv6 address: write %s", a.Unmap())
	}
	return nil
}

// parsePrefix parses an address, or a prefix whose host bits are zero.
func parsePrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), checkAddr(a)
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("is not an address or prefix; expected e.g. 10.1.2.3, 10.0.0.0/8 or 2001:db8::/32")
	}
	return p, checkPrefix(p)
}

// checkPrefix rejects prefixes with host bits, and IPv4-mapped prefixes.
func checkPrefix(p netip.Prefix) error {
	switch a := p.Addr(); {
	case a.Is4In6() && p.Bits() >= 96:
		return fmt.Errorf("is an IPv4-mapped IPv6 prefix: write %s", netip.PrefixFrom(a.Unmap(), p.Bits()-96).Masked())
	case a.Is4In6():
		return checkAddr(a)
	case p.Masked() != p:
		return fmt.Errorf("has host bits set: write %s", p.Masked())
	}
	return nil
}

// mostOfRange is the maximum number of prefixes to which an address range can expand: less than
// twice the bits of an address.
const mostOfRange = 256

// parsePrefixes parses an address, a prefix, or a range of addresses (into the prefixes that cover
// it).
func parsePrefixes(text string) ([]netip.Prefix, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		p, err := parsePrefix(text)
		return []netip.Prefix{p}, err
	}
	a, aerr := netip.ParseAddr(first)
	b, berr := netip.ParseAddr(last)
	if aerr != nil || berr != nil {
		return nil, fmt.Errorf("is not a range of addresses; expected e.g. 192.0.2.10-192.0.2.20")
	}
	for _, addr := range []netip.Addr{a, b} {
		if err := checkAddr(addr); err != nil {
			return nil, err
		}
	}
	switch {
	case a.Is4() != b.Is4():
		return nil, fmt.Errorf("begins in one address family and ends in the other")
	case b.Less(a):
		return nil, fmt.Errorf("is reversed: write %s-%s", b, a)
	}
	return splitRange(a, b), nil
}

// splitRange returns, in order, the prefixes that exactly cover the range from a to b.
func splitRange(a, b netip.Addr) []netip.Prefix {
	var list []netip.Prefix
	at, last := numberOf(a), numberOf(b)
	for range mostOfRange {
		// This is the largest prefix that starts at "at" and does not extend beyond b.
		size := min(at.trailingZeros(), a.BitLen())
		for size > 0 && last.less(at.withOnes(size)) {
			size--
		}
		list = append(list, netip.PrefixFrom(at.addr(a.Is4()), a.BitLen()-size))
		end := at.withOnes(size)
		if end == last {
			break
		}
		at = end.next()
	}
	return list
}

// number is a 128-bit number that represents an address.
type number struct{ high, low uint64 }

func numberOf(a netip.Addr) number {
	if a.Is4() {
		b := a.As4()
		return number{low: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return number{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (n number) addr(is4 bool) netip.Addr {
	if is4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(n.low))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.high)
	binary.BigEndian.PutUint64(b[8:], n.low)
	return netip.AddrFrom16(b)
}

func (n number) trailingZeros() int {
	if n.low != 0 {
		return bits.TrailingZeros64(n.low)
	}
	return 64 + bits.TrailingZeros64(n.high)
}

// withOnes returns n with the given number of low-order bits set.
func (n number) withOnes(count int) number {
	if count <= 64 {
		return number{n.high, n.low | (1<<count - 1)}
	}
	return number{n.high | (1<<(count-64) - 1), ^uint64(0)}
}

func (n number) less(m number) bool {
	return n.high < m.high || n.high == m.high && n.low < m.low
}

func (n number) next() number {
	low, carry := bits.Add64(n.low, 1, 0)
	return number{n.high + carry, low}
}

// groupPrefix marks a reference to an AddressGroup in a rule.
const groupPrefix = "group:"

// parseGroup returns the group that a word refers to; false if the word is not a reference.
func parseGroup(text string) (datapath.GroupName, bool, error) {
	name, ok := strings.CutPrefix(text, groupPrefix)
	if !ok {
		return "", false, nil
	}
	if name == "" || len(name) > maxName || !namePattern.MatchString(name) {
		return "", true, fmt.Errorf("%q is not a valid name of an AddressGroup", decode.Shorten(name))
	}
	return datapath.GroupName(name), true, nil
}

// checkHost checks that an address is the unicast address of one host.
func checkHost(a netip.Addr) error {
	if err := checkAddr(a); err != nil {
		return err
	}
	if a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return errors.New("is not the address of one host")
	}
	return nil
}

// parseHost parses the address of one host.
func parseHost(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, fmt.Errorf("is not an address; expected e.g. 192.0.2.1 or 2001:db8::1")
	}
	return a, checkHost(a)
}

// checkDevice checks that name is a valid Linux interface name.
func checkDevice(field, name string) *api.Error { return checkDeviceName(field, name, maxDevice) }

// checkDeviceName checks that name is a valid Linux interface name and is not too long; most is the
// maximum length.
func checkDeviceName(field, name string, most int) *api.Error {
	if name == "" {
		return invalid(field, "is missing: want the name of a device")
	}
	bad := func(r rune) bool { return r <= ' ' || r == '/' || r == ':' || r > '~' }
	if len(name) > most || name == "." || name == ".." || strings.ContainsFunc(name, bad) {
		return invalid(field, "%q is not a device name: want 1 to %d letters, digits or signs, but not / or :", decode.Shorten(name), most)
	}
	return nil
}

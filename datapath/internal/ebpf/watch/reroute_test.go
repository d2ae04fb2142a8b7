// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReroutes: a set of prefixes concerns exactly the addresses in them; a very large set concerns all.
func TestReroutes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	address := func() netip.Addr {
		var b [16]byte
		for i := range b {
			b[i] = byte(random.IntN(3)) // so that prefixes overlap
		}
		if random.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte(b[:4]))
		}
		b[0] = 0x20
		return netip.AddrFrom16(b)
	}
	for range 200 {
		var set, half reroutes
		var all []netip.Prefix
		for range random.IntN(8) {
			a := address()
			p := netip.PrefixFrom(a, random.IntN(a.BitLen()+1))
			all = append(all, p)
			if random.IntN(2) == 0 {
				set.add(p)
			} else {
				half.add(p)
			}
		}
		set.addAll(&half)
		if set.isEmpty() != (len(all) == 0) {
			t.Fatalf("%v: empty: %t", all, set.isEmpty())
		}
		for range 50 {
			a, want := address(), false
			for _, p := range all {
				want = want || p.Contains(a)
			}
			if got := set.addresses().contain(a); got != want {
				t.Fatalf("%v concern %s: %t, want %t", all, a, got, want)
			}
		}
	}
	var set, other reroutes
	for i := range uint32(reroutesMax + 1) {
		set.add(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
	}
	other.addAll(&set)
	if !set.all || !other.all || other.isEmpty() {
		t.Error("too many prefixes do not concern every address")
	}
}

// TestRerouteOf: which prefix a message concerns.
func TestRerouteOf(t *testing.T) {
	const replaced = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	route := func(family, bits, table byte, flags uint32, to string) []byte {
		b := []byte{family, bits, 0, 0, table, 0, 0, 0}
		b = binary.NativeEndian.AppendUint32(b, flags)
		if to != "" {
			a := netip.MustParseAddr(to).AsSlice()
			b = binary.NativeEndian.AppendUint16(b, uint16(4+len(a)))
			b = binary.NativeEndian.AppendUint16(b, unix.RTA_DST)
			b = append(b, a...)
		}
		return b
	}
	for name, tt := range map[string]struct {
		kind, flags uint16
		data        []byte
		prefix      string // "": any
		ok          bool
	}{
		"IPv4":             {unix.RTM_NEWROUTE, 0, route(unix.AF_INET, 24, 254, 0, "192.0.2.0"), "192.0.2.0/24", true},
		"IPv6, deleted":    {unix.RTM_DELROUTE, 0, route(unix.AF_INET6, 48, 7, 0, "2001:db8:1::"), "2001:db8:1::/48", true},
		"default, IPv4":    {unix.RTM_DELROUTE, 0, route(unix.AF_INET, 0, 254, 0, ""), "0.0.0.0/0", true},
		"default, IPv6":    {unix.RTM_NEWROUTE, 0, route(unix.AF_INET6, 0, 254, 0, ""), "::/0", true},
		"local":            {unix.RTM_NEWROUTE, 0, route(unix.AF_INET, 16, 255, 0, "10.9.0.0"), "10.9.0.0/16", true},
		"a copy":           {unix.RTM_NEWROUTE, 0, route(unix.AF_INET6, 128, 254, unix.RTM_F_CLONED, "2001:db8::1"), "", false},
		"short":            {unix.RTM_NEWROUTE, 0, []byte{2, 24}, "", false},
		"nexthop":          {unix.RTM_NEWNEXTHOP, unix.NLM_F_CREATE, nil, "", false},
		"nexthop replaced": {unix.RTM_NEWNEXTHOP, replaced, nil, "", true},
		"nexthop deleted":  {unix.RTM_DELNEXTHOP, 0, nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			p, ok := rerouteOf(&syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: tt.kind, Flags: tt.flags}, Data: tt.data})
			if want, _ := netip.ParsePrefix(tt.prefix); p != want || ok != tt.ok {
				t.Errorf("%s, %t; want %s, %t", p, ok, want, tt.ok)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package object

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// FuzzRuleSpecs: no input makes a parser panic. The stored spec has the same meaning as the input,
// and parsing it again does not change it.
func FuzzRuleSpecs(f *testing.F) {
	kinds := []string{api.KindBridge, api.KindRoute, api.KindAddressGroup, api.KindNAT, api.KindFirewallRule}
	for _, tt := range badRules {
		for i, kind := range kinds {
			spec := tt.spec
			if tt.kind == "match" {
				kind, spec = kinds[i], `{"action":"deny","type":"masquerade","match":`+spec+`}`
			}
			if tt.kind == kind || tt.kind == "match" {
				f.Add(uint8(i), spec)
			}
		}
	}
	f.Add(uint8(4), `{"action":"deny","match":{"ports":"80","protocol":"tcp","source":["10.0.0.0-10.0.0.9","group:a"]}}`)
	f.Fuzz(func(t *testing.T, which uint8, spec string) {
		parse := kindSpecs[kinds[int(which)%len(kinds)]].parse
		v, canonical, err := parse([]byte(spec), nil)
		if err != nil {
			if err.Message == "" || err.Data == nil {
				t.Fatalf("an error without words: %+v", err)
			}
			return
		}
		again, kept, err := parse(canonical, nil)
		if err != nil || !reflect.DeepEqual(v, again) || string(kept) != string(canonical) {
			t.Fatalf("%s is kept as %s, which is kept as %s, and means %+v; want %+v (%v)", spec, canonical, kept, again, v, err)
		}
	})
}

// lastOf returns the last address in p, computed bit by bit.
func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for i := p.Bits(); i < p.Addr().BitLen(); i++ {
		bytes[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(bytes) // bytes has the length of an address
	return last
}

// TestSplitRange compares prefixes with the range that they cover.
func TestSplitRange(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	addr := func(size int) netip.Addr {
		bytes := make([]byte, size)
		for i := range bytes {
			bytes[i] = [...]byte{0, 255, byte(random.Uint32()), 1}[random.IntN(4)]
		}
		a, _ := netip.AddrFromSlice(bytes) // bytes has the length of an address
		return a
	}
	for range 5000 {
		size := 4 + 12*random.IntN(2)
		a, b := addr(size), addr(size)
		if b.Less(a) {
			a, b = b, a
		}
		list := splitRange(a, b)
		at := a
		for i, p := range list {
			if p.Masked() != p || p.Addr() != at {
				t.Fatalf("%s-%s: prefix %d is %s, want a prefix that begins with %s", a, b, i, p, at)
			}
			if i > 0 && list[i-1].Bits() == p.Bits() && netip.PrefixFrom(list[i-1].Addr(), p.Bits()-1).Masked().Addr() == list[i-1].Addr() {
				t.Fatalf("%s-%s: %s and %s are one prefix", a, b, list[i-1], p)
			}
			at = lastOf(p).Next()
		}
		if lastOf(list[len(list)-1]) != b {
			t.Fatalf("%s-%s ends with %s", a, b, list[len(list)-1])
		}
	}
}

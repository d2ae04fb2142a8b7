// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/big"
	"net/netip"
	"testing"
)

func TestSlotCount(t *testing.T) {
	for _, tt := range []struct{ backends, want int }{
		{0, 0}, {1, 1}, {2, 251}, {3, 509}, {10, 1021}, {11, 2039}, {655, 65521}, {656, 131071}, {100000, 131071},
	} {
		if got := SlotCount(tt.backends); got != tt.want {
			t.Errorf("SlotCount(%d) = %d, want %d", tt.backends, got, tt.want)
		}
	}
	for _, n := range slotSizes {
		if !big.NewInt(int64(n)).ProbablyPrime(20) {
			t.Errorf("slot size %d is no prime", n)
		}
	}
}

func TestCost(t *testing.T) {
	s := Service{
		Frontends: []Frontend{{netip.MustParseAddrPort("10.96.0.7:53"), UDP}},
		Backends: []Backend{
			{Addr: netip.MustParseAddrPort("10.0.1.2:5353")},
			{Addr: netip.MustParseAddrPort("10.0.1.3:5353")},
			{Addr: netip.MustParseAddrPort("[2001:db8::4]:5353")},
		},
	}
	if got, want := s.Cost(), (Cost{Frontends: 1, Backends: 3}); got != want {
		t.Errorf("Cost = %+v, want %+v", got, want)
	}
}

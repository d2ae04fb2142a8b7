// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"net/netip"
	"strings"

	"github.com/loxilight/loxilight/datapath"
)

// Text returns the name.
func (k *NatName) Text() datapath.NATName {
	var b strings.Builder
	for _, c := range k.Name {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return datapath.NATName(b.String())
}

// Text returns the name.
func (k *PeerName) Text() string {
	name, _, _ := bytes.Cut(k.Name[:], []byte{0})
	return string(name)
}

// DeviceText returns the name of the device.
func (k *PeerName) DeviceText() string {
	name, _, _ := bytes.Cut(k.Device[:], []byte{0})
	return string(name)
}

// PeerPrefixKeyOf encodes p.
func PeerPrefixKeyOf(p netip.Prefix) PeerPrefixKey {
	return PeerPrefixKey{PrefixLen: uint32(Bits128(p)), Addr: AddrOf(p.Masked().Addr())}
}

// Prefix decodes k.
func (k PeerPrefixKey) Prefix() netip.Prefix {
	a, bits := k.Addr.Addr(), int(k.PrefixLen)
	if a.Is4() {
		bits -= 96
	}
	return netip.PrefixFrom(a, bits)
}

// FamilyOf returns 0 for IPv4 and 1 for IPv6, the index into per-family arrays.
func FamilyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// Bits128 returns the length of p as a prefix of 128 bits.
func Bits128(p netip.Prefix) int {
	if p.Addr().Is4() {
		return p.Bits() + 96
	}
	return p.Bits()
}

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
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return PeerPrefixKey{PrefixLen: uint32(bits), Addr: AddrOf(p.Masked().Addr())}
}

// Prefix decodes k.
func (k PeerPrefixKey) Prefix() netip.Prefix {
	a, bits := k.Addr.Addr(), int(k.PrefixLen)
	if a.Is4() {
		bits -= 96
	}
	return netip.PrefixFrom(a, bits)
}

// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
)

// Tuple returns the addresses and ports of the key, in host byte order.
func (k *Ct4Key) Tuple() datapath.Tuple {
	return datapath.Tuple{
		Source:      netip.AddrPortFrom(Addr4(k.Saddr), Swap16(k.Sport)),
		Destination: netip.AddrPortFrom(Addr4(k.Daddr), Swap16(k.Dport)),
	}
}

// Tuple returns the addresses and ports of the key, in host byte order.
func (k *Ct6Key) Tuple() datapath.Tuple {
	return datapath.Tuple{
		Source:      netip.AddrPortFrom(k.Saddr.Addr(), Swap16(k.Sport)),
		Destination: netip.AddrPortFrom(k.Daddr.Addr(), Swap16(k.Dport)),
	}
}

// Protocol returns the number of the protocol.
func (k *Ct4Key) Protocol() uint8 { return k.Proto }

// Protocol returns the number of the protocol.
func (k *Ct6Key) Protocol() uint8 { return k.Proto }

// Namespace returns the netns of the connection, as in struct ct4_key.
func (k *Ct4Key) Namespace() uint8 { return k.Netns }

// Namespace returns the netns of the connection, as in struct ct6_key.
func (k *Ct6Key) Namespace() uint8 { return k.Netns }

// Common returns the part of the value that both families have.
func (v *Ct4Val) Common() *CtMeta { return &v.Meta }

// Common returns the part of the value that both families have.
func (v *Ct6Val) Common() *CtMeta { return &v.Meta }

// Twin returns the key of the other direction; k is the key of v.
func (v *Ct4Val) Twin(k *Ct4Key) Ct4Key {
	return Ct4Key{Saddr: v.Daddr, Daddr: v.Saddr, Sport: v.Dport, Dport: v.Sport, Proto: k.Proto, Netns: k.Netns, Domain: k.Domain}
}

// Twin returns the key of the other direction; k is the key of v.
func (v *Ct6Val) Twin(k *Ct6Key) Ct6Key {
	return Ct6Key{Saddr: v.Daddr, Daddr: v.Saddr, Sport: v.Dport, Dport: v.Sport, Proto: k.Proto, Netns: k.Netns, Domain: k.Domain}
}

// Expire fills in the key of the connection to be deleted.
func (k *Ct4Key) Expire(e *ExpirerExpire) {
	e.Family = 4
	e.Key4.Saddr, e.Key4.Daddr, e.Key4.Sport, e.Key4.Dport = k.Saddr, k.Daddr, k.Sport, k.Dport
	e.Key4.Proto, e.Key4.Netns, e.Key4.Domain = k.Proto, k.Netns, k.Domain
}

// Expire fills in the key of the connection to be deleted.
func (k *Ct6Key) Expire(e *ExpirerExpire) {
	e.Family = 6
	e.Key6.Saddr.Word, e.Key6.Daddr.Word, e.Key6.Sport, e.Key6.Dport = k.Saddr.Word, k.Daddr.Word, k.Sport, k.Dport
	e.Key6.Proto, e.Key6.Netns, e.Key6.Domain = k.Proto, k.Netns, k.Domain
}

// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"encoding/binary"
	"math"
	"net/netip"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/btf"

	"github.com/loxilight/loxilight/datapath"
)

// Constants that the headers define with #define only; a test compares the values.
const (
	TickShift      = 27    // TICK_SHIFT
	WordsPerChunk  = 112   // WORDS_PER_CHUNK
	MembersPerByte = 256   // MEMBERS_PER_BYTE
	NexthopCount   = 16384 // NEXTHOP_COUNT
	TunnelPorts    = 8     // TUNNEL_PORTS
	HeaderMax      = 96    // TUNNEL_HEADER_MAX
)

// AddrOf encodes a; IPv4 addresses become IPv4-mapped (::ffff:a.b.c.d).
func AddrOf(a netip.Addr) (k Addr) {
	k.Word = WordsOf(a.As16())
	return k
}

// WordsOf returns the words of an address, in the order of the maps.
func WordsOf(b [16]byte) (words [4]uint32) {
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return words
}

// Addr decodes k.
func (k Addr) Addr() netip.Addr {
	var b [16]byte
	for i, w := range k.Word {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	return netip.AddrFrom16(b).Unmap()
}

// Addr4 decodes an IPv4 address.
func Addr4(w uint32) netip.Addr {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], w)
	return netip.AddrFrom4(b)
}

// Swap16 converts a port between host and network byte order.
func Swap16(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

// ServiceKeyOf encodes f.
func ServiceKeyOf(f datapath.Frontend) ServiceKey {
	return ServiceKey{Addr: AddrOf(f.Addr.Addr()), Port: Swap16(f.Addr.Port()), Proto: uint8(f.Protocol)}
}

// Frontend decodes k.
func (k ServiceKey) Frontend() datapath.Frontend {
	return datapath.Frontend{
		Addr:     netip.AddrPortFrom(k.Addr.Addr(), Swap16(k.Port)),
		Protocol: datapath.Protocol(k.Proto),
	}
}

// BackendAddr returns the address and port of the backend.
func (k Backend) BackendAddr() datapath.BackendAddr {
	return netip.AddrPortFrom(k.Addr.Addr(), Swap16(k.Port))
}

// SourceRangeKeyOf encodes p; the id of the set is part of the prefix.
func SourceRangeKeyOf(setID uint32, p netip.Prefix) SourceRangeKey {
	return SourceRangeKey{PrefixLen: uint32(32 + Bits128(p)), SetId: setID, Addr: AddrOf(p.Masked().Addr())}
}

// Prefix returns the prefix, without the id of the set.
func (k SourceRangeKey) Prefix() netip.Prefix {
	a, bits := k.Addr.Addr(), int(k.PrefixLen)-32
	if a.Is4() {
		bits -= 96
	}
	return netip.PrefixFrom(a, bits)
}

// ServiceNameOf encodes name, truncated to the length of the field.
func ServiceNameOf(name datapath.ServiceName) (k ServiceName) {
	for i := range min(len(name), len(k.Name)-1) {
		k.Name[i] = int8(name[i])
	}
	return k
}

// Text returns the name.
func (k *ServiceName) Text() datapath.ServiceName {
	var b strings.Builder
	for _, c := range k.Name {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return datapath.ServiceName(b.String())
}

// Text returns the name.
func (k *RuleName) Text() datapath.RuleName {
	name, _, _ := bytes.Cut(k.Name[:], []byte{0})
	return datapath.RuleName(name)
}

// Algorithms are the algorithms of Services.
var Algorithms = map[datapath.Algorithm]Algorithm{
	datapath.Maglev:           AlgorithmALG_MAGLEV,
	datapath.Random:           AlgorithmALG_RANDOM,
	datapath.RoundRobin:       AlgorithmALG_ROUND_ROBIN,
	datapath.LeastConnections: AlgorithmALG_LEAST_CONNECTIONS,
	datapath.SourceHash:       AlgorithmALG_SOURCE_HASH,
}

// SourceModes are the source modes of Services.
var SourceModes = map[datapath.SourceMode]SourceMode{
	datapath.SourceAuto: SourceModeSOURCE_AUTO,
	datapath.SourceKeep: SourceModeSOURCE_KEEP,
	datapath.SourceSNAT: SourceModeSOURCE_SNAT,
}

// TunnelTypes are the types of tunnels.
var TunnelTypes = map[datapath.TunnelType]TunnelType{
	datapath.TunnelVXLAN:  TunnelTypeTUNNEL_VXLAN,
	datapath.TunnelGeneve: TunnelTypeTUNNEL_GENEVE,
	datapath.TunnelGRE:    TunnelTypeTUNNEL_GRE,
}

// TicksOf rounds d up to ticks, the time unit of the maps.
func TicksOf(d time.Duration) uint32 {
	return uint32((int64(d) + 1<<TickShift - 1) >> TickShift)
}

// idleShift is CT_IDLE_SHIFT of types_conn.h.
const idleShift = 6

// IdleUnits converts an idle time for struct ct_more and struct service: rounded up; 0 if it is 0 or
// longer than 6.5 days, so that such connections never expire in the programs.
func IdleUnits(d time.Duration) uint16 {
	n := (uint64(TicksOf(d)) + 1<<idleShift - 1) >> idleShift
	if n > math.MaxUint16 {
		return 0
	}
	return uint16(n)
}

// DurationOf is the inverse of TicksOf.
func DurationOf(ticks uint32) time.Duration { return time.Duration(int64(ticks) << TickShift) }

// EnumNames reads the names of an enum from the program's BTF, so that they cannot differ from the
// constants that the program uses: DROP_NO_BACKEND becomes no_backend.
func EnumNames(types *btf.Spec, enum, prefix string) ([]string, error) {
	var e *btf.Enum
	if err := types.TypeByName(enum, &e); err != nil {
		return nil, err
	}
	var names []string
	for _, v := range e.Values {
		name := strings.ToLower(strings.TrimPrefix(v.Name, prefix))
		if name != "max" && name != "state_max" {
			names = append(names, name)
		}
	}
	return names, nil
}

// SampleOf decodes a record from the ring buffer.
func SampleOf(raw []byte) (s Sample, ok bool) {
	if len(raw) < int(unsafe.Sizeof(s)) {
		return s, false
	}
	_, err := binary.Decode(raw, binary.NativeEndian, &s)
	return s, err == nil
}

// DeviceName returns the name of a device in the form that the programs use.
func DeviceName(name string) (b [16]byte) {
	copy(b[:len(b)-1], name)
	return b
}

// Text returns the name of the device.
func (k *Device) Text() string {
	name, _, _ := bytes.Cut(k.Name[:], []byte{0})
	return string(name)
}

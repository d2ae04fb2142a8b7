// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/btf"

	"github.com/loxilight/loxilight/datapath"
)

// Constants that the headers define with #define only; a test compares both.
const (
	tickShift     = 27    // TICK_SHIFT
	slotsPerChunk = 64    // SLOTS_PER_CHUNK
	nexthopCount  = 16384 // NEXTHOP_COUNT
	tunnelPorts   = 8     // TUNNEL_PORTS
	headerMax     = 96    // TUNNEL_HEADER_MAX
	crowdCount    = 16    // CROWD_COUNT
	crowdSlots    = 256   // CROWD_SLOTS
)

// addrOf encodes a; IPv4 addresses become IPv4-mapped (::ffff:a.b.c.d).
func addrOf(a netip.Addr) (k kernelAddr) {
	k.Word = wordsOf(a.As16())
	return k
}

func wordsOf(b [16]byte) (words [4]uint32) {
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return words
}

func (k kernelAddr) addr() netip.Addr {
	var b [16]byte
	for i, w := range k.Word {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	return netip.AddrFrom16(b).Unmap()
}

func addr4(w uint32) netip.Addr {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], w)
	return netip.AddrFrom4(b)
}

// swap16 turns a port from host to network order and back.
func swap16(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

func serviceKeyOf(f datapath.Frontend) kernelServiceKey {
	return kernelServiceKey{Addr: addrOf(f.Addr.Addr()), Port: swap16(f.Addr.Port()), Proto: uint8(f.Protocol)}
}

func (k kernelServiceKey) frontend() datapath.Frontend {
	return datapath.Frontend{
		Addr:     netip.AddrPortFrom(k.Addr.addr(), swap16(k.Port)),
		Protocol: datapath.Protocol(k.Proto),
	}
}

func (k kernelBackend) backendAddr() datapath.BackendAddr {
	return netip.AddrPortFrom(k.Addr.addr(), swap16(k.Port))
}

// sourceRangeKeyOf encodes p; the id of the set is part of the prefix.
func sourceRangeKeyOf(setID uint32, p netip.Prefix) kernelSourceRangeKey {
	bits := 32 + p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return kernelSourceRangeKey{PrefixLen: uint32(bits), SetId: setID, Addr: addrOf(p.Masked().Addr())}
}

func (k kernelSourceRangeKey) prefix() netip.Prefix {
	a, bits := k.Addr.addr(), int(k.PrefixLen)-32
	if a.Is4() {
		bits -= 96
	}
	return netip.PrefixFrom(a, bits)
}

func serviceNameOf(name datapath.ServiceName) (k kernelServiceName) {
	for i := range min(len(name), len(k.Name)-1) {
		k.Name[i] = int8(name[i])
	}
	return k
}

func (k *kernelServiceName) name() datapath.ServiceName {
	var b strings.Builder
	for _, c := range k.Name {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return datapath.ServiceName(b.String())
}

func (k *kernelRuleName) name() datapath.RuleName {
	name, _, _ := bytes.Cut(k.Name[:], []byte{0})
	return datapath.RuleName(name)
}

var algorithms = map[datapath.Algorithm]kernelAlgorithm{
	datapath.Maglev:           kernelAlgorithmALG_MAGLEV,
	datapath.Random:           kernelAlgorithmALG_RANDOM,
	datapath.RoundRobin:       kernelAlgorithmALG_ROUND_ROBIN,
	datapath.LeastConnections: kernelAlgorithmALG_LEAST_CONNECTIONS,
	datapath.SourceHash:       kernelAlgorithmALG_SOURCE_HASH,
}

var sourceModes = map[datapath.SourceMode]kernelSourceMode{
	datapath.SourceAuto: kernelSourceModeSOURCE_AUTO,
	datapath.SourceKeep: kernelSourceModeSOURCE_KEEP,
	datapath.SourceSNAT: kernelSourceModeSOURCE_SNAT,
}

// ticksOf rounds d up to ticks, the time unit of the maps.
func ticksOf(d time.Duration) uint32 {
	return uint32((int64(d) + 1<<tickShift - 1) >> tickShift)
}

func durationOf(ticks uint32) time.Duration { return time.Duration(int64(ticks) << tickShift) }

// enumNames reads the names of an enum from the program's BTF, so that they cannot differ from the
// constants that it counts: DROP_NO_BACKEND becomes no_backend.
func enumNames(types *btf.Spec, enum, prefix string) ([]string, error) {
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

// sampleOf decodes a record of the ring buffer.
func sampleOf(raw []byte) (s kernelSample, ok bool) {
	if len(raw) < int(unsafe.Sizeof(s)) {
		return s, false
	}
	_, err := binary.Decode(raw, binary.NativeEndian, &s)
	return s, err == nil
}

// deviceName returns the name of a device in the form that the programs use.
func deviceName(name string) (b [16]byte) {
	copy(b[:len(b)-1], name)
	return b
}

func (k *kernelDevice) name() string {
	name, _, _ := bytes.Cut(k.Name[:], []byte{0})
	return string(name)
}

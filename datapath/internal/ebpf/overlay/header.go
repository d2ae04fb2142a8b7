// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// MirrorHeader returns the header that is prepended to the frames that are sent through the tunnel of
// a peer under another VNI (GRE: key): up to, and without, the inner Ethernet header. The fields that
// differ between frames are zero, as in [Header].
func MirrorHeader(p *kernel.Peer, vni uint32) []byte {
	const ethernet = 14
	length := int(p.HeaderLen)
	if p.Type == kernel.TunnelTypeTUNNEL_GRE {
		const outer4, outer6 = ethernet + 20, ethernet + 40
		length = outer6
		if p.Remote.Addr().Is4() {
			length = outer4
		}
		b := append(make([]byte, 0, kernel.HeaderMax), p.Header[:length]...)
		return binary.BigEndian.AppendUint32(append(b, 0x20, 0, 0x65, 0x58), vni)
	}
	b := slices.Clone(p.Header[:length-ethernet])
	binary.BigEndian.PutUint32(b[len(b)-4:], vni<<8)
	return b
}

// Header returns the header that is prepended to each packet of a tunnel, from the outer to the
// inner Ethernet header, without the fields that differ between packets. local and remote are the
// addresses of both nodes, of the same family.
func Header(t *datapath.Tunnel, local, remote netip.Addr) []byte {
	const ttl = 64
	proto := byte(unix.IPPROTO_UDP)
	if t.Type == datapath.TunnelGRE {
		proto = unix.IPPROTO_GRE
	}
	b := make([]byte, 12, kernel.HeaderMax)
	if remote.Is4() {
		b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
		ip := append([]byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, ttl, proto, 0, 0}, local.AsSlice()...)
		ip = append(ip, remote.AsSlice()...)
		var sum uint32
		for i := 0; i < len(ip); i += 2 {
			sum += uint32(ip[i])<<8 | uint32(ip[i+1])
		}
		sum = sum>>16 + sum&0xffff
		sum += sum >> 16
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
		b = append(b, ip...)
	} else {
		b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IPV6)
		b = append(b, 0x60, 0, 0, 0, 0, 0, proto, ttl)
		b = append(append(b, local.AsSlice()...), remote.AsSlice()...)
	}
	if t.Type == datapath.TunnelGRE {
		if t.VNI == 0 {
			return append(b, 0, 0, 0, 0)
		}
		return binary.BigEndian.AppendUint32(append(b, 0x20, 0, 0, 0), t.VNI)
	}
	b = binary.BigEndian.AppendUint16(append(b, 0, 0), t.Port)
	b = append(b, 0, 0, 0, 0)
	if t.Type == datapath.TunnelVXLAN {
		b = append(b, 0x08, 0, 0, 0)
	} else {
		b = append(b, 0, 0, 0x65, 0x58)
	}
	b = binary.BigEndian.AppendUint32(b, t.VNI<<8)
	// Source and destination differ: the kernel's vxlan device drops frames with its own source.
	b = append(b, 0x02, 0x4c, 0x4c, 0, 0, 0x01)
	return append(b, 0x02, 0x4c, 0x4c, 0, 0, 0x02, 0, 0)
}

// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

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

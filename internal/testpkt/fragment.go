// SPDX-License-Identifier: Apache-2.0

package testpkt

import "fmt"

// Fragments splits the IP packet in a frame into fragments of at most mtu bytes, including their IP
// headers, in order. id is the identification that the fragments share. IPv6 extension headers stay
// before the fragment header.
func Fragments(frame []byte, mtu int, id uint32) [][]byte {
	p := Parse(frame)
	link := 14 + 4*len(p.VLANs)
	packet := frame[link : len(frame)-p.Padding]
	header := 40
	switch {
	case p.IPv4 != nil:
		header = 20 + len(p.IPv4.Options)
	case p.IPv6 != nil:
		for _, e := range p.IPv6.Extensions {
			header += 2 + len(e.Data)
		}
	default:
		panic("testpkt: no IP packet to fragment")
	}
	room := mtu - header
	if p.IPv6 != nil {
		room -= 8
	}
	if room &^= 7; room <= 0 {
		panic(fmt.Sprintf("testpkt: mtu %d leaves no room for a fragment", mtu))
	}
	var out [][]byte
	for body, offset := packet[header:], 0; offset < len(body); offset += room {
		end := min(offset+room, len(body))
		out = append(out, Build(Raw(frame[:link]), p.part(id, offset, end < len(body)), Raw(body[offset:end])))
	}
	return out
}

// part returns the IP header of one fragment.
func (p *Packet) part(id uint32, offset int, more bool) Layer {
	if p.IPv4 != nil {
		ip := *p.IPv4
		ip.ID, ip.Offset, ip.MoreFragments, ip.DontFragment = uint16(id), offset, more, false
		return ip
	}
	ip := *p.IPv6
	ip.Extensions = append(append([]Extension(nil), ip.Extensions...), FragmentHeader(id, offset, more))
	return ip
}

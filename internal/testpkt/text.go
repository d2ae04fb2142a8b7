// SPDX-License-Identifier: Apache-2.0

package testpkt

import (
	"bytes"
	"fmt"
	"net"
	"strings"
)

// String describes the packet, one line per header.
func (p *Packet) String() string { return strings.Join(p.lines(""), "\n") }

func (p *Packet) lines(indent string) []string {
	var out []string
	add := func(format string, args ...any) {
		out = append(out, indent+strings.TrimRight(fmt.Sprintf(format, args...), " "))
	}
	if e := p.Ethernet; e != nil {
		add("ethernet %s > %s type %#04x", net.HardwareAddr(e.Source[:]), net.HardwareAddr(e.Destination[:]), e.Type)
	}
	for _, v := range p.VLANs {
		add("vlan %d priority %d type %#04x", v.ID&0xfff, v.ID>>13, v.Protocol)
	}
	if ip := p.IPv4; ip != nil {
		add("ipv4 %s > %s ttl %d tos %#x id %d df %t more %t offset %d protocol %d %s",
			ip.Source, ip.Destination, ip.TTL, ip.TOS, ip.ID, ip.DontFragment, ip.MoreFragments,
			ip.Offset, ip.Protocol, hexPart("options", ip.Options))
	}
	if ip := p.IPv6; ip != nil {
		add("ipv6 %s > %s hops %d class %#x flow %#x protocol %d",
			ip.Source, ip.Destination, ip.HopLimit, ip.Class, ip.FlowLabel, ip.Protocol)
		for _, e := range ip.Extensions {
			add("extension %d %x", e.Type, e.Data)
		}
	}
	p.transportLines(add)
	for _, c := range p.checksums {
		add("checksum %s", c)
	}
	if len(p.Payload) > 0 {
		add("payload %d %q", len(p.Payload), shorten(p.Payload))
	}
	if p.CutOff {
		add("cut off")
	}
	if p.Padding > 0 {
		add("padding %d", p.Padding)
	}
	if p.Embedded != nil {
		out = append(out, p.Embedded.lines(indent+"  | ")...)
	}
	return out
}

func (p *Packet) transportLines(add func(string, ...any)) {
	if t := p.TCP; t != nil {
		add("tcp %d > %d [%s] seq %d ack %d window %d urgent %d %s",
			t.Source, t.Destination, flagNames(t.Flags), t.Seq, t.Ack, t.Window, t.Urgent, hexPart("options", t.Options))
	}
	if u := p.UDP; u != nil {
		add("udp %d > %d", u.Source, u.Destination)
	}
	if s := p.SCTP; s != nil {
		add("sctp %d > %d tag %#x", s.Source, s.Destination, s.Tag)
		for _, c := range s.Chunks {
			add("chunk %d flags %#x %x", c.Type, c.Flags, shorten(c.Value))
		}
	}
	if i := p.ICMP; i != nil {
		add("icmp v6 %t type %d code %d id %d seq %d", i.V6, i.Type, i.Code, i.ID, i.Seq)
	}
}

func flagNames(flags uint8) string {
	var names []string
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
		if flags>>i&1 != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

func hexPart(name string, b []byte) string {
	if len(b) == 0 {
		return ""
	}
	return fmt.Sprintf("%s %x", name, b)
}

func shorten(b []byte) []byte { return b[:min(len(b), 64)] }

// Diff describes how two frames differ, header by header. It returns an empty string if they are
// equal. Lines of want begin with -, lines of got with +.
func Diff(want, got []byte) string {
	if bytes.Equal(want, got) {
		return ""
	}
	a, b := Parse(want).lines(""), Parse(got).lines("")
	var out strings.Builder
	for i := range max(len(a), len(b)) {
		switch {
		case i < len(a) && i < len(b) && a[i] == b[i]:
			fmt.Fprintf(&out, "  %s\n", a[i])
			continue
		case i < len(a):
			fmt.Fprintf(&out, "- %s\n", a[i])
		}
		if i < len(b) {
			fmt.Fprintf(&out, "+ %s\n", b[i])
		}
	}
	at := 0
	for at < min(len(want), len(got)) && want[at] == got[at] {
		at++
	}
	fmt.Fprintf(&out, "  first difference at byte %d; want %d bytes, got %d\n", at, len(want), len(got))
	fmt.Fprintf(&out, "- %x\n+ %x\n", want[at:min(at+32, len(want))], got[at:min(at+32, len(got))])
	return out.String()
}

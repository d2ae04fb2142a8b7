// SPDX-License-Identifier: Apache-2.0

package testpkt

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
)

// Types of DNS records.
const (
	DNSA     = 1
	DNSCNAME = 5
	DNSText  = 16
	DNSAAAA  = 28
	DNSHTTPS = 65
)

// DNSName returns a name as in a DNS message.
func DNSName(name string) (b []byte) {
	for label := range strings.SplitSeq(name, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0)
}

// DNSQuery returns a query for the records of a type of a name.
func DNSQuery(name string, kind uint16) []byte {
	b := append([]byte{0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, DNSName(name)...)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, kind), 1)
}

// DNSKind returns the type of records for which a query asks; 0: b is no query.
func DNSKind(query []byte) uint16 {
	if len(query) < 17 {
		return 0
	}
	return binary.BigEndian.Uint16(query[len(query)-4:])
}

// DNSRecord appends a record to the answer of a response.
func DNSRecord(response, owner []byte, kind uint16, ttl uint32, data []byte) []byte {
	binary.BigEndian.PutUint16(response[6:], binary.BigEndian.Uint16(response[6:])+1)
	b := binary.BigEndian.AppendUint16(append(response, owner...), kind)
	b = binary.BigEndian.AppendUint16(b, 1)
	b = binary.BigEndian.AppendUint32(b, ttl)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

// DNSResponse answers a query: the name is an alias, for which addresses are returned. Text records
// of 200 bytes before the addresses make it larger.
func DNSResponse(query []byte, ttl uint32, texts int, addrs ...netip.Addr) []byte {
	b := slices.Clone(query)
	b[2], b[3] = 0x81, 0x80
	edge := DNSName("edge.example.net")
	b = DNSRecord(b, []byte{0xc0, 12}, DNSCNAME, ttl, edge)
	alias := []byte{0xc0, byte(len(b) - len(edge))}
	for range texts {
		b = DNSRecord(b, alias, DNSText, ttl, append([]byte{200}, make([]byte, 200)...))
	}
	for _, a := range addrs {
		kind := uint16(DNSA)
		if a.Is6() {
			kind = DNSAAAA
		}
		b = DNSRecord(b, alias, kind, ttl, a.AsSlice())
	}
	return b
}

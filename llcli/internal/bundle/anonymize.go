// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

// anonymizer replaces addresses: throughout an archive, equal addresses are replaced with equal
// addresses, and addresses that share a prefix with addresses that share a prefix of the same
// length. The key is discarded with the anonymizer.
type anonymizer struct {
	key   []byte
	host  *regexp.Regexp // nil: not known
	known map[string]string
}

func newAnonymizer(host string) *anonymizer {
	a := &anonymizer{key: make([]byte, 32), known: map[string]string{}}
	_, _ = rand.Read(a.key) // never fails
	if host != "" && host != "localhost" {
		a.host = regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(host) + `\b`)
	}
	return a
}

// addresses matches MAC addresses, IPv6 addresses (or text that looks like one) and IPv4 addresses.
var addresses = lazy(`\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b|(?:[0-9A-Fa-f]{0,4}:){2,7}(?:(?:[0-9]{1,3}\.){3}[0-9]{1,3}|[0-9A-Fa-f]{0,4})|\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b`)

func (a *anonymizer) text(s string) string {
	s = addresses().ReplaceAllStringFunc(s, a.address)
	if a.host != nil {
		s = a.host.ReplaceAllString(s, "host")
	}
	return s
}

func (a *anonymizer) address(s string) string {
	if new, ok := a.known[s]; ok {
		return new
	}
	new := s
	if isMAC(s) {
		if !strings.EqualFold(s, "ff:ff:ff:ff:ff:ff") && s != "00:00:00:00:00:00" {
			h := a.hash([]byte(strings.ToLower(s)))
			new = fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", h[0], h[1], h[2], h[3])
		}
	} else if ip, err := netip.ParseAddr(s); err == nil {
		new = a.ip(ip).String()
	}
	a.known[s] = new
	return new
}

func isMAC(s string) bool {
	return len(s) == 17 && strings.Count(s, ":") == 5 && !strings.Contains(s, "::")
}

// keep returns how many leading bits of an address do not identify a network.
func keep(ip netip.Addr) int {
	switch {
	case ip.IsLoopback(), ip.IsUnspecified(), ip.IsMulticast(), ip == netip.MustParseAddr("255.255.255.255"):
		return ip.BitLen()
	case ip.Is4() && ip.As4()[0] == 255: // a netmask
		return ip.BitLen()
	case ip.IsLinkLocalUnicast() && ip.Is6():
		return 64
	case ip.IsLinkLocalUnicast():
		return 16
	case ip.Is4In6():
		return 96
	default:
		return 0
	}
}

// ip replaces an address bit by bit: each bit depends on the bits before it, and on the key.
func (a *anonymizer) ip(ip netip.Addr) netip.Addr {
	in := ip.AsSlice()
	out := make([]byte, len(in))
	prefix := make([]byte, len(in)+1)
	for i := range ip.BitLen() {
		mask := byte(0x80) >> (i % 8)
		bit := in[i/8] & mask
		if i >= keep(ip) {
			prefix[len(in)] = byte(i)
			if a.hash(prefix)[0]&1 != 0 {
				out[i/8] ^= mask
			}
		}
		out[i/8] ^= bit
		prefix[i/8] |= bit
	}
	new, _ := netip.AddrFromSlice(out) // as long as ip
	return new
}

func (a *anonymizer) hash(b []byte) []byte {
	h := hmac.New(sha256.New, a.key)
	h.Write(b) // never fails
	return h.Sum(nil)
}

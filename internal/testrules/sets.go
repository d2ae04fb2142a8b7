// SPDX-License-Identifier: Apache-2.0

package testrules

import (
	"math/rand/v2"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
)

// Addr4 is an IPv4 address.
func Addr4(v uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

func prefix4(v uint32, bits int) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(Addr4(v), bits)}
}

func port(v uint16) []datapath.PortRange { return []datapath.PortRange{{First: v, Last: v}} }

// HardSets returns sets of rules, each of which is hard to search in a different way.
func HardSets(n int) map[string][]classify.Rule {
	r := rand.New(rand.NewPCG(7, 7))
	tcp := []datapath.Protocol{datapath.TCP}
	make1 := func(each func(i int) datapath.Match) []classify.Rule {
		rules := make([]classify.Rule, n)
		for i := range rules {
			m := each(i)
			rules[i] = classify.Rule{Name: "r", ID: uint32(i + 1), Hooks: datapath.HookAll, Match: &m}
		}
		return rules
	}
	return map[string][]classify.Rule{
		"distinct destinations": make1(func(i int) datapath.Match {
			return datapath.Match{Destination: prefix4(r.Uint32(), 32), Protocols: tcp, Ports: port(443)}
		}),
		"distinct pairs": make1(func(i int) datapath.Match {
			return datapath.Match{Source: prefix4(r.Uint32(), 16+r.IntN(17)), Destination: prefix4(r.Uint32(), 16+r.IntN(17)), Protocols: tcp, Ports: port(uint16(r.IntN(2000)))}
		}),
		"nested prefixes": make1(func(i int) datapath.Match {
			return datapath.Match{Source: prefix4(10<<24|uint32(i)<<8, 32-i%24), Destination: prefix4(11<<24|uint32(i*7)<<4, 8+i%25)}
		}),
		"nested ports": make1(func(i int) datapath.Match {
			return datapath.Match{Protocols: tcp, Ports: []datapath.PortRange{{First: uint16(i), Last: uint16(65535 - i)}}, SourcePorts: []datapath.PortRange{{First: uint16(2 * i), Last: uint16(2*i + 9000)}}}
		}),
		"all the same": make1(func(int) datapath.Match { return datapath.Match{Source: prefix4(10<<24, 8), Protocols: tcp} }),
		"all wildcards": make1(func(i int) datapath.Match {
			switch i % 5 {
			case 0:
				return datapath.Match{Source: prefix4(r.Uint32(), 32)}
			case 1:
				return datapath.Match{Destination: prefix4(r.Uint32(), 32)}
			case 2:
				return datapath.Match{Protocols: tcp, Ports: port(uint16(i))}
			case 3:
				return datapath.Match{SourcePorts: port(uint16(i))}
			}
			return datapath.Match{VLANs: []datapath.VLANRange{{First: uint16(1 + i%4000), Last: uint16(1 + i%4000)}}}
		}),
		// A packet with source and destination in 10.0.0.0/8 and port 53 matches two of the three
		// fields of every rule.
		"two of three fields": make1(func(i int) datapath.Match {
			other := prefix4(172<<24|r.Uint32()>>8, 32)
			switch i % 4 {
			case 0:
				return datapath.Match{Source: prefix4(10<<24, 8), Destination: other, Protocols: tcp}
			case 1:
				return datapath.Match{Source: prefix4(10<<24, 8), Protocols: tcp, Ports: port(uint16(1000 + i%50_000))}
			case 2:
				return datapath.Match{Source: other, Destination: prefix4(10<<24, 8), Protocols: tcp, Ports: port(53)}
			}
			return datapath.Match{Source: prefix4(10<<24, 8), Destination: prefix4(10<<24, 8), Protocols: []datapath.Protocol{datapath.UDP}, Ports: []datapath.PortRange{{First: uint16(i % 1000), Last: 7000}}}
		}),
		// Every word has a rule for the source and one for the destination, but no rule for both.
		"false candidates": make1(func(i int) datapath.Match {
			if i%2 == 0 {
				return datapath.Match{Source: prefix4(10<<24, 8), Destination: prefix4(172<<24|r.Uint32()>>8, 32)}
			}
			return datapath.Match{Source: prefix4(172<<24|r.Uint32()>>8, 32), Destination: prefix4(10<<24, 8)}
		}),
	}
}

// ManyPrefixes returns a group of n prefixes of both families.
func ManyPrefixes(n int) (g datapath.AddressGroup) {
	r := rand.New(rand.NewPCG(3, 3))
	for len(g.Prefixes) < n {
		if len(g.Prefixes)%4 > 0 {
			g.Prefixes = append(g.Prefixes, netip.PrefixFrom(Addr4(r.Uint32()), 20+r.IntN(13)).Masked())
			continue
		}
		b := [16]byte{0x20, 1, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), 15: byte(r.Uint32())}
		g.Prefixes = append(g.Prefixes, netip.PrefixFrom(netip.AddrFrom16(b), 29+r.IntN(100)).Masked())
	}
	return g
}

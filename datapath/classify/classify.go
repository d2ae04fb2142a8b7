// SPDX-License-Identifier: Apache-2.0

// Package classify compiles rules into an image, and searches the image in time that hardly depends
// on the number of rules and prefixes. It knows what a rule matches and which of several rules
// applies, but not what the rules are for. It does not access the kernel: ebpf-src/fw_classify.h
// searches the same image.
//
// Each field of a packet is looked up separately, in a trie of bytes in which every node is a
// bitmap with the values of its runs (a mixture of the Lulea tables of Degermark et al., 1997, and
// of poptries, Asai and Ohara, 2015), so its depth is limited by the width of the field. A leaf is
// a class: a set of values that are matched by the same rules. Classes of several fields are folded
// into one if the table of all their combinations stays small (recursive flow classification, Gupta
// and McKeown, 1999). A few classes remain, each with a bit vector over the rules in order of
// precedence, and an aggregate above it with one bit for each word (Lakshman and Stiliadis, 1998;
// Baboescu and Varghese, 2001): the first bit that is set in all vectors is the rule. Vectors are
// made of chunks; equal chunks are stored once.
package classify

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
)

// Rule defines the action for the packets that it matches.
type Rule struct {
	Name   string // for errors
	ID     uint32 // index of the rule's counters; 0: not counted
	Hooks  datapath.FirewallHook
	Match  *datapath.Match
	Action uint8 // interpreted by the caller, like Flags
	Flags  uint8
}

// The limits of [Compile].
const (
	MaxRules    = 1 << 14
	MaxPrefixes = 1 << 20 // in all rules and groups together, separately for source and destination
	MaxDevices  = 1 << 16
)

// Compile compiles rules into an image; the first matching rule applies. An error in one rule or
// group is reported as a [*datapath.RuleError]; if something is too large, the error wraps
// [datapath.ErrCapacity]. The same rules produce the same image.
func Compile(rules []Rule, groups map[datapath.GroupName]datapath.AddressGroup) (*Image, error) {
	if len(rules) > MaxRules {
		return nil, fmt.Errorf("%d rules, at most %d: %w", len(rules), MaxRules, datapath.ErrCapacity)
	}
	c := newCompiler(rules, groups)
	for _, collect := range []func() error{
		c.hooks, c.dscp, c.tcpFlags, c.vlans, c.devices, c.sourcePorts, c.layer4, c.addresses,
	} {
		if err := errors.Join(collect(), c.vectors.err); err != nil {
			return nil, err
		}
	}
	return c.image()
}

// Packet contains the fields of a packet that rules can match.
type Packet struct {
	Source, Destination netip.Addr
	Protocol            uint8
	// HasPorts reports whether the next two fields are known: they are unknown for later fragments
	// and for protocols without ports.
	HasPorts        bool
	SourcePort      uint16
	DestinationPort uint16 // ICMP and ICMPv6: type in the upper byte, code in the lower
	HasTCPFlags     bool
	TCPFlags        uint8
	DSCP            uint8
	VLAN            uint16 // 0: none
	Hook            datapath.FirewallHook
	In, Out         string // devices; empty: none or unknown
}

// The fields, in the order in which their classes are folded: fields with few classes first, so
// that many are folded into one table.
const (
	fieldHook = iota
	fieldDSCP
	fieldTCPFlags
	fieldVLAN
	fieldIn
	fieldOut
	fieldSourcePort
	fieldLayer4
	fieldSource
	fieldDestination
	fieldCount
)

// The tries. For packets without ports or flags, and for each address family, a separate trie is
// used.
const (
	rootHook = iota
	rootDSCP
	rootTCPFlags
	rootNoTCPFlags
	rootVLAN
	rootIn
	rootOut
	rootSourcePort
	rootNoSourcePort
	rootLayer4
	rootNoLayer4
	rootSource4
	rootSource6
	rootDestination4
	rootDestination6
	rootCount
)

// fieldOf is the field of each trie.
var fieldOf = [rootCount]int{
	fieldHook, fieldDSCP, fieldTCPFlags, fieldTCPFlags, fieldVLAN, fieldIn, fieldOut, fieldSourcePort, fieldSourcePort,
	fieldLayer4, fieldLayer4, fieldSource, fieldSource, fieldDestination, fieldDestination,
}

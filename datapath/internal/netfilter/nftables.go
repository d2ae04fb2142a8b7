// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/dump"
)

// Constants from linux/netfilter/nf_tables.h and linux/netfilter.h that golang.org/x/sys lacks.
const (
	hookPrerouting  = 0
	hookForward     = 2
	hookPostrouting = 4
	hookInetIngress = 5

	verdictDrop = 0 // NF_DROP, in a chain's policy

	attributeType = 0x3fff // without the flags
)

// chainFamilies are the families whose hooks forwarded packets pass through.
var chainFamilies = map[uint8]struct {
	name  string
	hooks map[uint32]string
	found finding
}{
	unix.NFPROTO_IPV4: {"ip", forwardHooks, finding{routed: true, ip: true}},
	unix.NFPROTO_IPV6: {"ip6", forwardHooks, finding{routed: true, ip: true}},
	unix.NFPROTO_INET: {"inet", map[uint32]string{
		hookPrerouting: "prerouting", hookForward: "forward", hookPostrouting: "postrouting", hookInetIngress: "ingress",
	}, finding{routed: true, ip: true}},
	unix.NFPROTO_NETDEV: {"netdev", map[uint32]string{0: "ingress", 1: "egress"}, finding{routed: true, bridged: true}},
	unix.NFPROTO_BRIDGE: {"bridge", forwardHooks, finding{bridged: true}},
}

var forwardHooks = map[uint32]string{hookPrerouting: "prerouting", hookForward: "forward", hookPostrouting: "postrouting"}

// nftables finds base chains in the path of forwarded packets that have a rule or a policy that
// drops.
func nftables() (found []finding, err error) {
	messages, err := list(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN,
		&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil // a kernel without nftables
	}
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		f, err := chain(m)
		if err != nil {
			return nil, err
		}
		if f != nil {
			found = append(found, *f)
		}
	}
	return found, nil
}

// chain parses the message about a chain. It returns nil if the chain does not affect forwarded
// packets.
func chain(m []byte) (*finding, error) {
	if len(m) < nl.SizeofNfgenmsg {
		return nil, fmt.Errorf("a message of %d bytes", len(m))
	}
	family, ok := chainFamilies[m[0]]
	attrs, err := attributes(m[nl.SizeofNfgenmsg:])
	if err != nil || !ok || attrs[unix.NFTA_CHAIN_HOOK] == nil {
		return nil, err
	}
	hook, err := attributes(attrs[unix.NFTA_CHAIN_HOOK])
	if err != nil {
		return nil, err
	}
	num := number(hook[unix.NFTA_HOOK_HOOKNUM])
	name := family.hooks[num]
	rules := number(attrs[unix.NFTA_CHAIN_USE]) // no rule can jump to a base chain
	drops := attrs[unix.NFTA_CHAIN_POLICY] != nil && number(attrs[unix.NFTA_CHAIN_POLICY]) == verdictDrop
	if name == "" || rules == 0 && !drops {
		return nil, nil
	}
	what := plural(rules, "rule")
	if rules == 0 {
		what = "the policy drop"
	}
	f := family.found
	whole := fmt.Sprintf("%s %s %s", family.name, text(attrs[unix.NFTA_CHAIN_TABLE]), text(attrs[unix.NFTA_CHAIN_NAME]))
	f.why = fmt.Sprintf("nftables: chain %s (%s) has %s", whole, name, what)
	if drops && f.ip && num == hookForward {
		f.drops = "nftables chain " + whole
	}
	return &f, nil
}

// list returns the messages for all objects of a kind.
func list(protocol, kind int, header nl.NetlinkRequestData) ([][]byte, error) {
	return dump.Retry(func() ([][]byte, error) {
		request := nl.NewNetlinkRequest(kind, unix.NLM_F_DUMP)
		request.AddData(header)
		return request.Execute(protocol, 0)
	})
}

// attributes parses netlink attributes into a map by type.
func attributes(b []byte) (map[uint16][]byte, error) {
	all := make(map[uint16][]byte)
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return nil, fmt.Errorf("an attribute of %d bytes in %d", size, len(b))
		}
		all[binary.NativeEndian.Uint16(b[2:])&attributeType] = b[unix.SizeofNlAttr:size]
		b = b[min(len(b), (size+3)&^3):]
	}
	return all, nil
}

// number parses a 32-bit attribute in network byte order.
func number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// text parses a string attribute.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

func plural(n uint32, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Connection is a TCP connection, identified by the tuple of one direction.
type Connection struct{ Source, Destination netip.AddrPort }

// From linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_tcp.h.
const (
	conntrackUpdate = 0 // IPCTNL_MSG_CT_NEW, for an existing entry

	ctaTupleOriginal = 1
	ctaProtoInfo     = 4
	ctaTupleIP       = 1
	ctaTupleProto    = 2
	ctaIPv4Source    = 1
	ctaIPv4Dest      = 2
	ctaIPv6Source    = 3
	ctaIPv6Dest      = 4
	ctaProtoNumber   = 1
	ctaSourcePort    = 2
	ctaDestPort      = 3
	ctaProtoInfoTCP  = 1
	ctaFlagsOriginal = 4
	ctaFlagsReply    = 5
	tcpBeLiberal     = 0x08 // IP_CT_TCP_FLAG_BE_LIBERAL
)

// Relax makes the kernel's connection tracking in the calling thread's namespace accept packets of
// connections that have bypassed it so far, even outside the TCP window that it has recorded.
// Connections that it does not track stay untracked. Relax stops at the given time, and returns the
// remaining connections.
func Relax(all []Connection, until time.Time) (rest []Connection, err error) {
	active, err := tracks()
	if err != nil || !active || len(all) == 0 {
		return nil, err
	}
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return all, err
	}
	defer s.Close()
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: s}}
	for i, c := range all {
		if time.Now().After(until) {
			return all[i:], err
		}
		request := relaxation(c)
		request.Sockets = sockets
		if _, e := request.Execute(unix.NETLINK_NETFILTER, 0); e != nil && !errors.Is(e, unix.ENOENT) && err == nil {
			err = fmt.Errorf("connection %s > %s: %w", c.Source, c.Destination, e)
		}
	}
	return nil, err
}

// tracks reports whether the kernel has any connection tracking entries.
func tracks() (bool, error) {
	count, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return strings.TrimSpace(string(count)) != "0", err
}

func relaxation(c Connection) *nl.NetlinkRequest {
	family, source, dest := uint8(unix.AF_INET6), uint16(ctaIPv6Source), uint16(ctaIPv6Dest)
	if c.Source.Addr().Is4() {
		family, source, dest = unix.AF_INET, ctaIPv4Source, ctaIPv4Dest
	}
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|conntrackUpdate, unix.NLM_F_ACK)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	flags := []byte{tcpBeLiberal, tcpBeLiberal} // value, mask
	request.AddRawData(nest(ctaTupleOriginal,
		nest(ctaTupleIP, attribute(source, c.Source.Addr().AsSlice()), attribute(dest, c.Destination.Addr().AsSlice())),
		nest(ctaTupleProto, attribute(ctaProtoNumber, []byte{unix.IPPROTO_TCP}),
			attribute(ctaSourcePort, binary.BigEndian.AppendUint16(nil, c.Source.Port())),
			attribute(ctaDestPort, binary.BigEndian.AppendUint16(nil, c.Destination.Port())))))
	request.AddRawData(nest(ctaProtoInfo, nest(ctaProtoInfoTCP,
		attribute(ctaFlagsOriginal, flags), attribute(ctaFlagsReply, flags))))
	return request
}

// attribute encodes a netlink attribute with padding.
func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, -len(b)&3)...)
}

func nest(kind uint16, attributes ...[]byte) []byte {
	var b []byte
	for _, a := range attributes {
		b = append(b, a...)
	}
	return attribute(kind|unix.NLA_F_NESTED, b)
}

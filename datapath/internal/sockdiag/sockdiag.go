// SPDX-License-Identifier: Apache-2.0

// Package sockdiag lists the sockets of a network namespace (sock_diag(7)).
package sockdiag

import (
	"encoding/binary"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/dump"
)

// States of sockets. A look for StateListen alone does not walk the connected sockets of the node.
const (
	StateClose  = 7  // TCP_CLOSE, the state of an unconnected UDP socket
	StateListen = 10 // TCP_LISTEN
)

// MessageLength is the length of struct inet_diag_msg, in bytes; attributes follow.
const MessageLength = 72

// Request selects sockets.
type Request struct {
	Family   uint8 // AF_INET or AF_INET6
	Protocol uint8 // IPPROTO_
	State    uint8
	Port     uint16 // local port; 0: any. TCP and UDP ignore it in a dump, so callers check it
}

const requestLength = 56 // of struct inet_diag_req_v2

// Len implements [nl.NetlinkRequestData].
func (r *Request) Len() int { return requestLength }

// Serialize implements [nl.NetlinkRequestData].
func (r *Request) Serialize() []byte {
	b := make([]byte, requestLength)
	b[0], b[1] = r.Family, r.Protocol
	nl.NativeEndian().PutUint32(b[4:], 1<<r.State)
	binary.BigEndian.PutUint16(b[8:], r.Port)
	return b
}

// List returns a struct inet_diag_msg, with its attributes, for each selected socket. sockets is
// nil or has a socket of NETLINK_INET_DIAG in the wanted namespace; otherwise, the thread's is
// used.
func List(r Request, sockets map[int]*nl.SocketHandle) ([][]byte, error) {
	return dump.Retry(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.Sockets = sockets
		req.AddData(&r)
		return req.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
	})
}

// IsUnsupported reports whether an error of List means that the kernel lacks the diag module of the
// protocol.
func IsUnsupported(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}

// LocalPort returns the local port in a struct inet_diag_msg; 0 if it is truncated.
func LocalPort(message []byte) uint16 {
	if len(message) < MessageLength {
		return 0
	}
	return binary.BigEndian.Uint16(message[4:])
}

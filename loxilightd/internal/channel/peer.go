// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a connection, as the kernel recorded it when the process
// connected.
type Peer struct {
	UID, GID, PID int
	Groups        []int // supplementary
	// Admin is true for root, for members of the admin group, and for the daemon's own user: they
	// may change objects; others may only read them.
	Admin bool
}

// LogValue implements [slog.LogValuer].
func (p Peer) LogValue() slog.Value {
	return slog.GroupValue(slog.Int("uid", p.UID), slog.Int("pid", p.PID), slog.Bool("admin", p.Admin))
}

// access decides which users may connect, and which may change objects.
type access struct {
	group, adminGroup int // -1: the group does not exist
	own               int // user id of the daemon
}

func newAccess(group, adminGroup string) access {
	return access{group: groupID(group), adminGroup: groupID(adminGroup), own: os.Geteuid()}
}

// groupID returns the id of a group given by name or number, -1 if it does not exist.
func groupID(name string) int {
	g, err := user.LookupGroup(name)
	if err != nil {
		g = &user.Group{Gid: name}
	}
	id, err := strconv.Atoi(g.Gid)
	if err != nil {
		return -1
	}
	return id
}

var errNotAllowed = errors.New("user is neither root nor in a group that may connect")

// admit reads the credentials of the peer at the other end of c. The error is errNotAllowed for a
// user without read permission.
func (a access) admit(c *net.UnixConn) (Peer, error) {
	p, err := credentials(c)
	if err != nil {
		return Peer{}, err
	}
	in := func(group int) bool { return group >= 0 && (p.GID == group || slices.Contains(p.Groups, group)) }
	p.Admin = p.UID == 0 || p.UID == a.own || in(a.adminGroup)
	if !p.Admin && !in(a.group) {
		return p, errNotAllowed
	}
	return p, nil
}

func credentials(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	var p Peer
	var inner error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); inner != nil {
			return
		}
		p = Peer{UID: int(cred.Uid), GID: int(cred.Gid), PID: int(cred.Pid)}
		p.Groups, inner = peerGroups(int(fd))
	})
	if err := errors.Join(err, inner); err != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	return p, nil
}

// peerGroups returns the supplementary groups that the peer had when it
// connected. x/sys has no function for SO_PEERGROUPS.
func peerGroups(fd int) ([]int, error) {
	buf := make([]byte, 4*64)
	for {
		size := uint32(len(buf))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
		if errno == unix.ERANGE && int(size) > len(buf) { // size is the required size
			buf = make([]byte, size)
			continue
		}
		if errno != 0 {
			return nil, fmt.Errorf("SO_PEERGROUPS: %w", errno)
		}
		groups := make([]int, 0, size/4)
		for b := range slices.Chunk(buf[:size], 4) {
			groups = append(groups, int(binary.NativeEndian.Uint32(b)))
		}
		return groups, nil
	}
}

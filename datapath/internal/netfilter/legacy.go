// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// iptables is an address family of the legacy interface (linux/netfilter_ipv4/ip_tables.h and its
// IPv6 twin).
type iptables struct {
	tool         string
	names        string // file with the names of the existing tables
	family       int
	level        int
	targetOffset int // of the target's offset in an entry
}

var iptablesFamilies = []iptables{
	{"iptables", "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP, 84 + 4},
	{"ip6tables", "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, 136 + 4},
}

const (
	getInfo       = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	getEntries    = 65
	tableNameSize = 32
	verdictAccept = -2 // -NF_ACCEPT - 1, the form in targets
	targetHeader  = 32 // bytes before the verdict of a standard target
	hookCount     = 5
	tableSizeMax  = 1 << 30
)

// tableInfo is struct ipt_getinfo.
type tableInfo struct {
	Name       [tableNameSize]byte
	ValidHooks uint32
	HookEntry  [hookCount]uint32
	Underflow  [hookCount]uint32
	NumEntries uint32
	Size       uint32
}

// legacyTables finds legacy tables of iptables and ip6tables (before nftables) that have rules, or
// a policy that drops, in the path of forwarded packets. It reads only existing tables, because
// reading a table creates it.
func legacyTables(read reading) (found []finding, err error) {
	for _, f := range iptablesFamilies {
		names, err := read(f.names)
		if errors.Is(err, os.ErrNotExist) {
			continue // not in use
		}
		if err != nil {
			return nil, err
		}
		for _, table := range strings.Fields(string(names)) {
			in, err := f.table(table)
			if err != nil {
				return nil, fmt.Errorf("%s, table %s: %w", f.tool, table, err)
			}
			found = append(found, in...)
		}
	}
	return found, nil
}

// table finds the chains of a table in which forwarded packets meet rules, or a policy that drops.
func (f iptables) table(name string) (found []finding, err error) {
	fd, err := unix.Socket(f.family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	info := make([]byte, unsafe.Sizeof(tableInfo{}))
	copy(info, name)
	if err := getsockopt(fd, f.level, getInfo, info); err != nil {
		return nil, err
	}
	var t tableInfo
	if _, err := binary.Decode(info, binary.NativeEndian, &t); err != nil {
		return nil, err
	}
	var entries []byte
	for hook, chain := range map[int]string{hookPrerouting: "PREROUTING", hookForward: "FORWARD", hookPostrouting: "POSTROUTING"} {
		if t.ValidHooks&(1<<hook) == 0 {
			continue
		}
		if entries == nil {
			if entries, err = f.entries(fd, name, t.Size); err != nil {
				return nil, err
			}
		}
		verdict, err := f.verdict(entries, int(t.Underflow[hook]))
		if err != nil {
			return nil, err
		}
		what := "rules"
		if t.HookEntry[hook] == t.Underflow[hook] {
			if verdict == verdictAccept {
				continue
			}
			what = "the policy DROP"
		}
		one := finding{routed: true, ip: true, why: fmt.Sprintf("%s: chain %s of table %s has %s", f.tool, chain, name, what)}
		if hook == hookForward && verdict != verdictAccept {
			one.drops = fmt.Sprintf("%s-legacy chain %s", f.tool, chain)
		}
		found = append(found, one)
	}
	return found, nil
}

// entries reads a whole table.
func (f iptables) entries(fd int, name string, size uint32) ([]byte, error) {
	if size > tableSizeMax {
		return nil, fmt.Errorf("%d bytes of rules", size)
	}
	const header = 40 // struct ipt_get_entries
	b := make([]byte, header+int(size))
	copy(b, name)
	binary.NativeEndian.PutUint32(b[tableNameSize:], size)
	// If the size has changed in the meantime, this fails with EAGAIN, and the next attempt
	// succeeds.
	if err := getsockopt(fd, f.level, getEntries, b); err != nil {
		return nil, err
	}
	return b[header:], nil
}

// verdict returns the verdict of the entry at offset, whose target must be a standard target.
func (f iptables) verdict(entries []byte, offset int) (int32, error) {
	if offset < 0 || offset+f.targetOffset+2 > len(entries) {
		return 0, fmt.Errorf("an entry at %d of %d bytes", offset, len(entries))
	}
	at := offset + int(binary.NativeEndian.Uint16(entries[offset+f.targetOffset:])) + targetHeader
	if at+4 > len(entries) {
		return 0, fmt.Errorf("a target at %d of %d bytes", at, len(entries))
	}
	return int32(binary.NativeEndian.Uint32(entries[at:])), nil
}

// getsockopt passes b to the kernel, which fills it.
func getsockopt(fd, level, option int, b []byte) error {
	size := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// conntrackMax is the limit of the kernel's connection tracking, for all namespaces.
const conntrackMax = "/proc/sys/net/netfilter/nf_conntrack_max"

// raiseConntrack lets the kernel track at least count connections, and returns a function that
// restores the old limit.
func raiseConntrack(count int) (restore func() error, err error) {
	text, err := os.ReadFile(conntrackMax)
	if err != nil {
		return nil, err
	}
	now, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", conntrackMax, err)
	}
	if now == 0 || now >= count {
		return func() error { return nil }, nil
	}
	write := func(value int) error { return os.WriteFile(conntrackMax, []byte(strconv.Itoa(value)), 0o644) }
	return func() error { return write(now) }, write(count)
}

// slabBytes returns how much memory the kernel has allocated for objects of one kind.
func slabBytes(name string) (int64, error) {
	text, err := os.ReadFile("/proc/slabinfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[0] != name {
			continue
		}
		objects, err := strconv.ParseInt(fields[2], 10, 64) // num_objs
		if err != nil {
			return 0, err
		}
		size, err := strconv.ParseInt(fields[3], 10, 64) // objsize
		return objects * size, err
	}
	return 0, fmt.Errorf("no slab %s", name)
}

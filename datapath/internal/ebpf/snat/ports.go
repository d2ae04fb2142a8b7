// SPDX-License-Identifier: Apache-2.0

// Package snat maintains the source ports that the programs assign to connections: ports that
// neither the node's own sockets nor services use. It does not assign ports. It also maintains the
// ports to which services and NAT rules lead.
package snat

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/sockdiag"
)

// Ports are the source ports that the programs assign: ports from 1024 on that are not used by
// the node's own connections, its sockets or frontends. The map holds them in random order, and
// their number at index 0. Ports is safe for concurrent use.
type Ports struct {
	options Options

	mu      sync.Mutex
	written []uint16 // sorted
	taken   *[1 << 16]bool
	free    []datapath.PortRange // ports from 1024 on that the kernel itself does not assign
	due     time.Time

	connected    *[1 << 16]bool // local ports of all TCP sockets, as read last
	connectedDue time.Time
}

// Options are what [Ports] use.
type Options struct {
	Tables *kernel.Tables
	// InNamespaces calls f on a thread in each network namespace in use, until f fails.
	InNamespaces func(f func() error) error
	// FrontendPorts returns the ports of the services' frontends.
	FrontendPorts func() []uint16
	// Interval is the interval at which the node's sockets are read; it is longer if reading them
	// takes long. 0: they are read whenever the ports are needed.
	Interval time.Duration
	// IsIdle reports whether no programs are attached, so that no ports are assigned.
	IsIdle func() bool
}

// New returns the ports, which Refresh reads and writes.
func New(o Options) *Ports { return &Ports{options: o} }

// idleIntervals is the number of intervals between two readings by Maintain while no programs are
// attached.
const idleIntervals = 12

// Maintain refreshes the ports. While no programs are attached, it does so less often: whoever
// needs the ports refreshes them.
func (s *Ports) Maintain() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.options.IsIdle() && time.Since(s.due) < (idleIntervals-1)*s.options.Interval {
		return nil
	}
	return s.refresh()
}

// Refresh writes the ports if they have changed.
func (s *Ports) Refresh() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refresh()
}

// refresh is Refresh; s.mu is held.
func (s *Ports) refresh() error {
	began := time.Now()
	if began.Before(s.due) {
		return nil
	}
	defer func() { s.due = began.Add(max(s.options.Interval, 50*time.Since(began))) }()
	taken, own, err := s.takenPorts()
	if err != nil {
		return fmt.Errorf("source ports for SNAT: %w", err)
	}
	if err := s.writeTaken(taken, own); err != nil {
		return fmt.Errorf("source ports for SNAT: %w", err)
	}
	ports := make([]uint16, 0, 1<<16)
	for p := 1024; p < 1<<16; p++ {
		if !taken[p] && !own[p] {
			ports = append(ports, uint16(p))
		}
	}
	if slices.Equal(ports, s.written) {
		return nil
	}
	shuffled := slices.Clone(ports)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	keys := make([]uint32, len(shuffled)+1)
	for i := range keys {
		keys[i] = uint32(i)
	}
	table := &s.options.Tables.SnatPorts
	if err := table.PutBatch(keys[1:], shuffled); err != nil {
		return fmt.Errorf("source ports for SNAT: %w", err)
	}
	if err := table.Put(0, uint16(len(shuffled))); err != nil {
		return fmt.Errorf("source ports for SNAT: %w", err)
	}
	s.written = ports
	return nil
}

// Count returns how many ports the programs may assign.
func (s *Ports) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.refresh() // Maintain reports the error
	return len(s.written)
}

// ForRules returns the ports from which rules that name none assign.
func (s *Ports) ForRules() ([]datapath.PortRange, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.refresh() // Maintain reports the error
	if len(s.free) == 0 {
		return nil, fmt.Errorf("ip_local_port_range and ip_local_reserved_ports leave no port from 1024 on: %w", datapath.ErrAbsent)
	}
	return slices.Clone(s.free), nil
}

// writeTaken writes the ports that no rule may assign, if they have changed, and records the
// default ports for rules.
func (s *Ports) writeTaken(taken, own *[1 << 16]bool) error {
	s.free = s.free[:0]
	for p := 1024; p < 1<<16; p++ {
		if own[p] {
			continue
		}
		if n := len(s.free); n > 0 && int(s.free[n-1].Last) == p-1 {
			s.free[n-1].Last++
			continue
		}
		s.free = append(s.free, datapath.PortRange{First: uint16(p), Last: uint16(p)})
	}
	if s.taken != nil && *s.taken == *taken {
		return nil
	}
	keys, words := make([]uint32, portWords), make([]uint64, portWords)
	for i := range keys {
		keys[i] = uint32(i)
	}
	for p, is := range taken {
		if is {
			words[p/64] |= 1 << (p % 64)
		}
	}
	if err := s.options.Tables.PortTaken.PutBatch(keys, words); err != nil {
		return err
	}
	s.taken = taken
	return nil
}

// takenPorts returns the ports that sockets of the node or services use (taken), and the ports that
// the kernel assigns to the node's own connections or that are reserved (own).
func (s *Ports) takenPorts() (taken, own *[1 << 16]bool, err error) {
	taken, own = new([1 << 16]bool), new([1 << 16]bool)
	isListed := true
	err = s.options.InNamespaces(func() error {
		listed, err := portsInUse(taken, own)
		isListed = isListed && listed
		return err
	})
	if err == nil {
		err = s.readConnected(isListed)
	}
	if err != nil {
		return nil, nil, err
	}
	for port, is := range s.connected {
		taken[port] = taken[port] || is
	}
	for _, port := range s.options.FrontendPorts() {
		taken[port] = true
	}
	return taken, own, nil
}

// portsInUse marks, in the thread's namespace, the ports of sockets in taken, and the kernel's port
// range for its own connections and the reserved ports in own. listed: see listeningPorts.
func portsInUse(taken, own *[1 << 16]bool) (listed bool, err error) {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return false, err
	}
	var first, last int
	if _, err := fmt.Sscan(string(b), &first, &last); err != nil {
		return false, fmt.Errorf("ip_local_port_range: %w", err)
	}
	markPorts(own, first, last)
	if b, err = os.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports"); err != nil {
		return false, err
	}
	for _, part := range strings.Split(strings.TrimSpace(string(b)), ",") {
		if n, _ := fmt.Sscanf(part, "%d-%d", &first, &last); n == 1 {
			markPorts(own, first, first)
		} else if n == 2 {
			markPorts(own, first, last)
		}
	}
	return listeningPorts(taken)
}

// listeningPorts marks the local ports of UDP sockets and, if they can be listed, of listening TCP
// sockets.
func listeningPorts(taken *[1 << 16]bool) (listed bool, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := sockdiag.List(sockdiag.Request{Family: family, Protocol: unix.IPPROTO_TCP, State: sockdiag.StateListen}, nil)
		if sockdiag.IsUnsupported(err) {
			return false, tablePorts(taken, "udp", "udp6")
		}
		if err != nil {
			return false, fmt.Errorf("list sockets: %w", err)
		}
		for _, m := range sockets {
			taken[sockdiag.LocalPort(m)] = true
		}
	}
	return true, tablePorts(taken, "udp", "udp6")
}

// Reading all TCP sockets takes 0.1 s if the machine has a million, in whatever namespace, and 10 ms if
// it has few, since the kernel's table is large. So it is done for one part in connectedShare of the
// time, or every connectedLongest, but for no more than one part in connectedMost. Only a connected
// socket whose program chose the local port has a port that the programs might assign.
const (
	connectedShare   = 5000
	connectedLongest = 5 * time.Minute
	connectedMost    = 1000
)

// connectedRest returns how long the sockets need not be read after a reading that took so long.
func connectedRest(took time.Duration) time.Duration {
	return max(connectedMost*took, min(connectedShare*took, connectedLongest))
}

// readConnected reads the local ports of all TCP sockets, unless that was done shortly before;
// isListed is set if the ports of listening sockets are known.
func (s *Ports) readConnected(isListed bool) error {
	began := time.Now()
	if isListed && s.connected != nil && began.Before(s.connectedDue) {
		return nil
	}
	ports := new([1 << 16]bool)
	if err := s.options.InNamespaces(func() error { return tablePorts(ports, "tcp", "tcp6") }); err != nil {
		return err
	}
	s.connected, s.connectedDue = ports, began
	if s.options.Interval > 0 {
		s.connectedDue = began.Add(max(s.options.Interval, connectedRest(time.Since(began))))
	}
	return nil
}

// tablePorts marks the local ports in the named tables of sockets.
func tablePorts(taken *[1 << 16]bool, names ...string) error {
	for _, name := range names {
		err := socketPorts("/proc/thread-self/net/"+name, taken)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func markPorts(ports *[1 << 16]bool, first, last int) {
	for p := max(first, 0); p <= min(last, 1<<16-1); p++ {
		ports[p] = true
	}
}

// socketPorts marks the local ports in a table of sockets as in proc(5).
func socketPorts(path string, taken *[1 << 16]bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan() // the header
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		if port, err := strconv.ParseUint(hex, 16, 16); err == nil {
			taken[port] = true
		}
	}
	return lines.Err()
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

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

	"github.com/cilium/ebpf"
)

// snatPorts are the source ports that the programs give out: those from 1024 on
// that neither the node's own connections take nor its sockets hold, nor are
// frontends. They lie in the map in random order, their number at index 0.
type snatPorts struct {
	mu      sync.Mutex
	written []uint16 // sorted
	due     time.Time
}

// snatInterval is how often the node's sockets are looked at; less often where
// that takes long.
const snatInterval = 5 * time.Second

// refreshSNATPorts writes the ports where they have changed.
func (d *DataPlane) refreshSNATPorts() error {
	d.snat.mu.Lock()
	defer d.snat.mu.Unlock()
	began := time.Now()
	if began.Before(d.snat.due) {
		return nil
	}
	defer func() { d.snat.due = began.Add(max(snatInterval, 50*time.Since(began))) }()
	taken, err := d.takenPorts()
	if err != nil {
		return fmt.Errorf("source ports for SNAT: %w", err)
	}
	ports := make([]uint16, 0, 1<<16)
	for p := 1024; p < 1<<16; p++ {
		if !taken[p] {
			ports = append(ports, uint16(p))
		}
	}
	if slices.Equal(ports, d.snat.written) {
		return nil
	}
	shuffled := slices.Clone(ports)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	keys := make([]uint32, len(shuffled)+1)
	for i := range keys {
		keys[i] = uint32(i)
	}
	table := d.maps[kernelMapLlSnatPorts]
	if _, err := table.BatchUpdate(keys[1:], shuffled, nil); err != nil {
		return fmt.Errorf("source ports for SNAT: %w", err)
	}
	if err := table.Update(uint32(0), uint16(len(shuffled)), ebpf.UpdateAny); err != nil {
		return fmt.Errorf("source ports for SNAT: %w", err)
	}
	d.snat.written = ports
	return nil
}

// takenPorts returns the ports that are not ours to give out.
func (d *DataPlane) takenPorts() (*[1 << 16]bool, error) {
	taken := new([1 << 16]bool)
	for _, z := range d.openZones() {
		err := z.do(func() error { return portsInUse(taken) })
		if err != nil {
			return nil, err
		}
	}
	for _, port := range d.services.frontendPorts() {
		taken[port] = true
	}
	return taken, nil
}

// portsInUse marks the range of the node's own connections and the ports of its
// sockets, in the namespace of the thread.
func portsInUse(taken *[1 << 16]bool) error {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return err
	}
	var first, last int
	if _, err := fmt.Sscan(string(b), &first, &last); err != nil {
		return fmt.Errorf("ip_local_port_range: %w", err)
	}
	for p := max(first, 0); p <= min(last, 1<<16-1); p++ {
		taken[p] = true
	}
	for _, name := range []string{"tcp", "tcp6", "udp", "udp6"} {
		err := socketPorts("/proc/thread-self/net/"+name, taken)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// socketPorts marks the local ports in a table of sockets as in proc(5).
func socketPorts(path string, taken *[1 << 16]bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan() // the heading
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

// frontendPorts returns the ports that clients connect to.
func (s *services) frontendPorts() []uint16 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	ports := make([]uint16, 0, len(s.owner))
	for f := range s.owner {
		ports = append(ports, f.Addr.Port())
	}
	return ports
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// mapSizes returns the number of entries of each map whose size is not fixed.
func mapSizes(t datapath.Tables) map[string]uint32 {
	mappings := max(1024, t.Connections/8-min(t.Connections/8, 2048))
	peers := min(1<<14, max(1<<10, t.Connections/32))
	chunks := 2*(t.Slots/slotsPerChunk) + 4*t.Services
	return map[string]uint32{
		kernelMapLlCt4:            2 * t.Connections, // both directions
		kernelMapLlCt6:            2 * t.Connections,
		kernelMapLlHalf4:          2 * t.HalfOpen,
		kernelMapLlHalf6:          2 * t.HalfOpen,
		kernelMapLlService:        t.Services,
		kernelMapLlServiceName:    t.Services,
		kernelMapLlServiceStats:   t.Services,
		kernelMapLlServiceTraffic: t.Services,
		kernelMapLlSlot:           chunks,
		kernelMapLlBackend:        t.Backends + 1, // id 0 is unused
		kernelMapLlBackendLoad:    t.Backends + 1,
		kernelMapLlBackendTotal:   t.Backends + 1,
		kernelMapLlBackendTraffic: t.Backends + 1,
		kernelMapLlAffinity:       t.Affinity,
		kernelMapLlSourceRange:    2 * t.Ranges, // for a moment old and new ones
		kernelMapLlServiceId:      t.Services,
		kernelMapLlServiceAddr:    t.Services,
		kernelMapLlDivert:         2 * t.Ranges,
		kernelMapLlRuleName:       t.Rules,
		kernelMapLlRuleHits:       t.Rules,
		kernelMapLlFragment:       min(1<<14, max(1<<12, t.Connections/4)),
		kernelMapLlSnatNext:       min(1<<14, max(1<<12, t.Connections/4)),
		kernelMapLlNatName:        t.MaxNATs(),
		kernelMapLlNatStats:       t.MaxNATs(),
		kernelMapLlNatTraffic:     t.MaxNATs(),
		kernelMapLlNatRule:        max(t.Rules/4, 256), // both directions, old and new
		kernelMapLlNatPool:        max(t.Rules/8, 1024),
		kernelMapLlNatPair:        max(t.Rules/8, 1024),
		kernelMapLlAnnounced:      max(t.Rules/8, 1024),
		kernelMapLlMapping:        mappings,
		kernelMapLlMappingOuter:   mappings,
		kernelMapLlStation:        min(1<<16, max(1<<13, t.Connections/2)),
		kernelMapLlGuard:          min(1<<16, max(1<<11, t.Connections/16)), // four an endpoint
		kernelMapLlPeer:           peers,
		kernelMapLlPeerId:         2 * peers,
		kernelMapLlPeerPrefix:     8 * peers,
		kernelMapLlPeerName:       peers,
		kernelMapLlPeerWay:        peers,
		kernelMapLlPeerPath:       peers,
		kernelMapLlPeerStats:      peers,
		kernelMapLlBlock:          max(t.Connections/64, 256),
		kernelMapLlBlockOwner:     max(t.Connections/64, 256),
	}
}

// wantedMaps returns the maps of specs with the sizes for t.
func wantedMaps(specs map[string]*ebpf.MapSpec, t datapath.Tables) map[string]*ebpf.MapSpec {
	sizes := mapSizes(t)
	wanted := make(map[string]*ebpf.MapSpec)
	for name, spec := range specs {
		if spec.Pinning != ebpf.PinByName {
			continue // constants and scratch memory of one program
		}
		spec = spec.Copy()
		if n := sizes[name]; n != 0 {
			spec.MaxEntries = n
		}
		spec.Pinning = ebpf.PinNone
		wanted[name] = spec
	}
	return wanted
}

func closeMaps(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		if m != nil {
			m.Close() // only closes a file descriptor
		}
	}
}

// loadMapSpecs returns the specifications of all maps; tests replace it.
var loadMapSpecs = loadKernel

// countEntries returns how many entries of a map are in use; for an array, up to the last non-zero
// one.
func countEntries(m *ebpf.Map) (n uint32, err error) {
	array := m.Type() == ebpf.Array
	switch m.Type() {
	case ebpf.Queue, ebpf.RingBuf, ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.ArrayOfMaps:
		return 0, nil // of fixed size, or one for each service
	}
	i := uint32(0)
	err = eachEntry(m, func(_, value []byte) error {
		i++
		if !array {
			n++
		} else if !allZero(value) {
			n = i
		}
		return nil
	})
	return n, err
}

// Tables without preallocation take new entries from a small pool for each CPU, which the kernel
// refills a moment later.
const (
	refillTries = 200
	refillTime  = 5 * time.Millisecond
)

// putPatiently puts one of many entries into such a table.
func putPatiently(m *ebpf.Map, key, value any) (err error) {
	for range refillTries {
		if err = m.Put(key, value); !errors.Is(err, unix.ENOMEM) {
			return err
		}
		time.Sleep(refillTime)
	}
	return err
}

// tableError turns the error for a full map into [datapath.ErrCapacity] with the name of the table
// in the configuration.
func tableError(table string, err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w: raise tables.%s in the configuration", datapath.ErrCapacity, table)
	}
	return err
}

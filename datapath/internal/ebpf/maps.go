// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// wantedMaps returns the maps of specs with the sizes for t.
func wantedMaps(specs map[string]*ebpf.MapSpec, t datapath.Tables) map[string]*ebpf.MapSpec {
	wanted := make(map[string]*ebpf.MapSpec)
	for name, spec := range specs {
		if spec.Pinning != ebpf.PinByName {
			continue // constants and scratch memory of one program
		}
		spec = spec.Copy()
		_, _, spec.MaxEntries = sizeOf(spec, t)
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
var loadMapSpecs = kernel.LoadKernel

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

// tableError turns the error for a full map into [datapath.ErrCapacity] with the name of the table
// in the configuration.
func tableError(table string, err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w: raise tables.%s in the configuration", datapath.ErrCapacity, table)
	}
	return err
}

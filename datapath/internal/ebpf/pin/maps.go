// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
)

// Wanted returns the maps of specs with the sizes in t.
func Wanted(specs map[string]*ebpf.MapSpec, t datapath.Tables) map[string]*ebpf.MapSpec {
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

// CloseMaps closes the maps' file descriptors; pins stay.
func CloseMaps(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		if m != nil {
			m.Close() // only closes a file descriptor
		}
	}
}

// CountEntries returns how many entries of a map are in use; for an array, the entries up to the
// last non-zero one.
func CountEntries(m *ebpf.Map) (n uint32, err error) {
	array := m.Type() == ebpf.Array
	switch m.Type() {
	case ebpf.Queue, ebpf.RingBuf, ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.ArrayOfMaps:
		return 0, nil // of fixed size, or with one entry for each service
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

// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Shared is the only value of an array that both the programs and loxilightd write: atomically,
// word by word.
type Shared[T any] struct {
	memory []byte
	Value  *T // in memory
}

// MapShared maps the value of an array into memory.
func MapShared[T any](m *ebpf.Map) (*Shared[T], error) {
	memory, err := unix.Mmap(m.FD(), 0, int(m.ValueSize()),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s into memory: %w", m, err)
	}
	return &Shared[T]{memory, (*T)(unsafe.Pointer(&memory[0]))}, nil
}

// Close unmaps the value, which must not be used after that.
func (s *Shared[T]) Close() error { return unix.Munmap(s.memory) }

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// shared is the only value of an array that both the programs and loxilightd write: atomically,
// word by word.
type shared[T any] struct {
	memory []byte
	value  *T // in memory
}

func newShared[T any](m *ebpf.Map) (*shared[T], error) {
	memory, err := unix.Mmap(m.FD(), 0, int(m.ValueSize()),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s into memory: %w", m, err)
	}
	return &shared[T]{memory, (*T)(unsafe.Pointer(&memory[0]))}, nil
}

func (s *shared[T]) close() error { return unix.Munmap(s.memory) }

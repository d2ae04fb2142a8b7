// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"sync"

	"github.com/cilium/ebpf"
)

// parsed is the compiled ingress program, parsed, while KeepParsed is in effect. Parsing it takes
// about 70 ms, and a start of the daemon needs it three times.
var parsed struct {
	mu    sync.Mutex
	users int
	spec  *ebpf.CollectionSpec // nil: not parsed
}

// KeepParsed makes LoadKernel parse the program only once, until release is called.
func KeepParsed() (release func()) {
	parsed.mu.Lock()
	defer parsed.mu.Unlock()
	parsed.users++
	return sync.OnceFunc(func() {
		parsed.mu.Lock()
		defer parsed.mu.Unlock()
		if parsed.users--; parsed.users == 0 {
			parsed.spec = nil
		}
	})
}

// parseKernel returns a description of the ingress program that the caller may change.
func parseKernel() (*ebpf.CollectionSpec, error) {
	parsed.mu.Lock()
	defer parsed.mu.Unlock()
	if parsed.users == 0 {
		return loadKernel()
	}
	if parsed.spec == nil {
		spec, err := loadKernel()
		if err != nil {
			return nil, err
		}
		parsed.spec = spec
	}
	return parsed.spec.Copy(), nil
}

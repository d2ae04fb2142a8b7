// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// kernelLacks returns an error if have, which probes for a helper, reports that the kernel lacks
// bpf_loop (Linux 5.17), which our programs require. Any other failure of the probe proves nothing;
// loading the programs reveals the cause.
func kernelLacks(have func(ebpf.ProgramType, asm.BuiltinFunc) error) error {
	if err := have(ebpf.SchedCLS, asm.FnLoop); errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("kernel %s lacks the BPF helper bpf_loop: run Linux 6.1 or later (5.17 at least)", kernelRelease())
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// CheckKernel returns an error if have, which probes for a helper as [features.HaveProgramHelper]
// does, reports that the kernel lacks bpf_loop (Linux 5.17), which the programs require. Any other
// failure of the probe proves nothing; loading the programs reveals the cause.
func CheckKernel(have func(ebpf.ProgramType, asm.BuiltinFunc) error) error {
	if err := have(ebpf.SchedCLS, asm.FnLoop); errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("kernel %s lacks the BPF helper bpf_loop: run Linux 6.1 or later (5.17 at least)", kernel.Release())
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestCheckKernel: the error for a kernel without bpf_loop names the kernel and what to do; a probe
// that fails for another reason proves nothing.
func TestCheckKernel(t *testing.T) {
	probe := func(result error) func(ebpf.ProgramType, asm.BuiltinFunc) error {
		return func(kind ebpf.ProgramType, helper asm.BuiltinFunc) error {
			if kind != ebpf.SchedCLS || helper != asm.FnLoop {
				t.Errorf("probed for %v of %v", helper, kind)
			}
			return result
		}
	}
	err := CheckKernel(probe(ebpf.ErrNotSupported))
	if err == nil || !strings.Contains(err.Error(), "bpf_loop") || !strings.Contains(err.Error(), "6.1 or later") {
		t.Errorf("without bpf_loop: %v", err)
	}
	for _, result := range []error{nil, errors.New("operation not permitted")} {
		if err := CheckKernel(probe(result)); err != nil {
			t.Errorf("probe returned %v: %v", result, err)
		}
	}
}

// TestOldestKernelIsNamed: the programs call bpf_loop, so kernels before 5.17 cannot load them.
func TestOldestKernelIsNamed(t *testing.T) {
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){"kernel": kernel.LoadKernel, "egress": kernel.LoadEgress} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		for _, p := range spec.Programs {
			for _, i := range p.Instructions {
				if i.IsBuiltinCall() && asm.BuiltinFunc(i.Constant) == asm.FnLoop {
					calls++
				}
			}
		}
		if calls == 0 {
			t.Errorf("%s does not call bpf_loop any more: CheckKernel and the doctor name 5.17 for it", name)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// AtStep is called before each change that must not be left half-done; tests abort the change
// there.
var AtStep = func(string) error { return nil }

// Step calls AtStep with the name of a change, then makes the change.
func Step(name string, do func() error) error {
	if err := AtStep(name); err != nil {
		return err
	}
	return do()
}

// Grace is longer than the run time of any program.
const Grace = 100 * time.Millisecond

// Synchronize returns once no program that was detached before the call is still running, and every
// running program has seen the programs attached before the call.
func Synchronize() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL: waits for the kernel's RCU
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		time.Sleep(Grace) // not available on kernels with tickless CPUs (nohz_full)
	}
}

// TableError turns the error for a full map into [datapath.ErrCapacity] with the name of the table
// in the configuration.
func TableError(table string, err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w: raise tables.%s in the configuration", datapath.ErrCapacity, table)
	}
	return err
}

// IfThere returns err, or nil if err means that the entry did not exist.
func IfThere(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// Release returns the release of the running kernel, as uname -r prints it; "unknown" if that is
// not possible.
func Release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// SPDX-License-Identifier: Apache-2.0

// Package parity compares the node with the kernel: the same frames go into two identical
// topologies, one with the kernel alone and one with loxilightd on every port, and the same frames
// must leave. The tests need root.
//
// A run prints its seed. -seed repeats it, -rounds makes it longer (make parity).
package parity

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "repeat the run of this seed; 0: the same few each time, with -rounds by chance")
	roundsFlag = flag.Int("rounds", 0, "topologies for each test; 0: a few")
	framesFlag = flag.Int("frames", 5000, "frames for each topology")
	stepsFlag  = flag.Int("changes", 5, "changes for each topology")
	gapsFlag   = flag.Bool("gaps", false, "with what is known to differ: tags of 802.1Q on bridges of 802.1ad, the order within a flow, sources of the node itself")
	allFlag    = flag.Bool("all", false, "continue after a difference, to see more of them")

	programs testdaemon.Programs
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "loxilight-parity-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)  // harmless: a directory in /tmp
	os.Setenv("TMPDIR", dir) // of this process
	if flag.Parse(); os.Geteuid() == 0 && !testing.Short() {
		if programs, err = testdaemon.Build(filepath.Join(dir, "bin")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// rounds runs test with seed after seed, until one fails.
func rounds(t *testing.T, few int, test func(t *testing.T, rng *rand.Rand)) {
	t.Helper()
	testnet.RequireRoot(t)
	n := max(few, *roundsFlag)
	seed := *seedFlag
	if seed != 0 {
		n = 1
	}
	oneCPU(t)
	for i := range n {
		switch {
		case *seedFlag != 0:
		case *roundsFlag == 0:
			seed = uint64(i + 1)
		default:
			seed = rand.Uint64N(1 << 32)
		}
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			oneCPU(t)
			test(t, rand.New(rand.NewPCG(seed, 1)))
		})
		if !ok && !*allFlag {
			t.Logf("again: go test ./tests/parity -run %s -seed %d -frames %d", t.Name(), seed, *framesFlag)
			return
		}
	}
}

// oneCPU keeps the test on one processor: the kernel then handles frames in the order
// in which they are sent, before the call that sends them returns.
func oneCPU(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for cpu := range len(before) * 64 {
		if before.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if unix.SchedSetaffinity(0, &before) == nil {
			runtime.UnlockOSThread()
		}
	})
}

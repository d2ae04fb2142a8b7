// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stopwatch measures work that one thread makes the kernel do on one CPU: the thread's own time,
// which includes the packets it carried through the node, and the time of that CPU's ksoftirqd.
// Other programs do not count.
type stopwatch struct {
	softirq string // schedstat file of ksoftirqd
	thread  time.Duration
	daemon  time.Duration
}

// startWatch pins the calling thread, which must be locked, to the last CPU.
func startWatch() (*stopwatch, error) {
	cpu := runtime.NumCPU() - 1
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("stay on CPU %d: %w", cpu, err)
	}
	file, err := softirqFile(cpu)
	if err != nil {
		return nil, err
	}
	s := &stopwatch{softirq: file}
	s.thread, s.daemon, err = s.read()
	return s, err
}

// stop returns the CPU time since the start.
func (s *stopwatch) stop() (time.Duration, error) {
	thread, daemon, err := s.read()
	return thread - s.thread + daemon - s.daemon, err
}

func (s *stopwatch) read() (thread, daemon time.Duration, err error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0, 0, fmt.Errorf("read the clock of the thread: %w", err)
	}
	if s.softirq == "" {
		return time.Duration(ts.Nano()), 0, nil
	}
	text, err := os.ReadFile(s.softirq)
	if err != nil {
		return 0, 0, fmt.Errorf("read the CPU time of ksoftirqd: %w", err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", s.softirq, err)
	}
	return time.Duration(ts.Nano()), time.Duration(ns), nil
}

// softirqFile finds the kernel thread that executes deferred softirqs of cpu. It returns an empty
// string if the thread is not visible, for example in the PID namespace of a container.
func softirqFile(cpu int) (string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return "", err
	}
	want := fmt.Sprintf("ksoftirqd/%d\n", cpu)
	for _, e := range entries {
		comm, err := os.ReadFile("/proc/" + e.Name() + "/comm")
		if err == nil && string(comm) == want {
			return "/proc/" + e.Name() + "/schedstat", nil
		}
	}
	return "", nil
}

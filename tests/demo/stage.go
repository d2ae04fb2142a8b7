// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// stage runs the demonstration. It is a testnet.T: cleanups run when the demonstration ends,
// however it ends.
type stage struct {
	ctx context.Context // cancelled by an interruption

	mu       sync.Mutex
	cleanups []func()
	down     bool // being taken down, which is not interrupted
	failed   bool
}

// curtain is the value of the panic that leaves the demonstration from any place.
type curtain struct{}

// Helper is called by testnet frequently, so it checks for an interruption.
func (s *stage) Helper() { s.check() }

// check leaves the demonstration if it was interrupted.
func (s *stage) check() {
	if s.ctx.Err() != nil && !s.down {
		panic(curtain{})
	}
}

// Cleanup registers fn to be called at the end; the last one is called first.
func (s *stage) Cleanup(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, fn)
}

// Fatalf reports an error and leaves the demonstration.
func (s *stage) Fatalf(format string, args ...any) {
	s.Errorf(format, args...)
	panic(curtain{})
}

// Errorf reports an error and continues.
func (s *stage) Errorf(format string, args ...any) {
	s.failed = true
	fmt.Fprintf(os.Stderr, "demo: "+format+"\n", args...)
}

// Logf prints a message for an operator.
func (s *stage) Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "demo: "+format+"\n", args...)
}

// Skipf is like Fatalf: the demonstration cannot continue without the missing part.
func (s *stage) Skipf(format string, args ...any) { s.Fatalf(format, args...) }

// Failed reports whether there was an error.
func (s *stage) Failed() bool { return s.failed }

// play runs the demonstration and takes everything down. It returns the exit code.
func (s *stage) play(demonstration func()) (code int) {
	defer func() {
		if r := recover(); r != nil {
			if _, ours := r.(curtain); !ours {
				defer panic(r)
			}
		}
		s.down = true
		s.mu.Lock()
		cleanups := slices.Clone(s.cleanups)
		s.mu.Unlock()
		for _, fn := range slices.Backward(cleanups) {
			fn()
		}
		switch {
		case s.ctx.Err() != nil:
			code = 130 // as in shells
		case s.failed:
			code = 1
		}
	}()
	demonstration()
	return 0
}

// pause lets time pass, for effects that are visible only over time.
func (s *stage) pause(d time.Duration) {
	select {
	case <-s.ctx.Done():
	case <-time.After(d):
	}
	s.check()
}

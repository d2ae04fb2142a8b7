// SPDX-License-Identifier: Apache-2.0

// Package testnet provides tests with their own networks: namespaces, veth pairs, routes, and
// programs and small servers inside them. Everything is removed when the test ends; the next test
// process removes the leftovers of a test that was killed. The package changes nothing in the
// test's own namespace, except through Here.
package testnet

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// T is the part of testing.TB that this package uses, so that programs can implement it too.
type T interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
	Failed() bool
}

// NS is a network namespace that lives as long as the test.
type NS struct {
	name   string
	handle netns.NsHandle
}

const (
	namePrefix = "llt-"
	netnsDir   = "/run/netns"
)

var (
	counter atomic.Uint32
	first   sync.Once                    // see prepare
	home    = sync.OnceValues(netns.Get) // the namespace of the process
)

// RequireRoot skips the test with -short, or without the privileges that namespaces require.
func RequireRoot(t T) {
	t.Helper()
	if f := flag.Lookup("test.short"); f != nil && f.Value.String() == "true" {
		t.Skipf("needs network namespaces: not with -short")
	}
	if os.Geteuid() != 0 {
		t.Skipf("needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_BPF)")
	}
}

// UniqueName returns a name that no other test uses.
func UniqueName(label string) string {
	return fmt.Sprintf("%s%d-%d-%s", namePrefix, os.Getpid(), counter.Add(1), label)
}

// New returns a fresh namespace with loopback up and duplicate address detection off, so that
// addresses can be used immediately.
func New(t T, label string) *NS {
	t.Helper()
	RequireRoot(t)
	first.Do(func() { prepare(t) })
	if _, err := home(); err != nil {
		t.Fatalf("namespace of this process: %v", err)
	}
	ns := &NS{name: UniqueName(label)}
	err := onThread(func() (err error) {
		ns.handle, err = netns.NewNamed(ns.name)
		return err
	})
	if err != nil {
		t.Fatalf("namespace %s: %v", ns.name, err)
	}
	t.Cleanup(func() {
		ns.handle.Close()
		if err := netns.DeleteNamed(ns.name); err != nil {
			t.Logf("namespace %s: %v", ns.name, err)
		}
	})
	ns.Sysctl(t, "net.ipv6.conf.default.accept_dad", "0")
	ns.Sysctl(t, "net.ipv6.conf.default.dad_transmits", "0")
	ns.Sysctl(t, "net.ipv6.conf.default.accept_ra", "0")
	ns.Do(t, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	return ns
}

// Here returns the namespace that the test itself runs in, for tests that have a machine to
// themselves. They must remove the objects that they create in it.
func Here(t T) *NS {
	t.Helper()
	RequireRoot(t)
	handle, err := home()
	if err != nil {
		t.Fatalf("namespace of this process: %v", err)
	}
	return &NS{name: "here", handle: handle}
}

// MakeNamed makes a namespace with the given name, as ip netns add does; names from [UniqueName]
// are removed later if the test does not remove them.
func MakeNamed(t T, name string) {
	t.Helper()
	first.Do(func() { prepare(t) })
	err := onThread(func() error {
		handle, err := netns.NewNamed(name)
		if err == nil {
			err = handle.Close()
		}
		return err
	})
	if err != nil {
		t.Fatalf("namespace %s: %v", name, err)
	}
}

// DeleteNamed removes the name of a namespace, as ip netns del does. If another program creates it again
// at once, the name stays.
func DeleteNamed(t T, name string) {
	t.Helper()
	if err := netns.DeleteNamed(name); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Fatalf("namespace %s: %v", name, err)
	}
}

// Named returns the existing namespace with the given name; if it is created again later, call
// Named again.
func Named(t T, name string) *NS {
	t.Helper()
	RequireRoot(t)
	handle, err := netns.GetFromName(name)
	if err != nil {
		t.Fatalf("namespace %s: %v", name, err)
	}
	t.Cleanup(func() { handle.Close() })
	return &NS{name: name, handle: handle}
}

// Name is the name as ip netns shows it.
func (ns *NS) Name() string { return ns.name }

// Path is the file that refers to the namespace.
func (ns *NS) Path() string { return filepath.Join(netnsDir, ns.name) }

// Open opens the namespace, for system calls that need it.
func (ns *NS) Open() (*os.File, error) { return os.Open(ns.Path()) }

// Do runs fn inside the namespace and fails the test if fn fails. Goroutines that fn starts are
// outside the namespace.
func (ns *NS) Do(t T, fn func() error) {
	t.Helper()
	if err := ns.Try(fn); err != nil {
		t.Fatalf("in %s: %v", ns.name, err)
	}
}

// Try is Do for callers that need the error.
func (ns *NS) Try(fn func() error) error {
	runtime.LockOSThread()
	if err := netns.Set(ns.handle); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	// A thread that cannot return to its namespace stays locked, and ends with its goroutine.
	defer func() {
		if back, err := home(); err == nil && netns.Set(back) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return fn()
}

// Sysctl sets a kernel parameter of the namespace, by its dotted name.
func (ns *NS) Sysctl(t T, key, value string) {
	t.Helper()
	path := "/proc/sys/" + strings.ReplaceAll(key, ".", "/")
	ns.Do(t, func() error { return os.WriteFile(path, []byte(value), 0o644) })
}

// Forward makes the namespace a router for IPv4 and IPv6.
func (ns *NS) Forward(t T) {
	t.Helper()
	ns.Sysctl(t, "net.ipv4.ip_forward", "1")
	ns.Sysctl(t, "net.ipv6.conf.all.forwarding", "1")
}

// onThread runs fn on an OS thread that ends when fn returns, so fn may change the thread.
func onThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- fn()
	}()
	return <-done
}

// At returns the namespace that a file refers to, with label as its name. The namespace must not be
// used after the test has ended.
func At(t T, label, path string) (*NS, error) {
	handle, err := netns.GetFromPath(path)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { handle.Close() })
	return &NS{name: label, handle: handle}, nil
}

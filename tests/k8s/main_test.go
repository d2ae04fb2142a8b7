// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testk8s"
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

// all is a testnet.T that lasts as long as all tests of the package.
type all struct {
	mu       sync.Mutex
	cleanups []func()
	failed   bool
	skipped  string
}

type over struct{}

func (a *all) Helper() {}

func (a *all) Cleanup(fn func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cleanups = append(a.cleanups, fn)
}

func (a *all) Fatalf(format string, args ...any) {
	a.failed = true
	a.Logf(format, args...)
	panic(over{})
}

func (a *all) Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "cluster: "+format+"\n", args...)
}

func (a *all) Skipf(format string, args ...any) {
	a.skipped = fmt.Sprintf(format, args...)
	panic(over{})
}

func (a *all) Failed() bool { return a.failed }

// end removes everything at the end, even after failures.
func (a *all) end() {
	for _, fn := range slices.Backward(a.cleanups) {
		fn()
	}
}

// attempt runs f to completion, or to the first error.
func (a *all) attempt(f func()) {
	defer func() {
		if r := recover(); r != nil {
			if _, ours := r.(over); !ours {
				panic(r)
			}
		}
	}()
	f()
}

// cluster is shared by all tests; nil: skipped has the reason.
var (
	cluster *site
	skipped = "it builds Kubernetes: make test-k8s (LOXILIGHT_K8S=1)"
)

// build builds the programs of the cluster, for later runs.
func build() (code int) {
	if _, err := testk8s.Build(os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func run(m *testing.M) (code int) {
	which := os.Getenv("LOXILIGHT_K8S")
	switch which {
	case "":
		return m.Run()
	case "build":
		return build()
	case "1":
		which = "ipv4,ipv6"
	}
	a := &all{}
	defer func() {
		a.end()
		if cluster == nil {
			return // it did not start, which was reported
		}
		if left := cluster.Leftovers(20 * time.Second); len(left) > 0 {
			a.Logf("left on the machine:\n%s", strings.Join(left, "\n"))
			code = 1
		}
	}()
	a.attempt(func() {
		programs, err := testk8s.Build(os.Stderr)
		if err != nil {
			a.Fatalf("%v", err)
		}
		families, err := testk8s.Families(which)
		if err != nil {
			a.Fatalf("LOXILIGHT_K8S: %v", err)
		}
		cluster = newSite(a, programs, families)
	})
	switch {
	case a.failed:
		return 1
	case a.skipped != "":
		skipped = a.skipped
	}
	code = m.Run()
	a.failed = code != 0
	if a.failed {
		a.Logf("%s", cluster.Logs(15))
	}
	if os.Getenv("LOXILIGHT_K8S_HOLD") != "" {
		cluster.hold()
	}
	return code
}

// need returns the cluster, or skips the test.
func need(t *testing.T) *site {
	t.Helper()
	if cluster == nil {
		t.Skip(skipped)
	}
	return cluster
}

// SPDX-License-Identifier: Apache-2.0

package million

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

var programs testdaemon.Programs

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == workerArg {
		os.Exit(work(os.Args[2], os.Args[3]))
	}
	os.Exit(testdaemon.Main(m, "million", &programs))
}

const (
	bound      = 18 * time.Minute
	fewest     = 2000    // connections of the small version
	fast       = 100_000 // with fewer connections, they are opened slowly enough for the table to grow
	million    = 1 << 20 // the table's maximum for 1,000,000 connections
	samplesMax = 10_000  // connections with background requests
)

// memoryEach is the kernel memory that a connection takes: two sockets with their files, and two
// entries in the connection table.
const memoryEach = 10 << 10

// TestMillion opens connections through a Service while the connection table grows from a 16th of
// its maximum and the daemon is killed and started again. No connection may be lost. The
// environment variable LOXILIGHT_MILLION is the number of connections; without it, there are few.
func TestMillion(t *testing.T) {
	testnet.RequireRoot(t)
	total := fewest
	if n, err := strconv.Atoi(os.Getenv("LOXILIGHT_MILLION")); err == nil {
		total = n
	}
	if total < fewest {
		t.Fatalf("LOXILIGHT_MILLION=%d: must be at least %d", total, fewest)
	}
	requireMemory(t, total)
	ctx, cancel := context.WithTimeout(context.Background(), bound) // also for killWorkers
	t.Cleanup(cancel)
	r := newRun(t, ctx, total)
	for _, n := range []int{1, total / 1000, total / 10, total} {
		if n > r.opened {
			r.openTo(n)
			r.measure()
		}
	}
	r.expectGrowth()
	r.idle()
	r.restart()
	r.checkAll()
	r.report()
}

// requireMemory fails the test if the machine has too little memory for total connections.
func requireMemory(t *testing.T, total int) {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "MemAvailable:")
	var available int
	if _, err := fmt.Sscan(rest, &available); err != nil {
		t.Fatalf("available memory: %v", err)
	}
	if need := total*(memoryEach>>10) + 512<<10; available < need {
		t.Fatalf("%d connections need %d MB of memory, and %d MB are available", total, need>>10, available>>10)
	}
}

// run is one run of the test.
type run struct {
	t     *testing.T
	ctx   context.Context
	total int
	*site
	clients []*worker
	servers []*worker
	fds     int // that a worker can have

	opened   int // connections
	phases   []phase
	kills    []int    // numbers of connections at which the daemon is killed
	segments int      // of the connection table, at first
	sizes    []string // log lines about the size of the connection table
	base     cost     // with one connection
}

// phase is a time in which connections are opened.
type phase struct{ begin, end time.Time }

// newRun starts the daemon, the clients and the backends.
func newRun(t *testing.T, ctx context.Context, total int) *run {
	t.Helper()
	most := int(int64(million) * int64(total) / 1_000_000)
	r := &run{
		t: t, ctx: ctx, total: total, site: newSite(t, most/16, most),
		kills: []int{total * 3 / 10, total * 7 / 10},
	}
	r.segments, _ = r.tableBytes(t)
	var err error
	if r.fds, err = raiseFileLimit(); err != nil {
		t.Fatal(err)
	}
	r.fds -= 200 // files other than connections
	r.startServers()
	r.startClients()
	t.Cleanup(r.killWorkers) // all of them, before the first one is waited for
	t.Logf("%d connections; %d processes with clients, %d with backends; at most %d files each", total, len(r.clients), len(r.servers), r.fds)
	return r
}

// startServers starts the processes with backends: two with 8 backends each, or if those could not
// have enough files, some for each backend. The numbers of their connections are random.
func (r *run) startServers() {
	count := 2
	if each := r.fds * 8 / 10; r.total > count*each {
		count = (r.total/backendCount + each - 1) / each * backendCount
	}
	for i := range count {
		r.servers = append(r.servers, startWorker(r.t, r.backendNS, "Server", i))
	}
	call[bool](r, r.servers, "Listen", func(i int) any {
		var mine []netip.AddrPort
		for j := i % backendCount; j < backendCount; j += count {
			mine = append(mine, backend(j))
		}
		return mine
	})
}

// startClients starts the processes with clients: two, or more if those could not have enough
// files.
func (r *run) startClients() {
	count := max(2, (r.total+r.fds-1)/r.fds)
	if count > sourceCount {
		r.t.Fatalf("%d connections of at most %d in a process need more than %d processes: raise the hard limit of open files", r.total, r.fds, sourceCount)
	}
	for i := range count {
		r.clients = append(r.clients, startWorker(r.t, r.clientNS, "Client", i))
	}
	perSecond := 0
	if r.total < fast {
		perSecond = r.total / 4 / count
	}
	call[bool](r, r.clients, "Setup", func(i int) any {
		s := ClientSetup{
			Worker: i, Target: netip.MustParseAddrPort(frontend), Total: r.share(r.total, i),
			Members: min(r.total/4, samplesMax) / count, PerSecond: perSecond,
		}
		for j := i; j < sourceCount; j += count {
			s.Sources = append(s.Sources, source(j))
		}
		return s
	})
}

// killWorkers kills the workers. If the test has failed, it logs the failures of connections first.
func (r *run) killWorkers() {
	if r.t.Failed() {
		r.keepSizes()
		r.t.Logf("sizes of the connection table:\n%s", strings.Join(r.sizes, "\n"))
		r.logFailures()
	}
	for _, w := range slices.Concat(r.clients, r.servers) {
		w.process.Signal(syscall.SIGKILL)
	}
}

// share returns how many of n connections client i opens.
func (r *run) share(n, i int) int { return (n + len(r.clients) - 1 - i) / len(r.clients) }

// call calls a method of several workers and returns the replies; the test fails if a call fails.
func call[R any](r *run, workers []*worker, method string, args func(i int) any) []R {
	r.t.Helper()
	replies, err := callAll[R](r.ctx, workers, method, args)
	if err != nil {
		r.t.Fatal(err)
	}
	return replies
}

// openTo opens connections until n are open. In the meantime, the daemon is killed and started
// again if it is time.
func (r *run) openTo(n int) {
	r.t.Helper()
	for r.opened < n {
		kill := len(r.kills) > 0 && r.kills[0] <= n
		next := n
		if kill {
			// Without the daemon, the table does not grow.
			next = min(n, r.kills[0]+r.total/10)
		}
		r.open(next, kill)
	}
}

// open opens connections until n are open. If kill is set, the daemon is killed at the next number
// of connections in r.kills.
func (r *run) open(n int, kill bool) {
	r.t.Helper()
	now := phase{begin: time.Now()}
	done := make(chan error, 1)
	go func() {
		_, err := callAll[bool](r.ctx, r.clients, "Open", func(i int) any { return r.share(n, i) })
		now.end = time.Now()
		done <- err
	}()
	if kill {
		for r.progress() < min(n, r.kills[0]) {
			time.Sleep(time.Duration(len(r.clients)) * time.Millisecond)
		}
		r.kills = r.kills[1:]
		r.restart()
	}
	if err := <-done; err != nil {
		r.t.Fatal(err)
	}
	r.phases = append(r.phases, now)
	r.opened = n
}

// progress returns the number of connections that have been opened, including those that have
// failed.
func (r *run) progress() (sum int) {
	r.t.Helper()
	if err := r.ctx.Err(); err != nil {
		r.t.Fatal(err)
	}
	for _, n := range call[int](r, r.clients, "Progress", func(int) any { return 0 }) {
		sum += n
	}
	return sum
}

// restart kills the daemon, as kill -9 does, and starts it again after a while.
func (r *run) restart() {
	r.t.Helper()
	at := r.progress()
	r.keepSizes()
	r.Kill()
	begin := time.Now()
	time.Sleep(min(time.Second, time.Duration(r.total)*100*time.Microsecond)) // connections are opened without a daemon
	launched := time.Now()
	r.Start()
	r.t.Logf("daemon killed with %d connections; without it for %s; answers %s after its start, with %d connections",
		at, launched.Sub(begin).Round(time.Millisecond), time.Since(launched).Round(time.Millisecond), r.progress())
}

// keepSizes keeps what the daemon logged about the size of its table.
func (r *run) keepSizes() {
	r.sizes = append(r.sizes, resizes(r.Process().Output())...)
}

// expectGrowth fails the test if the connection table has not grown.
func (r *run) expectGrowth() {
	r.t.Helper()
	testnet.Eventually(r.t, time.Minute, fmt.Sprintf("the connection table has at least 8 times its first %d segments", r.segments), func() bool {
		segments, _ := r.tableBytes(r.t)
		return segments >= 8*r.segments
	})
}

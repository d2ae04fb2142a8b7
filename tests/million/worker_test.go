// SPDX-License-Identifier: Apache-2.0

package million

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testnet"
)

// workerArg is the first argument of a process of this test binary that is a worker. The second one
// is the role, the third one the path of the worker's socket.
const workerArg = "million-worker"

// work runs a worker until the test closes its connection, and returns the exit code.
func work(role, socket string) int {
	err := func() error {
		if _, err := raiseFileLimit(); err != nil {
			return err
		}
		server := rpc.NewServer()
		var receiver any = new(Client)
		if role == "Server" {
			receiver = new(Server)
		}
		if err := server.RegisterName(role, receiver); err != nil {
			return err
		}
		l, err := net.Listen("unix", socket)
		if err != nil {
			return err
		}
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		server.ServeConn(conn)
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// raiseFileLimit allows this process as many open files as possible, and returns how many. A limit
// can be raised up to fs.nr_open with CAP_SYS_RESOURCE only.
func raiseFileLimit() (int, error) {
	text, err := os.ReadFile("/proc/sys/fs/nr_open")
	if err != nil {
		return 0, err
	}
	most, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, err
	}
	limit := unix.Rlimit{Cur: most, Max: most}
	if err = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); errors.Is(err, unix.EPERM) {
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return 0, err
		}
		limit.Cur = limit.Max
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	if err != nil {
		return 0, fmt.Errorf("limit of open files %d: %w", limit.Max, err)
	}
	return int(limit.Cur), nil
}

// worker is a process of this test binary in a namespace.
type worker struct {
	role    string
	process *testnet.Process
	rpc     *rpc.Client
}

// startWorker starts a worker. Only one worker of a role may have the given number.
func startWorker(t *testing.T, ns *testnet.NS, role string, number int) *worker {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) // testdaemon.Main reports what remains
	socket := filepath.Join(dir, fmt.Sprintf("%s%d", role, number))
	// The daemon has a node to itself; many busy workers must not take its processor time.
	w := &worker{role: role, process: ns.Start(t, "nice", "-n", "15", self, workerArg, role, socket)}
	testnet.Eventually(t, time.Minute, role+" listens", func() bool {
		select {
		case <-w.process.Done():
			t.Fatalf("%s ended: %s", role, w.process.Output())
		default:
		}
		conn, err := net.Dial("unix", socket)
		if err == nil {
			w.rpc = rpc.NewClient(conn)
		}
		return err == nil
	})
	t.Cleanup(func() { w.rpc.Close() }) // the process may have ended
	return w
}

// call calls a method of the worker.
func (w *worker) call(ctx context.Context, method string, args, reply any) error {
	c := w.rpc.Go(w.role+"."+method, args, reply, make(chan *rpc.Call, 1))
	select {
	case <-c.Done:
		if c.Error != nil {
			return fmt.Errorf("%s: %w", c.ServiceMethod, c.Error)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", c.ServiceMethod, ctx.Err())
	}
}

// callAll calls a method of several workers at the same time and returns the replies. args returns
// the argument for a worker.
func callAll[R any](ctx context.Context, workers []*worker, method string, args func(i int) any) ([]R, error) {
	replies, errs := make([]R, len(workers)), make([]error, len(workers))
	done := make(chan struct{})
	for i, w := range workers {
		go func() {
			errs[i] = w.call(ctx, method, args(i), &replies[i])
			done <- struct{}{}
		}()
	}
	for range workers {
		<-done
	}
	return replies, errors.Join(errs...)
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// once makes the HTTP server at addr answer and close, so that the server's side is in TIME_WAIT.
func (n *network) once(addr string) error {
	c, err := n.client.Dial("tcp", "", addr, 2*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
	err = errors.Join(c.SetDeadline(time.Now().Add(2*time.Second)), err)
	_, e := io.Copy(io.Discard, c)
	return errors.Join(err, e)
}

// waiting returns the number of the backends' sockets in TIME_WAIT on port 8080.
func (n *network) waiting() (count int) {
	n.t.Helper()
	n.backends.Do(n.t, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/tcp")
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if strings.HasSuffix(fields[1], ":1F90") && fields[3] == "06" {
				count++
			}
		}
		return err
	})
	return count
}

// TestSourcePortsRest: a source port of SNAT is not reused while the backend's side of its
// last connection may be in TIME_WAIT, not even after a restart; later it is reused, and works at
// the first attempt.
func TestSourcePortsRest(t *testing.T) {
	n := newNetwork(t)
	n.node.Sysctl(t, "net.ipv4.ip_local_port_range", "1034 65535") // ten are left: 1024 to 1033
	n.restart("tcx")
	n.attach()
	n.backends.ServeHTTP(t, "10.0.1.11:8080", "http")
	ctx := context.Background()
	n.ok(n.d.Services().Update(ctx, "web", datapath.Service{
		Frontends: []datapath.Frontend{frontend("198.51.100.10:80", datapath.TCP)}, Backends: backendAddrs(8080, "10.0.1.11"),
		Source: datapath.SourceSNAT, IdleTimeout: datapath.DefaultIdleTimeout(),
	}))
	for i := range 10 {
		n.ok(n.once("198.51.100.10:80"))
		if got := n.waiting(); got != i+1 {
			t.Fatalf("%d sockets in TIME_WAIT after %d connections: the test shows nothing", got, i+1)
		}
	}
	refused := func(when string) {
		t.Helper()
		c, err := n.client.Dial("tcp", "", "198.51.100.10:80", 300*time.Millisecond)
		if timeout, ok := errors.AsType[net.Error](err); err == nil || !ok || !timeout.Timeout() {
			t.Errorf("%s: a port that the backend may remember was given out: %v", when, err)
			if err == nil {
				c.Close()
			}
		}
	}
	refused("at once")
	n.restart("tcx")
	n.attach()
	for range 5 { // these sweeps find no expired connection
		n.ok(n.d.sweeper.Whole())
	}
	refused("after a restart")
	counters, err := n.d.Telemetry().NodeCounters(ctx)
	n.ok(err)
	if counters.Drops["no_port"] == 0 {
		t.Errorf("drops %v, want some of no_port", counters.Drops)
	}
	for _, answers := range []bool{false, true} {
		n.silent(answers, kernel.TicksOf(datapath.TimeWaitTimeout)+10)
	}
	testnet.Eventually(t, 5*time.Second, "the ports have rested", func() bool {
		n.ok(n.d.sweeper.Whole())
		list, _, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{}, "", 20)
		n.ok(err)
		return len(list) == 0
	})
	for i := range 5 {
		if err := n.once("198.51.100.10:80"); err != nil {
			t.Errorf("connection %d by a port that has rested: %v", i, err)
		}
	}
}

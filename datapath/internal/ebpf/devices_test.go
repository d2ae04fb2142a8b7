// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
)

// logged records log lines. It is safe for concurrent use.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// flap creates, changes and deletes devices of the node with several workers until stop is closed.
// wait waits for the workers, and returns the number of changes.
func (n *network) flap(workers int, stop <-chan struct{}) (wait func() uint64) {
	n.t.Helper()
	var wg sync.WaitGroup
	var changes atomic.Uint64
	for i := range workers {
		var nl *netlink.Handle
		n.node.Do(n.t, func() (err error) {
			nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
			return err
		})
		wg.Go(func() {
			defer nl.Close()
			for round := 0; ; round++ {
				select {
				case <-stop:
					return
				default:
				}
				attrs := netlink.NewLinkAttrs()
				attrs.Name = fmt.Sprintf("flap%d", i)
				pair := &netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("palf%d", i)}
				if nl.LinkAdd(pair) != nil {
					continue
				}
				_ = nl.LinkSetUp(pair)
				addr, _ := netlink.ParseAddr(fmt.Sprintf("203.0.113.%d/32", i))
				_ = nl.AddrAdd(pair, addr)
				_ = nl.LinkSetMTU(pair, 1400+round%100)
				_ = nl.LinkDel(pair) // otherwise the next one could not be created
				changes.Add(5)
				time.Sleep(time.Duration(brief(0, 200)) * time.Millisecond)
			}
		})
	}
	return func() uint64 { wg.Wait(); return changes.Load() }
}

// TestDevicesFlap: while many workers constantly create, change and delete devices, no dump
// of devices fails, and no failure is logged.
func TestDevicesFlap(t *testing.T) {
	n := newNetwork(t)
	n.ok(n.d.Close())
	log := new(logged)
	n.node.Do(t, func() (err error) {
		n.d, err = Open(n.config, slog.New(slog.NewTextHandler(log, nil)))
		return err
	})
	ctx := context.Background()
	n.attach()
	many := make([]testnet.Port, 60) // so that a dump takes several messages
	for i := range many {
		many[i] = testnet.Port{NS: n.node, Name: fmt.Sprintf("more%d", i), Addrs: []string{fmt.Sprintf("203.0.113.%d/32", 100+i)}}
		testnet.Veth(t, many[i], testnet.Port{NS: n.node, Name: fmt.Sprintf("erom%d", i)})
	}
	stop := make(chan struct{})
	wait := n.flap(brief(20, 4), stop)
	listings, failures := 0, 0
	var last error
	count := func(err error) {
		listings++
		if err != nil {
			failures++
			last = err
		}
	}
	for begin := time.Now(); time.Since(begin) < 3*time.Second; {
		count(n.host().Devices.Scan())
		count(n.d.Ports().Update(ctx, "in0", datapath.Port{Device: "in0"}))
		ok, err := n.d.Ports().Verify(ctx, "in0")
		if !ok && err == nil {
			err = fmt.Errorf("in0 is not attached")
		}
		count(err)
	}
	close(stop)
	t.Logf("%d changes, %d looks", wait(), listings)
	if failures > 0 {
		t.Errorf("%d of %d looks failed, the last: %v", failures, listings, last)
	}
	if text := log.String(); strings.Contains(text, "level=WARN") || strings.Contains(text, "level=ERROR") {
		t.Errorf("logged:\n%.2000s", text)
	}
}

// TestMaintainReadsDevices: if messages of the kernel were lost, Maintain reads the devices again,
// and signals it.
func TestMaintainReadsDevices(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	for quiet := false; !quiet; {
		select {
		case <-n.d.Telemetry().Changed():
		case <-time.After(500 * time.Millisecond):
			quiet = true
		}
	}
	n.host().Devices.Lost()
	n.ok(n.d.Maintain(t.Context()))
	if len(n.d.Telemetry().Changed()) == 0 {
		t.Error("nothing was signalled")
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// countedStream sends datagrams that the node handles one by one and does not forward. The frontend
// is its own backend, so that a datagram that programs see twice is counted twice; the TTL ends at
// the node, so that every datagram goes to the kernel and the next program sees it.
type countedStream struct {
	n    *network
	stop chan struct{}
	wg   sync.WaitGroup
	sent uint64
}

const countedTarget = "10.0.1.11:9000"

func (n *network) countedStream(perMillisecond int) *countedStream {
	n.t.Helper()
	s := &countedStream{n: n, stop: make(chan struct{})}
	n.ok(n.d.Services().Update(n.t.Context(), "counted", datapath.Service{
		Frontends:   []datapath.Frontend{frontend(countedTarget, datapath.UDP)},
		Backends:    backendAddrs(9000, "10.0.1.11"),
		IdleTimeout: datapath.DefaultIdleTimeout(),
	}))
	var c net.Conn
	n.client.Do(n.t, func() (err error) {
		c, err = net.Dial("udp", countedTarget)
		return err
	})
	raw, err := c.(*net.UDPConn).SyscallConn()
	n.ok(err)
	n.ok(raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, 1) }))
	n.ok(err)
	s.wg.Go(func() {
		defer c.Close()
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-ticker.C:
			}
			for range perMillisecond {
				if _, err := c.Write([]byte("counted")); err == nil {
					s.sent++
				}
			}
		}
	})
	return s
}

// end returns how many datagrams were sent, and how many were handled.
func (s *countedStream) end() (sent, handled uint64) {
	s.n.t.Helper()
	close(s.stop)
	s.wg.Wait()
	list, _, err := s.n.d.Connections().List(s.n.t.Context(), datapath.ConnectionFilter{Service: "counted"}, "", 10)
	s.n.ok(err)
	for _, c := range list {
		handled += c.Sent.Packets
	}
	return s.sent, handled
}

// kinds returns the hooks of a port, after comparing them with its pins and the attached programs.
func (n *network) kinds(device string) (kinds []string) {
	n.t.Helper()
	for _, h := range n.port(datapath.PortName(device)).Hooks {
		if !h.Attached() {
			n.t.Errorf("%s of %s is not attached", h.Name(), device)
		}
		kinds = append(kinds, h.Name())
	}
	pins, err := filepath.Glob(filepath.Join(n.d.dir, "ports", "0", device, "*"))
	n.ok(err)
	attached := n.hooked(device)
	links := slices.DeleteFunc(slices.Clone(attached), func(s string) bool { return !strings.HasPrefix(s, "tcx ") })
	tcx := slices.Contains(kinds, "tcx-ingress")
	if want := map[bool]int{true: 3, false: 4}[tcx]; len(pins) != want { // with the slow path's; the qdisc has a pin, too
		n.t.Errorf("%v on %s: pins %v", kinds, device, pins)
	}
	if tcx != (len(links) == 2) || tcx == slices.Contains(attached, "clsact") || len(links)%2 != 0 {
		n.t.Errorf("%v on %s: attached are %v", kinds, device, attached)
	}
	return kinds
}

// TestHooksStay: if another kind of hook is configured at a start, the attached hooks stay, each
// packet is handled exactly once, and the log says what to do. After a detach, the configured kind
// is attached.
func TestHooksStay(t *testing.T) {
	for first, then := range map[string]string{"tcx": "tc", "tc": "tcx"} {
		t.Run(first+" to "+then, func(t *testing.T) {
			requireTCX(t)
			n := newNetwork(t)
			n.restart(first)
			n.attach()
			n.serve()
			n.ok(n.d.Services().Update(t.Context(), "web", web(3)))
			c := n.dial("198.51.100.10:80")
			stream := n.countedStream(1)
			n.ok(n.d.Close())
			var log bytes.Buffer
			n.config.Attach = then
			n.node.Do(t, func() (err error) {
				n.d, err = Open(n.config, slog.New(slog.NewTextHandler(&log, nil)))
				return err
			})
			n.expectKind("in0", first)
			n.expectKind("out0", first)
			for _, port := range []string{"in0", "out0"} {
				if want := "port=" + port; !strings.Contains(log.String(), want) || !strings.Contains(log.String(), "run llcli detach") {
					t.Errorf("the log lacks %q with what to do:\n%s", want, &log)
				}
			}
			c.echo(t, "after a start with "+then)
			if sent, handled := stream.end(); sent != handled || sent == 0 {
				t.Errorf("%d datagrams were sent, %d were handled", sent, handled)
			}
			n.ok(n.d.Close())
			n.node.Do(t, func() error { return Detach(n.config, slog.New(slog.DiscardHandler)) })
			n.open()
			n.attach()
			n.expectKind("in0", then)
			n.expectKind("out0", then)
		})
	}
}

func (n *network) expectKind(device, kind string) {
	n.t.Helper()
	if got, want := n.kinds(device), []string{kind + "-egress", kind + "-ingress"}; !slices.Equal(got, want) {
		n.t.Errorf("hooks of %s are %v, want %v", device, got, want)
	}
}

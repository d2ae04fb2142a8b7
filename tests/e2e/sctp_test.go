// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testnet"
)

// sctpSocket opens a socket in a namespace; each call on it takes 20 s at most.
func sctpSocket(ns *testnet.NS, t *testing.T, family int) (fd int) {
	ns.Do(t, func() (err error) {
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP); err != nil {
			return err
		}
		limit := unix.NsecToTimeval(int64(20 * time.Second))
		return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
	})
	t.Cleanup(func() { _ = unix.Close(fd) }) // no longer needed
	return fd
}

func sctpAddr(a netip.Addr, port int) (unix.Sockaddr, int) {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Port: port, Addr: a.As16()}, unix.AF_INET6
}

// sctpSend sends size bytes from one namespace to an address in another, as messages that the
// kernel segments late into many packets, and waits until the other end has received all.
func sctpSend(t *testing.T, from, to *testnet.NS, addr string, size int) error {
	t.Helper()
	sa, family := sctpAddr(netip.MustParseAddr(addr), 4661)
	server, client := sctpSocket(to, t, family), sctpSocket(from, t, family)
	if err := errors.Join(unix.Bind(server, sa), unix.Listen(server, 4)); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		c, _, err := unix.Accept(server)
		if err != nil {
			done <- fmt.Errorf("accept: %w", err)
			return
		}
		defer unix.Close(c)
		got, buffer := 0, make([]byte, 1<<16)
		for got < size && err == nil {
			var n int
			if n, err = unix.Read(c, buffer); n == 0 && err == nil {
				err = errors.New("it ended")
			}
			got += max(n, 0)
		}
		if err != nil {
			err = fmt.Errorf("after %d of %d bytes: %w", got, size, err)
		}
		done <- err
	}()
	if err := unix.Connect(client, sa); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	message := make([]byte, 1<<15)
	for sent := 0; sent < size; sent += len(message) {
		if _, err := unix.Write(client, message[:min(len(message), size-sent)]); err != nil {
			return fmt.Errorf("send after %d bytes: %w", sent, errors.Join(err, <-done))
		}
	}
	return <-done
}

// TestOverlaySCTP: bulk SCTP through tunnels. The kernel segments it late, too, and no program can
// encapsulate unsegmented SCTP packets.
func TestOverlaySCTP(t *testing.T) {
	testnet.RequireRoot(t)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skip("this kernel has no SCTP: make test-kernels PACKAGES=./tests/e2e RUN=TestOverlaySCTP")
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	for _, kind := range []meshKind{{tunnel: "vxlan", split: true}, {tunnel: "gre", over6: true}, {}} {
		t.Run(kind.String(), func(t *testing.T) {
			m := newMesh(t, 2, kind)
			for _, addr := range []string{m.nodes[1].pod4(), m.nodes[1].pod6()} {
				begin := time.Now()
				if err := sctpSend(t, m.nodes[0].pod, m.nodes[1].pod, addr, 1<<20); err != nil {
					t.Errorf("to %s: %v", addr, err)
				}
				t.Logf("to %s: %s", addr, time.Since(begin).Round(time.Millisecond))
			}
			for _, n := range m.nodes {
				if d := n.Counters("", "").Drops["rewrite"]; d != 0 {
					t.Errorf("node %d dropped %d packets that it could not encapsulate", n.id, d)
				}
			}
		})
	}
}

// TestTunnelCutsSCTP replaces the test above on kernels without SCTP.
func TestTunnelCutsSCTP(t *testing.T) {
	testnet.RequireRoot(t)
	if _, err := exec.LookPath("ethtool"); err != nil {
		t.Skip("needs ethtool")
	}
	for _, kind := range []meshKind{{tunnel: "vxlan", split: true}, {tunnel: "gre"}} {
		n := newMesh(t, 1, kind).nodes[0]
		command := []string{"ethtool", "-k", "hstunnel"}
		if n.sw != "" {
			command = append([]string{"ip", "netns", "exec", n.sw}, command...)
		}
		if out := n.ns.Run(t, command[0], command[1:]...); !strings.Contains(out, "tx-sctp-segmentation: off") || !strings.Contains(out, "tx-tcp-segmentation: on") {
			t.Errorf("%s: offloads of the tunnel's device:\n%s", kind, out)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
)

// sctpText needs several packets, and its length is not a multiple of four bytes.
var sctpText = strings.Repeat("association ", 400) + "end"

// TestSCTPAssociations: real sockets use SCTP through a service. Checksums are computed by the
// sender, by the output device of the node, or, in the worst case, by a later device without
// offload.
func TestSCTPAssociations(t *testing.T) {
	requireSCTP(t)
	type device struct {
		ns   func(*network) *testnet.NS
		name string
	}
	client := device{func(n *network) *testnet.NS { return n.client }, "eth0"}
	backends := device{func(n *network) *testnet.NS { return n.backends }, "eth0"}
	in := device{func(n *network) *testnet.NS { return n.node }, "in0"}
	out := device{func(n *network) *testnet.NS { return n.node }, "out0"}
	for name, plain := range map[string][]device{
		"no checksums":            nil,
		"checksums of the sender": {client, backends},
		"checksums of the node":   {in, out},
	} {
		for _, source := range []datapath.SourceMode{datapath.SourceKeep, datapath.SourceSNAT} {
			t.Run(fmt.Sprintf("%s, source %d", name, source), func(t *testing.T) {
				n := newNetwork(t)
				for _, d := range plain {
					d.ns(n).Offload(t, d.name, false, testnet.TxChecksum)
				}
				n.attach()
				n.associate("198.51.100.10:2905", source, "192.0.2.10", "10.0.1.1",
					"10.0.1.11", "10.0.1.12", "10.0.1.13")
				n.associate("[2001:db8:f::10]:2905", source, "2001:db8:1::10", "2001:db8:2::1",
					"2001:db8:2::11", "2001:db8:2::12", "2001:db8:2::13")
			})
		}
	}
}

// associate creates a service with backends at addr, and three associations with it.
func (n *network) associate(addr string, source datapath.SourceMode, client, node string, backends ...string) {
	n.t.Helper()
	ctx := context.Background()
	to := netip.MustParseAddrPort(addr)
	name := datapath.ServiceName("sctp-" + to.Addr().String())
	n.ok(n.d.Services().Update(ctx, name, datapath.Service{
		Frontends:   []datapath.Frontend{frontend(addr, datapath.SCTP)},
		Backends:    backendAddrs(3868, backends...),
		Algorithm:   datapath.RoundRobin,
		Source:      source,
		IdleTimeout: datapath.DefaultIdleTimeout(),
	}))
	seenAs := client
	if source == datapath.SourceSNAT {
		seenAs = node
	}
	greetings := make(map[string]bool)
	for _, b := range backends {
		n.serveSCTP(b)
		greetings[b+" "+seenAs] = true
	}
	var open []*os.File
	for range backends {
		c := n.dialSCTP(client, to)
		open = append(open, c)
		greeting := make([]byte, 128)
		k, err := c.Read(greeting)
		if err != nil || !greetings[string(greeting[:k])] {
			n.t.Fatalf("%s: greeted by %q (%v), want one of %v", addr, greeting[:k], err, greetings)
		}
		delete(greetings, string(greeting[:k]))
		_, err = c.WriteString(sctpText)
		n.ok(err)
		back := make([]byte, len(sctpText))
		if k, err := io.ReadFull(c, back); err != nil || string(back) != sctpText {
			n.t.Fatalf("%s: %d of %d bytes came back, the same so far: %t (%v)", addr, k, len(back), strings.HasPrefix(sctpText, string(back[:k])), err)
		}
	}
	n.associated(name, len(open), "established")
	for _, c := range open {
		n.ok(c.Close())
	}
	testnet.Eventually(n.t, 5*time.Second, "the associations are shut down", func() bool {
		list, _, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{Service: name, State: "established"}, "", 100)
		return err == nil && len(list) == 0
	})
	if c, _, err := n.d.Telemetry().ServiceCounters(ctx, name); err != nil || c.Connections != uint64(len(open)) {
		n.t.Errorf("counters %+v (%v), want %d connections", c, err, len(open))
	}
}

// associated checks that count connections of the service are in state, and that nothing was
// dropped.
func (n *network) associated(name datapath.ServiceName, count int, state string) {
	n.t.Helper()
	ctx := context.Background()
	list, _, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{Service: name, Protocol: datapath.SCTP, State: state}, "", 100)
	if err != nil || len(list) != count {
		all, _, _ := n.d.Connections().List(ctx, datapath.ConnectionFilter{}, "", 100)
		n.t.Errorf("%d associations of %s are %s (%v), want %d; there are %+v", len(list), name, state, err, count, all)
	}
	c, err := n.d.Telemetry().NodeCounters(ctx)
	n.ok(err)
	for reason, packets := range c.Drops {
		if packets != 0 {
			n.t.Errorf("%d packets dropped, %s", packets, reason)
		}
	}
}

// requireSCTP skips the test if the kernel has no SCTP.
func requireSCTP(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		t.Skipf("SCTP: %v", err)
	}
	unix.Close(fd)
}

func sockaddr(a netip.AddrPort) (int, unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// socketSCTP returns a socket in the namespace that is bound to one address: an association with
// several addresses would announce the others, which a NAT does not translate.
func (n *network) socketSCTP(ns *testnet.NS, local netip.AddrPort) (f *os.File) {
	n.t.Helper()
	ns.Do(n.t, func() error {
		family, addr := sockaddr(local)
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), "sctp")
		return unix.Bind(fd, addr)
	})
	n.t.Cleanup(func() { f.Close() })
	return f
}

// wait runs try on the socket each time it is ready, until try is done or fails.
func wait(f *os.File, forWrite bool, try func(fd int) (done bool, err error)) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var tried error
	step := func(fd uintptr) (done bool) {
		done, tried = try(int(fd))
		return done || tried != nil
	}
	if forWrite {
		err = raw.Write(step)
	} else {
		err = raw.Read(step)
	}
	return errors.Join(err, tried)
}

func (n *network) dialSCTP(local string, to netip.AddrPort) *os.File {
	n.t.Helper()
	f := n.socketSCTP(n.client, netip.AddrPortFrom(netip.MustParseAddr(local), 0))
	n.ok(f.SetDeadline(time.Now().Add(10 * time.Second)))
	_, addr := sockaddr(to)
	started := false
	err := wait(f, true, func(fd int) (bool, error) {
		if !started {
			started = true
			err := unix.Connect(fd, addr)
			if errors.Is(err, unix.EINPROGRESS) {
				return false, nil
			}
			return true, err
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		return true, err
	})
	if err != nil {
		n.t.Fatalf("associate with %s: %v", to, err)
	}
	return f
}

// serveSCTP runs a server that greets with its own address and the client's, then echoes.
func (n *network) serveSCTP(addr string) {
	n.t.Helper()
	l := n.socketSCTP(n.backends, netip.AddrPortFrom(netip.MustParseAddr(addr), 3868))
	n.ok(wait(l, false, func(fd int) (bool, error) { return true, unix.Listen(fd, 16) }))
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			var c *os.File
			var from string
			err := wait(l, false, func(fd int) (bool, error) {
				accepted, peer, err := unix.Accept4(fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
				if errors.Is(err, unix.EAGAIN) {
					return false, nil
				}
				if err != nil {
					return true, err
				}
				c, from = os.NewFile(uintptr(accepted), "sctp"), addrString(peer)
				return true, nil
			})
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // the writes report errors
				if _, err := c.WriteString(addr + " " + from); err == nil {
					_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // best effort
				}
			})
		}
	})
	n.t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
}

func addrString(a unix.Sockaddr) string {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr).String()
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr).String()
	}
	return ""
}

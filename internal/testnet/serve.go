// SPDX-License-Identifier: Apache-2.0

package testnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Server is a small server that answers with its name. It counts its requests.
type Server struct {
	Name string
	Seen atomic.Uint64 // connections, requests or datagrams

	mu      sync.Mutex
	clients map[netip.Addr]bool
	conns   map[net.Conn]bool
	close   func() error
}

// Clients returns the addresses from which clients have sent to the server.
func (s *Server) Clients() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []netip.Addr
	for a := range s.clients {
		out = append(out, a)
	}
	return out
}

// Close stops the server and closes its connections. It may be called twice.
func (s *Server) Close() {
	_ = s.close() // closing twice is harmless
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

func (s *Server) note(addr net.Addr) {
	s.Seen.Add(1)
	ap, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[ap.Addr()] = true
}

func newServer(t T, name string, close func() error) *Server {
	s := &Server{Name: name, clients: map[netip.Addr]bool{}, conns: map[net.Conn]bool{}, close: close}
	t.Cleanup(s.Close)
	return s
}

// Listen opens a TCP listener in the namespace.
func (ns *NS) Listen(t T, addr string) (l net.Listener) {
	t.Helper()
	ns.Do(t, func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(context.Background(), "tcp", addr)
		return err
	})
	return l
}

// ListenUDP opens a UDP socket, which can hold a burst of packets, in the namespace.
func (ns *NS) ListenUDP(t T, addr string) *net.UDPConn {
	t.Helper()
	var c net.PacketConn
	ns.Do(t, func() (err error) {
		lc := net.ListenConfig{Control: bigBuffer}
		c, err = lc.ListenPacket(context.Background(), "udp", addr)
		return err
	})
	return c.(*net.UDPConn)
}

func bigBuffer(_, _ string, raw syscall.RawConn) error {
	var err error
	ctlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20)
	})
	return errors.Join(ctlErr, err)
}

// ServeTCP starts a server that sends its name and a newline, then echoes every byte.
func (ns *NS) ServeTCP(t T, addr, name string) *Server {
	t.Helper()
	l := ns.Listen(t, addr)
	s := newServer(t, name, l.Close)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.note(c.RemoteAddr())
			go s.echo(c)
		}
	}()
	return s
}

func (s *Server) echo(c net.Conn) {
	s.mu.Lock()
	s.conns[c] = true
	s.mu.Unlock()
	defer func() {
		c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	if _, err := fmt.Fprintln(c, s.Name); err != nil {
		return
	}
	_, _ = io.Copy(c, c) // the client may close the connection at any time
}

// ServeUDP starts a server that answers each datagram with its name, a space, and
// the datagram.
func (ns *NS) ServeUDP(t T, addr, name string) *Server {
	t.Helper()
	c := ns.ListenUDP(t, addr)
	s := newServer(t, name, c.Close)
	go func() {
		in, out := make([]byte, 1<<16), make([]byte, 0, 1<<16)
		for {
			n, from, err := c.ReadFromUDPAddrPort(in)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // an ICMP error for an earlier answer
			}
			s.note(net.UDPAddrFromAddrPort(from))
			out = append(append(append(out[:0], name...), ' '), in[:n]...)
			_, _ = c.WriteToUDPAddrPort(out, from)
		}
	}()
	return s
}

// ServeHTTP starts a web server that answers every request with its name and the
// address of the client.
func (ns *NS) ServeHTTP(t T, addr, name string) *Server {
	t.Helper()
	l := ns.Listen(t, addr)
	var s *Server
	web := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.Seen.Add(1)
			fmt.Fprintf(w, "%s %s\n", name, r.RemoteAddr)
		}),
	}
	s = newServer(t, name, web.Close)
	go func() { _ = web.Serve(l) }()
	return s
}

// Dial connects from the namespace. local, if not empty, is the source address, with or without a
// port.
func (ns *NS) Dial(network, local, remote string, timeout time.Duration) (c net.Conn, err error) {
	d := net.Dialer{Timeout: timeout}
	d.SetMultipathTCP(false)
	if local != "" {
		ap, parseErr := netip.ParseAddrPort(local)
		if parseErr != nil {
			return nil, parseErr
		}
		d.LocalAddr = net.TCPAddrFromAddrPort(ap)
		d.Control = reuseAddress
		if network[:3] == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(ap)
		}
	}
	if network[:3] == "udp" {
		d.Control = bigBuffer
	}
	err = ns.Try(func() error {
		c, err = d.Dial(network, remote)
		return err
	})
	return c, err
}

// reuseAddress allows binding to a port that still has a connection in TIME_WAIT.
func reuseAddress(_, _ string, raw syscall.RawConn) error {
	var err error
	ctlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	return errors.Join(ctlErr, err)
}

// HTTPClient returns an HTTP client in the namespace that uses a new connection for each request.
func (ns *NS) HTTPClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(_ context.Context, network, addr string) (net.Conn, error) {
				return ns.Dial(network, "", addr, timeout)
			},
		},
	}
}

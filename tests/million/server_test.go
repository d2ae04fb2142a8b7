// SPDX-License-Identifier: Apache-2.0

package million

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Server echoes the data of its connections, as a process in the backends' namespace. Its exported
// methods are called by the test, through net/rpc.
type Server struct {
	epoll     int
	listeners map[int32]bool

	accepted, broken atomic.Int64
}

// Count counts the connections of a server.
type Count struct {
	Accepted int
	Broken   int // have ended
}

// backlog is the number of connections that may wait to be accepted on each address.
const backlog = 1<<16 - 1

// Listen listens on addresses and begins to serve. Several servers may listen on an address; the
// kernel distributes its connections.
func (s *Server) Listen(addresses []netip.AddrPort, _ *bool) (err error) {
	s.listeners = make(map[int32]bool)
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	for _, address := range addresses {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		err = errors.Join(
			// Connections inherit it: none lingers after the end of the process.
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
			unix.Bind(fd, &unix.SockaddrInet4{Addr: address.Addr().As4(), Port: int(address.Port())}),
			unix.Listen(fd, backlog),
			s.watch(fd),
		)
		if err != nil {
			return err
		}
		s.listeners[int32(fd)] = true
	}
	go s.serve()
	return nil
}

// Count returns the number of connections so far.
func (s *Server) Count(_ int, c *Count) error {
	*c = Count{Accepted: int(s.accepted.Load()), Broken: int(s.broken.Load())}
	return nil
}

func (s *Server) watch(fd int) error {
	return unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// serve accepts connections and echoes, as long as the process lives.
func (s *Server) serve() {
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := unix.EpollWait(s.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			panic(err)
		}
		for _, e := range events[:max(0, n)] {
			if s.listeners[e.Fd] {
				s.accept(int(e.Fd))
			} else {
				s.echo(int(e.Fd))
			}
		}
	}
}

// accept accepts some connections; the rest later, after requests on other connections.
func (s *Server) accept(listener int) {
	for range 64 {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil {
			err = s.watch(fd)
		}
		if err != nil {
			s.broken.Add(1)
			return
		}
		s.accepted.Add(1)
	}
}

func (s *Server) echo(fd int) {
	var b [256]byte
	n, err := again(unix.Read, fd, b[:])
	if err == nil && n > 0 {
		err = writeAll(fd, b[:n])
	}
	if errors.Is(err, unix.EAGAIN) {
		return
	}
	if err != nil || n == 0 {
		s.broken.Add(1)
		unix.Close(fd) // the connection has ended
	}
}

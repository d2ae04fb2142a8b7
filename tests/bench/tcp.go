// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const (
	tcpInFlight = 64  // connections at a time
	requestSize = 100 // bytes, request and answer alike
	tcpPatience = 5 * time.Second
)

// tcpLoad is both ends of many connections in one thread and one epoll set: the
// kernel carries each packet on the CPU that sends it, so the CPU time of the
// thread is what the connections cost, on every path and whatever else runs.
type tcpLoad struct {
	target   unix.SockaddrInet4
	keep     bool // connections are kept and carry one request after the other
	total    int  // connections, or requests where they are kept
	epoll    int
	listener int
	role     map[int]tcpRole
	started  int
	finished int
	buffer   [requestSize]byte
}

type tcpRole uint8

const (
	tcpServer tcpRole = iota + 1
	tcpClient
	tcpAsked // a client that has sent its request
)

// tcpRun makes total connections, or requests on kept ones, from the rig's client
// to target and returns the CPU time that they took.
func tcpRun(ctx context.Context, r *rig, p place, target string, port, total int, keep bool) (cpu time.Duration, err error) {
	l := &tcpLoad{target: unix.SockaddrInet4{Port: port}, keep: keep, total: total, role: map[int]tcpRole{}}
	copy(l.target.Addr[:], net.ParseIP(target).To4())
	backend := r.pod
	if p == elsewhere {
		backend = r.server
	}
	if l.listener, err = listen(backend); err != nil {
		return 0, err
	}
	defer unix.Close(l.listener)
	err = r.client.do(func() error {
		defer l.close()
		if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
			return err
		}
		if err := l.watch(l.listener, unix.EPOLLIN); err != nil {
			return err
		}
		watch, err := startWatch()
		if err != nil {
			return err
		}
		if err := l.loop(ctx); err != nil {
			return fmt.Errorf("%d of %d done: %w", l.finished, l.total, err)
		}
		cpu, err = watch.stop()
		return err
	})
	return cpu, err
}

// listen opens a non-blocking socket on the backends' port.
func listen(ns *namespace) (fd int, err error) {
	err = ns.do(func() error {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(fd, &unix.SockaddrInet4{Port: backendPort}),
			unix.Listen(fd, 4096),
		)
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("listen on port %d: %w", backendPort, err)
		}
		return nil
	})
	return fd, err
}

func (l *tcpLoad) close() {
	for fd := range l.role {
		unix.Close(fd)
	}
	if l.epoll > 0 {
		unix.Close(l.epoll)
	}
}

func (l *tcpLoad) watch(fd int, events uint32) error {
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Fd: int32(fd), Events: events})
}

func (l *tcpLoad) loop(ctx context.Context) error {
	for range min(tcpInFlight, l.total) {
		if err := l.connect(); err != nil {
			return err
		}
	}
	events := make([]unix.EpollEvent, 2*tcpInFlight)
	for last := time.Now(); l.finished < l.total; {
		n, err := unix.EpollWait(l.epoll, events, 100)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case n > 0:
			last = time.Now()
		case time.Since(last) > tcpPatience:
			return fmt.Errorf("nothing happened for %s", tcpPatience)
		}
		for _, e := range events[:n] {
			if err := l.serve(int(e.Fd)); err != nil {
				return err
			}
		}
	}
	return nil
}

// serve does what fd is ready for.
func (l *tcpLoad) serve(fd int) error {
	switch l.role[fd] {
	case tcpServer:
		return l.answer(fd)
	case tcpClient:
		return l.ask(fd)
	case tcpAsked:
		return l.hear(fd)
	}
	if fd == l.listener {
		return l.accept()
	}
	return nil // closed while its event was waiting
}

// connect begins a connection from the next of the client's addresses.
func (l *tcpLoad) connect() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	l.role[fd] = tcpClient
	source := unix.SockaddrInet4{}
	copy(source.Addr[:], net.ParseIP(clientAddress).To4())
	source.Addr[3] += byte(l.started % clientCount)
	l.started++
	if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return err
	}
	if err := unix.Bind(fd, &source); err != nil {
		return err
	}
	if err := unix.Connect(fd, &l.target); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect: %w", err)
	}
	return l.watch(fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLET)
}

func (l *tcpLoad) accept() error {
	for {
		fd, _, err := unix.Accept4(l.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		l.role[fd] = tcpServer
		if err := l.watch(fd, unix.EPOLLIN); err != nil {
			return err
		}
	}
}

// answer is the server's part: it answers a request, and hangs up first unless
// connections are kept.
func (l *tcpLoad) answer(fd int) error {
	n, err := unix.Read(fd, l.buffer[:])
	switch {
	case errors.Is(err, unix.EAGAIN):
		return nil
	case err != nil:
		return fmt.Errorf("server: %w", err)
	case n == 0:
		return l.hangUp(fd)
	}
	if _, err := unix.Write(fd, l.buffer[:]); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	if l.keep {
		return nil
	}
	return l.hangUp(fd)
}

func (l *tcpLoad) hangUp(fd int) error {
	delete(l.role, fd)
	return unix.Close(fd)
}

// ask sends a client's request once it is connected.
func (l *tcpLoad) ask(fd int) error {
	_, err := unix.Write(fd, l.buffer[:])
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	l.role[fd] = tcpAsked
	return nil
}

// hear takes the answer, and at the end of a connection begins the next one.
func (l *tcpLoad) hear(fd int) error {
	for {
		n, err := unix.Read(fd, l.buffer[:])
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("client: %w", err)
		}
		if l.keep {
			l.finished++
			return l.ask(fd)
		}
		if n > 0 {
			continue
		}
		l.finished++
		if err := l.hangUp(fd); err != nil {
			return err
		}
		if l.started < l.total {
			return l.connect()
		}
		return nil
	}
}

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
	tcpBatch    = 64  // connections at a time
	requestSize = 100 // bytes, request and answer alike
	tcpPatience = 5   // seconds that a call on a socket may block
)

// tcpLoad drives both ends of many connections in one thread, a batch at a time, step by step: the
// kernel processes each packet on the CPU that sends it, completely before the call returns, so
// that calls hardly ever block. The CPU time of the thread is the cost of the connections, on every
// path and independent of other programs.
type tcpLoad struct {
	target   unix.SockaddrInet4
	listener int
	clients  []int
	servers  []int
	buffer   [requestSize]byte
}

// tcpRun opens total connections from the rig's client to target, or sends total requests on
// persistent ones, and returns the CPU time that they took.
func tcpRun(ctx context.Context, r *rig, p place, target string, port, total int, keep bool) (cpu time.Duration, err error) {
	l := &tcpLoad{target: unix.SockaddrInet4{Port: port}}
	copy(l.target.Addr[:], net.ParseIP(target).To4())
	if l.listener, err = listen(r.backend(p)); err != nil {
		return 0, err
	}
	defer unix.Close(l.listener)
	err = r.client.do(func() error {
		defer l.hangUp()
		work := l.connections
		if keep {
			work = l.requests
			if err := l.connect(min(tcpBatch, total)); err != nil {
				return err
			}
		}
		watch, err := startWatch()
		if err != nil {
			return err
		}
		for done := 0; done < total && err == nil; done += tcpBatch {
			if err = ctx.Err(); err == nil {
				err = work(min(tcpBatch, total-done))
			}
			if err != nil {
				err = fmt.Errorf("%d of %d done: %w", done, total, err)
			}
		}
		if err == nil {
			cpu, err = watch.stop()
		}
		return err
	})
	return cpu, err
}

// backend returns the namespace of the backends at a place.
func (r *rig) backend(p place) *namespace {
	if p == elsewhere {
		return r.server
	}
	return r.pod
}

// listen opens a socket on the backends' port.
func listen(ns *namespace) (fd int, err error) {
	err = ns.do(func() error {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = errors.Join(
			patience(fd), // applies to the connections, too
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

// patience bounds how long calls on a socket block.
func patience(fd int) error {
	t := unix.Timeval{Sec: tcpPatience}
	return errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &t),
	)
}

// connect connects, and retries if a signal interrupts it.
func connect(fd int, to unix.Sockaddr) error {
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.Connect(fd, to)
	}
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return nil
}

// accept accepts a connection, and retries if a signal interrupts it.
func accept(listener int) (fd int, err error) {
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		fd, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
	}
	if err != nil {
		return -1, fmt.Errorf("accept: %w", err)
	}
	return fd, nil
}

// connections opens count connections, each with one request, and closes them.
func (l *tcpLoad) connections(count int) error {
	if err := l.connect(count); err != nil {
		return err
	}
	if err := l.requests(count); err != nil {
		return err
	}
	for _, fd := range l.servers { // the server closes first, as a web server does
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	l.servers = l.servers[:0]
	for _, fd := range l.clients {
		n, err := again(unix.Read, fd, l.buffer[:])
		if err != nil || n != 0 {
			return fmt.Errorf("client waits for the end: %d bytes, %w", n, err)
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	l.clients = l.clients[:0]
	return nil
}

// connect opens count connections.
func (l *tcpLoad) connect(count int) error {
	for range count {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		l.clients = append(l.clients, fd)
		if err := patience(fd); err != nil {
			return err
		}
		if err := connect(fd, &l.target); err != nil {
			return err
		}
	}
	for range count {
		fd, err := accept(l.listener)
		if err != nil {
			return err
		}
		l.servers = append(l.servers, fd)
	}
	return nil
}

// requests sends a request on each of count connections and answers it.
func (l *tcpLoad) requests(count int) error {
	for _, step := range []struct {
		what string
		fds  []int
		call func(int, []byte) (int, error)
	}{
		{"send a request", l.clients, unix.Write},
		{"receive a request", l.servers, unix.Read},
		{"send an answer", l.servers, unix.Write},
		{"receive an answer", l.clients, unix.Read},
	} {
		for _, fd := range step.fds[:count] {
			if n, err := again(step.call, fd, l.buffer[:]); err != nil || n != requestSize {
				return fmt.Errorf("%s: %d bytes of %d, %w", step.what, n, requestSize, err)
			}
		}
	}
	return nil
}

// again makes a call, and retries if a signal interrupts it.
func again(call func(int, []byte) (int, error), fd int, buffer []byte) (n int, err error) {
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		n, err = call(fd, buffer)
	}
	return n, err
}

func (l *tcpLoad) hangUp() {
	for _, fd := range append(l.clients, l.servers...) {
		unix.Close(fd) // the measurement is over, so an error is harmless
	}
}

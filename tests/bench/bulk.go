// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const bulkChunk = 128 << 10 // bytes of one write and one read

// bulkRun sends as much as possible over the given number of streams for a duration, with a thread
// for each end of a stream, and returns the bytes received per second.
func bulkRun(r *rig, p place, target string, port, streams int, duration time.Duration) (float64, error) {
	listener, err := listen(r.backend(p))
	if err != nil {
		return 0, err
	}
	defer unix.Close(listener)
	var received atomic.Int64
	done := make(chan error, 2*streams)
	begin := time.Now()
	for range streams {
		go func() {
			done <- onThread(func() error { return bulkReceive(listener, &received) })
		}()
		go func() {
			done <- r.client.do(func() error { return bulkSend(target, port, begin.Add(duration)) })
		}()
	}
	for range 2 * streams {
		err = errors.Join(err, <-done)
	}
	return float64(received.Load()) / time.Since(begin).Seconds(), err
}

func bulkSend(target string, port int, end time.Time) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := patience(fd); err != nil {
		return err
	}
	to := unix.SockaddrInet4{Port: port}
	copy(to.Addr[:], net.ParseIP(target).To4())
	if err := connect(fd, &to); err != nil {
		return fmt.Errorf("%s:%d: %w", target, port, err)
	}
	chunk := make([]byte, bulkChunk)
	for time.Now().Before(end) {
		if _, err := unix.Write(fd, chunk); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("send: %w", err)
		}
	}
	return nil
}

func bulkReceive(listener int, received *atomic.Int64) error {
	fd, err := accept(listener)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := patience(fd); err != nil {
		return err
	}
	chunk := make([]byte, bulkChunk)
	for {
		n, err := unix.Read(fd, chunk)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("receive: %w", err)
		case n == 0:
			return nil
		}
		received.Add(int64(max(n, 0)))
	}
}

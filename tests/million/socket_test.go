// SPDX-License-Identifier: Apache-2.0

package million

import (
	"encoding/binary"
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// callTimeout is how long a call on a socket may block. TCP sends a lost packet again after 0.2 s,
// 0.6 s, 1.4 s, 3 s and 6.2 s.
const callTimeout = 10 * time.Second

// message is a request and its answer.
type message [16]byte

func newMessage(worker, connection int, round uint32) (m message) {
	binary.BigEndian.PutUint32(m[0:], uint32(worker))
	binary.BigEndian.PutUint64(m[4:], uint64(connection))
	binary.BigEndian.PutUint32(m[12:], round)
	return m
}

var errWrong = errors.New("wrong answer")

// kindOf returns the kind of a failure.
func kindOf(err error) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE), errors.Is(err, io.EOF):
		return "reset"
	case errors.Is(err, errWrong):
		return "wrong answer"
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINPROGRESS), errors.Is(err, unix.ETIMEDOUT):
		return "lost"
	}
	return "other"
}

// limitCalls limits how long calls on a socket block.
func limitCalls(fd int) error {
	limit := unix.NsecToTimeval(callTimeout.Nanoseconds())
	return errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
	)
}

// connect connects a socket, and retries if a signal interrupts it.
func connect(fd int, to unix.Sockaddr) error {
	for {
		switch err := unix.Connect(fd, to); {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EALREADY):
		case errors.Is(err, unix.EISCONN):
			return nil
		default:
			return err
		}
	}
}

// again makes a call, and retries if a signal interrupts it.
func again(call func(int, []byte) (int, error), fd int, b []byte) (n int, err error) {
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		n, err = call(fd, b)
	}
	return n, err
}

func writeAll(fd int, b []byte) error {
	n, err := again(unix.Write, fd, b)
	if err == nil && n != len(b) {
		err = io.ErrShortWrite
	}
	return err
}

func readMessage(fd int) (m message, err error) {
	for at := 0; at < len(m); {
		n, err := again(unix.Read, fd, m[at:])
		if err != nil {
			return m, err
		}
		if n == 0 {
			return m, io.EOF
		}
		at += n
	}
	return m, nil
}

// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The errors of a call besides [*api.Error], to be tested with [errors.Is].
var (
	// ErrNotRunning: no process listens on the socket. Nothing was done.
	ErrNotRunning = errors.New("loxilightd is not running")
	// ErrPermission: this user may not use the socket. Nothing was done.
	ErrPermission = errors.New("permission denied")
	// ErrNotAnswering: the daemon runs, but hangs or closed the connection.
	ErrNotAnswering = errors.New("loxilightd is not answering")
	// ErrOutcomeUnknown: a change was sent, but no answer arrived or the caller did not wait for
	// one. It is combined with ErrNotAnswering.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrTooLong: a request is larger than the channel allows.
	ErrTooLong = errors.New("request too long")
)

// errStarting is ErrNotRunning for a daemon that has no socket yet.
var errStarting error = startingError{}

type startingError struct{}

func (startingError) Error() string        { return "loxilightd is starting or stopping" }
func (startingError) Is(target error) bool { return target == ErrNotRunning }

// DaemonProcess returns the process id of the loxilightd that holds the lock of a run directory, or
// an empty string if none does, or if the process was killed and is about to disappear. root is
// prepended to all paths. The lock is only read: taking it could keep a daemon from starting.
func DaemonProcess(root, runDir string) string {
	text, err := os.ReadFile(filepath.Join(root, runDir, "loxilightd.lock"))
	if err != nil {
		return ""
	}
	pid := strings.TrimSpace(string(text))
	if _, err := strconv.ParseUint(pid, 10, 32); err != nil {
		return ""
	}
	comm, err := os.ReadFile(filepath.Join(root, "/proc", pid, "comm"))
	if err != nil || strings.TrimSpace(string(comm)) != "loxilightd" {
		return ""
	}
	stat, err := os.ReadFile(filepath.Join(root, "/proc", pid, "stat"))
	if err == nil && exits(string(stat)) {
		return ""
	}
	return pid
}

// exits reports whether a process has ended or the kernel is still tearing it down: closing
// thousands of file descriptors for maps and programs takes a second. stat is the content of
// /proc/PID/stat.
func exits(stat string) bool {
	const exiting = 0x4 // PF_EXITING
	_, rest, _ := strings.Cut(stat, ") ")
	fields := strings.Fields(rest) // the state, five numbers, and the flags
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 32)
	return strings.ContainsAny(fields[0], "ZXx") || err == nil && flags&exiting != 0
}

// Internal errors: how far a request has been sent.
var (
	errNotSent   = errors.New("request not sent")     // or not completely, so the daemon does not execute it
	errBroken    = errors.New("connection broken")    // connection broken by the daemon, or because the daemon ended
	errHandshake = errors.New("no nanomsg handshake") // connected, but the daemon sent nothing
)

// Error is an error of the channel, with the socket, the call, and what to do.
type Error struct {
	Socket    string // path
	Method    string // empty while connecting
	RequestID string // id of a change whose outcome is unknown: repeat the change with this id

	kinds []error
	hint  string
	cause error
}

func (e *Error) Error() string {
	text := ""
	if e.Method != "" {
		text = e.Method + ": "
	}
	for _, k := range e.kinds {
		text += k.Error() + ": "
	}
	text += fmt.Sprintf("socket %s", e.Socket)
	if e.cause != nil {
		text += ": " + causeText(e.cause)
	}
	if e.hint != "" {
		text += " (" + e.hint + ")"
	}
	return text
}

// causeText describes a context's error in plain words.
func causeText(cause error) string {
	switch {
	case errors.Is(cause, context.DeadlineExceeded):
		return "no answer in time"
	case errors.Is(cause, context.Canceled):
		return "interrupted"
	default:
		return cause.Error()
	}
}

// Unwrap returns the sentinels that apply, and the cause.
func (e *Error) Unwrap() []error { return append(append([]error{}, e.kinds...), e.cause) }

// callError adds the facts about the call to err.
func (c *Client) callError(method, requestID string, change bool, err error) error {
	if known, ok := errors.AsType[*Error](err); ok {
		e := *known
		e.Method = method
		return &e
	}
	e := &Error{Socket: c.socket, Method: method, cause: err, kinds: []error{ErrNotAnswering}}
	switch {
	case errors.Is(err, context.Canceled): // the caller gave up; the daemon may be fine
		e.kinds = nil
	case errors.Is(err, context.DeadlineExceeded):
		e.hint = "it hangs, or needs longer than the timeout: see its log"
	default:
		e.hint = "it has stopped: see its log"
	}
	if change && !errors.Is(err, errNotSent) {
		e.kinds = []error{ErrOutcomeUnknown, ErrNotAnswering}
		e.RequestID = requestID
		e.hint = "the change may or may not have been made"
		if requestID != "" {
			e.hint += "; repeating the request with request id " + requestID + " does not make it twice"
		}
	}
	return e
}

// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/loxilight/loxilight/api/client"
)

// Daemon is the daemon's interface for the commands.
type Daemon interface {
	// Call calls a method that changes nothing, and decodes its result: objects
	// and counters whole, lists page by page.
	Call(ctx context.Context, method string, params, result any) error
	// Change calls a method that changes something, at most once. wait is how long the daemon may
	// delay its answer.
	Change(ctx context.Context, method, requestID string, wait time.Duration, params, result any) error
	// Watch yields objects, and then each object that changes, until ctx is done.
	Watch(ctx context.Context, o client.WatchOptions) iter.Seq2[client.Watched, error]
	// Events subscribes to topics; without topics, to all of them.
	Events(ctx context.Context, topics ...string) (Events, error)
	Close() error
}

// Events is a subscription.
type Events interface {
	// Next waits for the next event.
	Next(ctx context.Context) (client.Event, error)
	Close()
}

// Env contains the resources of the process that a run uses.
type Env struct {
	Args   []string // without the program's name
	In     io.Reader
	Out    io.Writer
	Err    io.Writer
	Getenv func(string) string
	// Width returns the number of columns if Out is a terminal; otherwise 0.
	Width func() int
	// Dial connects to the daemon at a nanomsg URL. timeout limits each call.
	Dial func(ctx context.Context, url string, timeout time.Duration) (Daemon, error)
	// Terminal reports whether the user can be asked at a terminal; nil: no terminal.
	Terminal func() bool
	// Now is the current time, used only for output.
	Now func() time.Time
	// Edit lets the user edit a file with the user's editor.
	Edit func(ctx context.Context, path string) error
	// Program returns the path of loxilightd on this machine.
	Program func() (string, error)
	// Exec runs a program to completion and returns its exit code.
	Exec func(ctx context.Context, stdout, stderr io.Writer, name string, args ...string) (int, error)
	// Root is the prefix of the paths of the machine's files; empty: this machine.
	Root string
	// Version and Build are llcli's own.
	Version, Build string
}

// ErrNoProgram: there is no loxilightd on this machine.
var ErrNoProgram = errors.New("loxilightd is neither beside llcli nor in /usr/sbin nor in PATH: install the package loxilight, or build it")

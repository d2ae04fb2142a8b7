// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

// listener runs serve for each connection to path until the test ends.
func listener(t *testing.T, path string, serve func(net.Conn)) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // ends Accept
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }() // the test notices a missing reply
				serve(c)
			}()
		}
	}()
}

// greet performs the handshake as a REP socket and reads a request.
func greet(c net.Conn) error {
	if _, err := c.Write([]byte{0, 'S', 'P', 0, 0, 0x31, 0, 0}); err != nil {
		return err
	}
	var head [8 + 9]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, binary.BigEndian.Uint64(head[9:])))
	return err
}

// TestPhases makes the daemon fail in each phase of a call in turn.
func TestPhases(t *testing.T) {
	hang := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) } // until the client hangs up
	for name, test := range map[string]struct {
		serve   func(net.Conn)
		timeout time.Duration // zero: an error without a timeout
		want    []error
		not     error
		text    string
	}{
		"no handshake":        {hang, 200 * time.Millisecond, []error{ErrNotAnswering}, ErrOutcomeUnknown, "hangs"},
		"hangs up":            {func(net.Conn) {}, 0, []error{ErrNotAnswering}, ErrOutcomeUnknown, "closed the connection"},
		"garbage handshake":   {func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n")); hang(c) }, 0, []error{ErrNotAnswering}, ErrOutcomeUnknown, "handshake"},
		"another protocol":    {func(c net.Conn) { _, _ = c.Write([]byte{0, 'S', 'P', 0, 0, 0x20, 0, 0}); hang(c) }, 0, []error{ErrNotAnswering}, ErrOutcomeUnknown, "handshake"},
		"half a handshake":    {func(c net.Conn) { _, _ = c.Write([]byte{0, 'S', 'P'}); hang(c) }, 200 * time.Millisecond, []error{ErrNotAnswering}, ErrOutcomeUnknown, "hangs"},
		"no answer":           {func(c net.Conn) { _ = greet(c); hang(c) }, 200 * time.Millisecond, []error{ErrNotAnswering, ErrOutcomeUnknown}, nil, "request id once"},
		"dies after reading":  {func(c net.Conn) { _ = greet(c) }, 0, []error{ErrNotAnswering, ErrOutcomeUnknown}, nil, "request id once"},
		"half an answer":      {func(c net.Conn) { _ = greet(c); _, _ = c.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0, 99, 0x80}) }, 0, []error{ErrNotAnswering, ErrOutcomeUnknown}, nil, ""},
		"an answer too large": {func(c net.Conn) { _ = greet(c); _, _ = c.Write([]byte{1, 0, 0, 0, 0, 0x10, 0, 0, 0}); hang(c) }, 0, []error{ErrNotAnswering, ErrOutcomeUnknown}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := socketIn(t)
			listener(t, path, test.serve)
			c, err := New(Options{Socket: path})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(test.timeout, 20*time.Second))
			defer cancel()
			begin := time.Now()
			change := api.ApplyParams{}
			change.RequestID = "once"
			_, err = c.Apply(ctx, change)
			for _, want := range test.want {
				if !errors.Is(err, want) {
					t.Errorf("error = %v, want %v", err, want)
				}
			}
			if test.not != nil && errors.Is(err, test.not) {
				t.Errorf("error = %v, which is more than is known", err)
			}
			if err != nil && (!strings.Contains(err.Error(), test.text) || !strings.Contains(err.Error(), path)) {
				t.Errorf("error = %q, want the socket and %q in it", err, test.text)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

// TestFullBacklog: the daemon no longer accepts connections.
func TestFullBacklog(t *testing.T) {
	path := socketIn(t)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // no connection is served
	for {                            // until the kernel refuses further connections
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", path)
		cancel()
		if err != nil {
			break
		}
		defer func() { _ = c.Close() }() // nothing was sent
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, Options{Socket: path}); !errors.Is(err, ErrNotAnswering) {
		t.Errorf("error = %v, want ErrNotAnswering", err)
	}
}

// TestAnswersThatAreNone: an invalid reply, for example from a different version of the daemon, is
// an error.
func TestAnswersThatAreNone(t *testing.T) {
	for _, answer := range []string{``, `hello`, `[]`, `{"jsonrpc":"2.0","id":1}`, `{"jsonrpc":"2.0","id":1,"result":7}`} {
		path := socketIn(t)
		daemon(t, path, func([]byte) []byte { return []byte(answer) })
		c, err := New(Options{Socket: path})
		if err != nil {
			t.Fatal(err)
		}
		if v, err := c.Version(t.Context()); err == nil {
			t.Errorf("%q was taken for %+v", answer, v)
		}
		_ = c.Close() // nothing is left to send
	}
}

// TestRestart uses a client across a restart of the daemon.
func TestRestart(t *testing.T) {
	path := socketIn(t)
	changes := 0
	handle := func([]byte) []byte {
		changes++
		return []byte(`{"jsonrpc":"2.0","id":1,"result":{"revision":1,"changes":[]}}`)
	}
	c, err := New(Options{Socket: path})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 5 {
		stop := daemon(t, path, handle)
		if _, err := c.Apply(t.Context(), api.ApplyParams{}); err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
		stop()
		for { // its connections take a moment to close
			_, err := c.Apply(t.Context(), api.ApplyParams{})
			if errors.Is(err, ErrNotRunning) {
				break
			}
			if !errors.Is(err, ErrOutcomeUnknown) {
				t.Fatalf("between the runs: %v, want ErrNotRunning", err)
			}
		}
	}
	if changes != 5 {
		t.Errorf("%d changes were made, want 5", changes)
	}
}

func TestRequestIDs(t *testing.T) {
	for _, params := range []any{api.ApplyParams{}, &api.ApplyParams{}, api.ReplaceParams{}, api.DeleteParams{}} {
		p, err := newPlan("m", "", params)
		if err != nil || p.requestID == "" || !strings.Contains(string(p.commit), `"requestID":"`+p.requestID+`"`) {
			t.Errorf("%T: request %s, %v; want one with an id", params, p.commit, err)
		}
	}
	mine := api.ApplyParams{}
	mine.RequestID = "mine"
	if p, err := newPlan("m", "mine", mine); err != nil || p.requestID != "mine" {
		t.Errorf("request id = %q, %v; want mine", p.requestID, err)
	}
	dry := api.ApplyParams{}
	dry.DryRun = true
	if p, err := newPlan("m", "", dry); err != nil || p.requestID != "" {
		t.Errorf("a dry run got request id %q, %v", p.requestID, err)
	}
}

// TestCanceled: if a caller cancels a call, its outcome is unknown only if the request was sent.
func TestCanceled(t *testing.T) {
	for name, answer := range map[string]func(net.Conn) error{
		"in the handshake": func(net.Conn) error { return nil },
		"after sending":    greet,
	} {
		t.Run(name, func(t *testing.T) {
			path := socketIn(t)
			ctx, cancel := context.WithCancel(t.Context())
			listener(t, path, func(c net.Conn) {
				_ = answer(c) // the test notices a missing reply
				cancel()
				_, _ = io.Copy(io.Discard, c) // until the client hangs up
			})
			c, err := New(Options{Socket: path})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, err = c.Apply(ctx, api.ApplyParams{})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error = %v, want the context's", err)
			}
			if sent := name == "after sending"; errors.Is(err, ErrOutcomeUnknown) != sent || errors.Is(err, ErrNotAnswering) != sent {
				t.Errorf("error = %v, outcome unknown should be %v", err, sent)
			}
		})
	}
}

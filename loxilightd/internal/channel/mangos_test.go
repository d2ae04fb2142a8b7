// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.nanomsg.org/mangos/v3"
	"go.nanomsg.org/mangos/v3/protocol/rep"
	"go.nanomsg.org/mangos/v3/protocol/req"
)

// These tests show why we do not use mangos' own listener and dialer. If a newer mangos fails one
// of these tests, check whether our own can be simplified.

// TestMangosListenerHangsWhenARefusedPeerIsClosed: closing a pipe while it is being attached, the
// documented way to refuse a peer, hangs the listener forever.
func TestMangosListenerHangsWhenARefusedPeerIsClosed(t *testing.T) {
	sock, err := rep.NewSocket()
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{}, 1)
	first := true
	sock.SetPipeEventHook(func(event mangos.PipeEvent, p mangos.Pipe) {
		if event == mangos.PipeEventAttaching && first {
			first = false
			_ = p.Close() // the peer is refused
			refused <- struct{}{}
		}
	})
	path := filepath.Join(shared(t), "stock")
	if err := sock.Listen("ipc://" + path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sock.Close() }) // its listener stays hung
	dialRaw(t, path).shake(protoReq)
	<-refused
	r := dialRaw(t, path).shake(protoReq)
	r.send(requestFrame(1, "x"))
	if err := sock.SetOption(mangos.OptionRecvDeadline, 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if got, err := sock.Recv(); !errors.Is(err, mangos.ErrRecvTimeout) {
		t.Errorf("the second peer's request came: %q, %v", got, err)
	}
}

// TestMangosSendsRequestsAgain: by default, REQ repeats a request after the connection breaks,
// whether or not the request was executed.
func TestMangosSendsRequestsAgain(t *testing.T) {
	sock, err := req.NewSocket()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sock.Close() }) // nothing to lose
	if v, err := sock.GetOption(mangos.OptionRetryTime); err != nil || v != time.Minute {
		t.Errorf("retry time = %v, %v; want a minute", v, err)
	}
	path := filepath.Join(shared(t), "stock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // ends Accept if it is still waiting
	times := make(chan int, 2)
	go func() { // reads the request and closes the connection, twice
		for i := range 2 {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte{0, 'S', 'P', 0, 0, 0x31, 0, 0})
			if _, err := io.ReadFull(c, make([]byte, 8+9+4+len("do it"))); err == nil {
				times <- i
			}
			_ = c.Close()
		}
	}()
	if err := sock.Dial("ipc://" + path); err != nil {
		t.Fatal(err)
	}
	if err := sock.Send([]byte("do it")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case <-times:
		case <-time.After(10 * time.Second):
			t.Fatal("the request came once")
		}
	}
}

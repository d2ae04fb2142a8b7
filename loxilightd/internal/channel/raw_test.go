// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// Protocol numbers of the handshake, taken from nanomsg's RFCs.
const (
	protoSub = 0x21
	protoReq = 0x30
)

// raw is a client that implements the transport itself, so that it can misbehave.
type raw struct {
	*net.UnixConn
	t *testing.T
}

// rawPatience limits each message that a raw client receives, and all that it sends together.
const rawPatience = 20 * time.Second

// dialRaw connects without sending anything yet. All later operations have a timeout.
func dialRaw(t *testing.T, path string) *raw {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // it is often already closed
	if err := c.SetDeadline(time.Now().Add(rawPatience)); err != nil {
		t.Fatal(err)
	}
	return &raw{c, t}
}

// shake performs the handshake as a peer that uses the given protocol.
func (r *raw) shake(protocol byte) *raw {
	r.t.Helper()
	var received [8]byte
	if _, err := r.Write([]byte{0, 'S', 'P', 0, 0, protocol, 0, 0}); err != nil {
		r.t.Fatal(err)
	}
	if _, err := io.ReadFull(r, received[:]); err != nil {
		r.t.Fatalf("handshake: %v", err)
	}
	return r
}

func frame(body []byte) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{1}, uint64(len(body))), body...)
}

// requestFrame returns a request with its id, in the form in which REQ sends it.
func requestFrame(id uint32, body string) []byte {
	return frame(append(binary.BigEndian.AppendUint32(nil, id|0x80000000), body...))
}

func (r *raw) send(b []byte) {
	r.t.Helper()
	if _, err := r.Write(b); err != nil {
		r.t.Fatalf("send: %v", err)
	}
}

// receive reads one message.
func (r *raw) receive() (string, error) {
	if err := r.SetReadDeadline(time.Now().Add(rawPatience)); err != nil {
		return "", err
	}
	var header [9]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return "", err
	}
	size := binary.BigEndian.Uint64(header[1:])
	if header[0] != 1 || size > 2<<20 {
		return "", fmt.Errorf("frame header % x", header)
	}
	body := make([]byte, size)
	_, err := io.ReadFull(r, body)
	return string(body), err
}

// waitClosed waits until the daemon hangs up.
func (r *raw) waitClosed() {
	r.t.Helper()
	if _, err := io.Copy(io.Discard, r); err != nil {
		if e, ok := err.(net.Error); ok && e.Timeout() {
			r.t.Error("the daemon did not hang up")
		}
	}
}

func controlPath(c *Channel) string { return c.control.opts.path }
func eventsPath(c *Channel) string  { return filepath.Join(filepath.Dir(controlPath(c)), EventsSocket) }

// eventually waits until cond is true.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	testnet.Eventually(t, 20*time.Second, what, cond)
}

// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"go.nanomsg.org/mangos/v3"
)

// The framing of nanomsg's ipc transport: eight bytes of handshake in each direction, then
// messages. A message is a byte 1, eight bytes of length in network byte order, and the body.
const (
	headerSize  = 9
	messageType = 1
	maxHops     = 8 // maximum number of request ids that nanomsg devices put before the client's own
	// maxSkip is the size up to which an oversized message is read and discarded, so that the
	// client receives an error. If a message is longer, the connection is closed.
	maxSkip = 64 << 20
)

// optionConn is the pipe option through which mangos returns the *conn.
const optionConn = "loxilight-conn"

// conn is one connection after its handshake, as mangos uses it. On the control socket, it counts
// the requests passed to mangos and the requests answered.
type conn struct {
	net    *net.UnixConn
	peer   Peer
	opts   *endpointOptions
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	closed func(*conn)   // notifies the endpoint
	slots  chan struct{} // one for each unanswered request

	greeted chan struct{} // closed once the greeting has been sent

	writing sync.Mutex // held for a whole frame

	mu      sync.Mutex
	taken   bool      // closed: no further request may be passed on
	unread  []int     // sizes of requests passed to mangos that dispatch has not taken yet
	carried int       // number of complete requests whose replies are not being written yet
	unsent  int       // bytes of unwritten replies
	since   time.Time // time of the last completed handshake, request or reply
}

func newConn(c *net.UnixConn, peer Peer, o *endpointOptions, closed func(*conn)) *conn {
	ctx, cancel := context.WithCancel(context.Background())
	fresh := &conn{
		net: c, peer: peer, opts: o, ctx: ctx, cancel: cancel, closed: closed,
		slots: make(chan struct{}, o.limits.PerPeer), greeted: make(chan struct{}), since: time.Now(),
	}
	if o.attached == nil {
		close(fresh.greeted)
	}
	return fresh
}

// connOf returns the connection of a mangos pipe.
func connOf(pipe mangos.Pipe) *conn {
	v, err := pipe.GetOption(optionConn)
	c, ok := v.(*conn)
	if err != nil || !ok {
		panic(fmt.Sprintf("not a pipe of this package: %v", err))
	}
	return c
}

// GetOption implements mangos.TranPipe.
func (c *conn) GetOption(name string) (any, error) {
	switch name {
	case optionConn:
		return c, nil
	case mangos.OptionPeerUID:
		return c.peer.UID, nil
	case mangos.OptionPeerPID:
		return c.peer.PID, nil
	}
	return nil, mangos.ErrBadOption
}

// Close implements mangos.TranPipe.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.taken {
		c.mu.Unlock()
		return nil
	}
	c.taken = true
	unread, unsent := c.unread, c.unsent
	c.unread, c.unsent = nil, 0
	c.mu.Unlock()
	for _, size := range unread {
		c.opts.quota.release(c.peer, size)
	}
	c.opts.quota.replied(c.peer, unsent)
	c.cancel()
	err := c.net.Close()
	c.closed(c)
	return err
}

// take transfers the oldest request's share of the quota from the connection to the caller. It
// returns false if the connection has been closed.
func (c *conn) take() (size int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken {
		return 0, false
	}
	size = c.unread[0]
	c.unread = c.unread[1:]
	return size, true
}

// handshake sends our protocol and checks the peer's protocol, within the timeout.
func (c *conn) handshake(proto mangos.ProtocolInfo) error {
	if err := c.net.SetDeadline(time.Now().Add(c.opts.limits.HandshakeTimeout)); err != nil {
		return err
	}
	hello := []byte{0, 'S', 'P', 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(hello[4:], proto.Self)
	if _, err := c.net.Write(hello); err != nil {
		return err
	}
	var received [8]byte
	if _, err := io.ReadFull(c.net, received[:]); err != nil {
		return err
	}
	binary.BigEndian.PutUint16(hello[4:], proto.Peer)
	if received != [8]byte(hello) {
		return fmt.Errorf("peer does not speak %s: % x", proto.PeerName, received)
	}
	return c.net.SetDeadline(time.Time{})
}

// smallFrame is the size, in bytes, up to which a frame is read before it gets a share of the
// quota: while incomplete, such a frame uses no share.
const smallFrame = 16 << 10

// Recv implements mangos.TranPipe. It waits without limit for the beginning of a message, but at
// most FrameTimeout for its end.
func (c *conn) Recv() (*mangos.Message, error) {
	for {
		size, err := c.readHeader()
		if err != nil {
			return nil, err
		}
		if c.opts.requests && !c.awaitSlot() || c.opts.requests && size > smallFrame && !c.await(size) {
			return nil, mangos.ErrClosed
		}
		if size > c.opts.maxRecv+4*maxHops {
			if err := c.refuse(size); err != nil {
				return nil, err
			}
			continue
		}
		msg, err := c.readBody(size)
		if err == nil && c.opts.requests {
			c.completed()
			if size <= smallFrame && !c.await(size) {
				return nil, mangos.ErrClosed
			}
		}
		if err != nil || !c.opts.requests || size-requestIDSize(msg.Body) <= c.opts.maxRecv {
			return msg, err
		}
		c.replying()
		if err := c.answerTooLong(msg.Body); err != nil {
			return nil, err
		}
	}
}

func (c *conn) readHeader() (size int, err error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(c.net, header[:1]); err != nil {
		return 0, err
	}
	if err := c.net.SetReadDeadline(time.Now().Add(c.opts.limits.FrameTimeout)); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(c.net, header[1:]); err != nil {
		return 0, err
	}
	length := binary.BigEndian.Uint64(header[1:])
	if header[0] != messageType || length > maxSkip {
		return 0, mangos.ErrTooLong
	}
	return int(length), nil
}

// awaitSlot waits until the connection may have one more request.
func (c *conn) awaitSlot() bool {
	select {
	case c.slots <- struct{}{}:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// await waits until the peer may have one more request, and records it.
func (c *conn) await(size int) bool {
	share := min(size, c.opts.maxRecv)
	if !c.opts.quota.acquire(c.ctx, c.peer, share) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken {
		c.opts.quota.release(c.peer, share)
		return false
	}
	c.unread = append(c.unread, share)
	return true
}

func (c *conn) readBody(size int) (*mangos.Message, error) {
	if err := c.net.SetReadDeadline(time.Now().Add(c.opts.limits.FrameTimeout)); err != nil {
		return nil, err
	}
	msg := mangos.NewMessage(size)
	msg.Body = msg.Body[:size]
	if _, err := io.ReadFull(c.net, msg.Body); err != nil {
		return nil, err
	}
	// mangos silently drops a request without a request id, and its slot would never be released.
	if c.opts.requests && requestIDSize(msg.Body) == 0 {
		return nil, errors.New("message without request id")
	}
	return msg, c.net.SetReadDeadline(time.Time{})
}

// requestIDSize returns the length of the header that a reply must repeat: the words up to and
// including the first whose highest bit is set. It returns 0 if there is no such word.
func requestIDSize(body []byte) int {
	for i := 0; i+4 <= len(body) && i < 4*maxHops; i += 4 {
		if body[i]&0x80 != 0 {
			return i + 4
		}
	}
	return 0
}

// refuse reads and discards an oversized message, and answers it with an error.
func (c *conn) refuse(size int) error {
	if !c.opts.requests {
		return mangos.ErrTooLong
	}
	if err := c.net.SetReadDeadline(time.Now().Add(c.opts.limits.FrameTimeout)); err != nil {
		return err
	}
	head := make([]byte, 4*maxHops)
	if _, err := io.ReadFull(c.net, head); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, c.net, int64(size-len(head))); err != nil {
		return err
	}
	if err := c.net.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	return c.answerTooLong(head)
}

// answerTooLong answers the request that begins with head, or closes the connection if no answer
// is configured.
func (c *conn) answerTooLong(head []byte) error {
	id := requestIDSize(head)
	if id == 0 || c.opts.tooLong == nil {
		return mangos.ErrTooLong
	}
	share, ok := c.take()
	if !ok {
		return mangos.ErrClosed
	}
	c.opts.quota.release(c.peer, share)
	return c.write(head[:id], c.opts.tooLong)
}

// greet writes the first message, which must precede all others. mangos must not wait for it: the
// caller is the goroutine that accepts all connections.
func (c *conn) greet(hello func() ([]byte, error)) {
	go func() {
		body, err := hello()
		if err == nil {
			err = c.write(nil, body)
		}
		if err != nil {
			c.opts.log.Debug("subscriber not greeted", "socket", c.opts.path, "peer", c.peer, "error", err)
			_ = c.Close() // mangos detects it when it reads
		}
		close(c.greeted)
	}()
}

// Send implements mangos.TranPipe. If the peer does not read in time, the connection is closed.
func (c *conn) Send(m *mangos.Message) error {
	select {
	case <-c.greeted:
	case <-c.ctx.Done():
		return mangos.ErrClosed
	}
	c.replying()
	if err := c.write(m.Header, m.Body); err != nil {
		return err
	}
	c.sent(len(m.Body))
	m.Free()
	return nil
}

func (c *conn) write(header, body []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.opts.requests {
		defer func() { <-c.slots }()
	}
	if err := c.net.SetWriteDeadline(time.Now().Add(c.opts.limits.WriteTimeout)); err != nil {
		return err
	}
	frame := make([]byte, headerSize, headerSize+len(header))
	frame[0] = messageType
	binary.BigEndian.PutUint64(frame[1:], uint64(len(header)+len(body)))
	buffers := net.Buffers{append(frame, header...), body}
	_, err := buffers.WriteTo(c.net)
	return err
}

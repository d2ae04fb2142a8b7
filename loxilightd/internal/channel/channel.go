// SPDX-License-Identifier: Apache-2.0

// Package channel is the daemon's side of the control channel: nanomsg REQ/REP on control.sock and
// PUB/SUB on events.sock in the run directory. It identifies peers and determines their users'
// permissions, limits the resources that peers can use, and transports bytes. JSON-RPC and objects
// are left to a [Handler].
//
// The sockets are mangos sockets on our own listener. The listener handles peers that misbehave
// below the protocol (silence, garbage, incomplete frames, unread replies), because mangos itself
// would wait forever or block other peers.
package channel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.nanomsg.org/mangos/v3"
	"go.nanomsg.org/mangos/v3/protocol/pub"
	"go.nanomsg.org/mangos/v3/protocol/rep"

	"github.com/loxilight/loxilight/api"
)

// Names of the sockets in the run directory.
const (
	ControlSocket = "control.sock" // REQ/REP
	EventsSocket  = "events.sock"  // PUB/SUB
)

// Handler answers one request. It may keep the request, must return a reply of at most
// [api.MaxReply] bytes, and is called concurrently. ctx ends when the peer disconnects, or when the
// grace period of a stopping daemon ends.
type Handler func(ctx context.Context, peer Peer, request []byte) []byte

// Options are the parameters of [Listen]; only RunDir and Log have no default.
type Options struct {
	RunDir string
	Log    *slog.Logger

	Group      string // may connect and read; default loxilight
	AdminGroup string // may change as well; default loxilight-admin

	// TooLong is the answer to a request that is larger than [api.MaxRequest]. Nil: the
	// connection is closed.
	TooLong []byte

	Limits Limits
}

// Channel is the pair of listening sockets. Its methods are safe for concurrent use.
type Channel struct {
	log     *slog.Logger
	control *endpoint
	events  *endpoint
	pub     *publisher
	quota   *quota
	long    logLimitByUser // for oversized replies

	closeOnce sync.Once
	closeErr  error
}

// Listen binds both sockets with their modes and owners, and replaces sockets of a killed daemon.
// Peers may connect immediately; they are answered once [Channel.Serve] runs. The caller must hold
// the lock on the run directory, see [Lock].
func Listen(o Options) (*Channel, error) {
	o.setDefaults()
	rules := newAccess(o.Group, o.AdminGroup)
	q := newQuota(o.Limits)
	control, err := newEndpoint(endpointOptions{
		path: filepath.Join(o.RunDir, ControlSocket), newSocket: rep.NewSocket, access: rules, limits: o.Limits,
		quota: q, log: o.Log, tooLong: o.TooLong, maxRecv: api.MaxRequest, requests: true,
	})
	if err != nil {
		return nil, err
	}
	p := &publisher{seq: map[string]uint64{}}
	events, err := newEndpoint(endpointOptions{
		path: filepath.Join(o.RunDir, EventsSocket), newSocket: pub.NewSocket, access: rules, limits: o.Limits,
		quota: q, log: o.Log, maxRecv: 1024, attached: func(c *conn) { c.greet(p.hello) },
	})
	if err != nil {
		return nil, errors.Join(err, control.close())
	}
	p.sock = events.sock
	return &Channel{log: o.Log, control: control, events: events, quota: q, pub: p}, nil
}

// Serve answers requests until ctx ends, then waits a few seconds for unfinished requests, and
// closes the channel.
func (c *Channel) Serve(ctx context.Context, h Handler) error {
	handlers, cancelHandlers := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelHandlers()
	var running sync.WaitGroup
	stopped := context.AfterFunc(ctx, func() { c.control.stopAccepting() })
	defer stopped()

	err := c.dispatch(ctx, handlers, h, &running)
	grace := time.AfterFunc(c.quota.limits.StopGrace, cancelHandlers)
	running.Wait()
	grace.Stop()
	c.control.drain(c.quota.limits.WriteTimeout)
	return errors.Join(err, c.Close())
}

// dispatch starts a goroutine for each request that mangos delivers. The quota limits their number:
// it is applied before mangos sees a request.
func (c *Channel) dispatch(ctx, handlers context.Context, h Handler, running *sync.WaitGroup) error {
	for ctx.Err() == nil {
		rctx, err := c.control.sock.OpenContext()
		if err != nil {
			return fmt.Errorf("control channel: open a context: %w", err)
		}
		// This wakes RecvMsg; closing twice is harmless.
		stop := context.AfterFunc(ctx, func() { _ = rctx.Close() })
		msg, err := rctx.RecvMsg()
		if err != nil {
			_ = rctx.Close()
			if ctx.Err() != nil || errors.Is(err, mangos.ErrClosed) {
				return nil
			}
			return fmt.Errorf("control channel: receive: %w", err)
		}
		conn := connOf(msg.Pipe)
		bytes, ok := conn.take()
		if !ok { // the connection was closed in the meantime; its share is already released
			_ = rctx.Close()
			continue
		}
		if !stop() { // the request can no longer be answered, so it is not executed
			c.quota.release(conn.peer, bytes)
			return nil
		}
		running.Go(func() {
			defer c.quota.release(conn.peer, bytes)
			defer func() { _ = rctx.Close() }() // harmless
			c.answer(handlers, rctx, conn, msg, h)
		})
	}
	return nil
}

// answer calls the handler and queues its reply. Queueing does not block: a connection's queue is
// as long as its limit on requests.
func (c *Channel) answer(handlers context.Context, rctx mangos.Context, conn *conn, msg *mangos.Message, h Handler) {
	ctx, cancel := context.WithCancel(handlers)
	defer cancel()
	defer context.AfterFunc(conn.ctx, cancel)()
	// The request is not returned to mangos' pool: the handler may keep it.
	reply := mangos.NewMessage(0)
	reply.Body = h(ctx, conn.peer, msg.Body)
	if len(reply.Body) > api.MaxReply {
		c.long.do(conn.peer.UID, func(more int) {
			c.log.Error("reply is longer than clients expect", "size", len(reply.Body), "limit", api.MaxReply, "peer", conn.peer, "not_logged", more)
		})
	}
	if !conn.replies(len(reply.Body)) {
		_ = conn.Close() // often closed already
		return
	}
	if err := rctx.SendMsg(reply); err != nil && !errors.Is(err, mangos.ErrClosed) {
		c.log.Error("reply not sent", "error", err, "peer", conn.peer)
	}
}

// Publish numbers an event and sends it to every subscriber that keeps up; topic is one of
// [api.Topics], event a pointer to that topic's event type. It never waits for a subscriber: a slow
// subscriber loses events, and detects the loss by their numbers. Events published by one goroutine
// are sent in order, so a committer publishes its changes in the order of their revisions. event is
// encoded before Publish returns. An error means that the event could not be encoded, or that the
// channel is closed.
func (c *Channel) Publish(topic string, event Numbered) error { return c.pub.publish(topic, event) }

// Close closes the sockets and removes them, as [Channel.Serve] does before it returns.
func (c *Channel) Close() error {
	c.closeOnce.Do(func() { c.closeErr = errors.Join(c.control.close(), c.events.close()) })
	return c.closeErr
}

func (o *Options) setDefaults() {
	if o.Group == "" {
		o.Group = "loxilight"
	}
	if o.AdminGroup == "" {
		o.AdminGroup = "loxilight-admin"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	o.Limits.setDefaults()
}

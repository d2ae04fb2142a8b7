// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.nanomsg.org/mangos/v3"
	"go.nanomsg.org/mangos/v3/protocol/req"
	"go.nanomsg.org/mangos/v3/transport"

	"github.com/loxilight/loxilight/api"
)

// conn is one connection to the daemon: a mangos socket with one pipe that is never redialed, so
// that no request is sent again without the caller's knowledge.
type conn struct {
	sock mangos.Socket
	pipe *pipe
	gone atomic.Bool // the pipe is closed
}

// connect dials path within the deadline of ctx. Its errors are [*Error].
func connect(ctx context.Context, path string) (*conn, error) {
	sock, err := req.NewSocket()
	if err != nil {
		return nil, fmt.Errorf("new REQ socket: %w", err)
	}
	c, err := attach(ctx, path, sock, api.MaxReply+1024)
	if err != nil {
		return nil, errors.Join(err, ignore(sock.Close()))
	}
	return c, nil
}

// attach connects sock to path.
func attach(ctx context.Context, path string, sock mangos.Socket, maxRecv int) (*conn, error) {
	nc, err := dialUnix(ctx, path)
	if err != nil {
		return nil, err
	}
	p, err := handshake(ctx, path, nc, sock.Info(), maxRecv)
	if err != nil {
		_ = nc.Close() // nothing was sent
		return nil, err
	}
	c := &conn{sock: sock, pipe: p}
	p.closed = func() { c.gone.Store(true) }
	// RetryTime 0: mangos does not resend requests by itself.
	if err := sock.SetOption(mangos.OptionRetryTime, time.Duration(0)); err != nil && !errors.Is(err, mangos.ErrBadOption) {
		return nil, errors.Join(fmt.Errorf("turn off resending: %w", err), ignore(p.Close()))
	}
	if err := sock.SetOption(mangos.OptionFailNoPeers, true); err != nil && !errors.Is(err, mangos.ErrBadOption) {
		return nil, errors.Join(fmt.Errorf("turn on failing without peers: %w", err), ignore(p.Close()))
	}
	if err := sock.DialOptions(scheme+"://"+path, map[string]any{optionPipe: p}); err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), ignore(p.Close()))
	}
	return c, nil
}

// ignore discards an error from closing a broken connection.
func ignore(error) error { return nil }

func (c *conn) close() { _ = c.sock.Close() } // nothing is lost: a REQ socket has no unsent data of ours

// dialUnix connects, and distinguishes the causes of failure. It retries while the backlog is full,
// since the kernel then refuses connections immediately.
func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	for {
		var d net.Dialer
		nc, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			return nc, nil
		}
		if _, absent := os.Lstat(path); errors.Is(absent, syscall.ENOENT) {
			err = syscall.ENOENT // even if there was no time to ask the kernel
		}
		e := &Error{Socket: path, cause: cause(err)}
		switch {
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
			e.kinds = []error{ErrNotRunning}
			e.hint = "start it with systemctl start loxilightd, or name its socket"
			switch pid := DaemonProcess("/", filepath.Dir(path)); {
			case pid != "":
				e.kinds, e.hint = []error{errStarting}, "process "+pid+"; try again in a moment"
			case path != strings.TrimPrefix(api.ControlSocket, "ipc://"):
				e.hint = "start it, or name another socket"
			}
			return nil, e
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
			e.kinds, e.hint = []error{ErrPermission}, permissionHint
			return nil, e
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded): // this deadline may expire a moment before ctx is done
			e.kinds, e.hint = []error{ErrNotAnswering}, backlogHint
			return nil, e
		case !errors.Is(err, syscall.EAGAIN) && ctx.Err() == nil:
			return nil, e
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				e.cause = ctx.Err()
				return nil, e
			}
			e.kinds, e.hint = []error{ErrNotAnswering}, backlogHint
			return nil, e
		}
	}
}

const backlogHint = "it does not accept connections; see its log"

const permissionHint = "run as root, or join the group loxilight to read, and also loxilight-admin to make changes"

// cause removes the text that [Error] itself adds.
func cause(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

// handshake performs nanomsg's handshake within the deadline of ctx.
func handshake(ctx context.Context, path string, nc net.Conn, proto mangos.ProtocolInfo, maxRecv int) (*pipe, error) {
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) }) // a socket accepts any deadline
	inner := transport.NewConnPipeIPC(nc, proto)
	inner.SetOption(mangos.OptionMaxRecvSize, maxRecv)
	hs := transport.NewConnHandshaker()
	defer hs.Close()
	hs.Start(inner)
	tp, err := hs.Wait()
	if stop() && err == nil {
		return &pipe{TranPipe: tp, net: nc}, nil
	}
	e := &Error{Socket: path, kinds: []error{ErrNotAnswering}, cause: errHandshake}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		e.kinds, e.cause = nil, ctx.Err()
	case ctx.Err() != nil:
		e.hint = "it hangs: see its log"
	case !memberOf(path):
		e.kinds, e.hint = []error{ErrPermission}, permissionHint
	default:
		e.hint = "it closed the connection: too many connections, or it is stopping; see its log"
	}
	return nil, e
}

// memberOf reports whether this process is in the group of the socket.
func memberOf(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return true // the group is not the reason
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	groups, err := os.Getgroups()
	uid := os.Geteuid()
	return !ok || err != nil || uid == 0 || uid == int(stat.Uid) ||
		os.Getegid() == int(stat.Gid) || slices.Contains(groups, int(stat.Gid))
}

// writeTimeout bounds the writing of one request to a daemon that does not read.
const writeTimeout = 5 * time.Second

// pipe is a connection after its handshake, as mangos uses it. It records how far the current
// request has been sent.
type pipe struct {
	mangos.TranPipe
	net    net.Conn
	state  atomic.Int32 // one of the states below
	closed func()
}

const (
	stateReady     = iota // nothing has been written
	stateWriting          // or has been written
	stateFailed           // not written completely, so the daemon does not execute it
	stateAbandoned        // nothing has been or will be written
)

func (p *pipe) Send(m *mangos.Message) error {
	if !p.state.CompareAndSwap(stateReady, stateWriting) {
		return mangos.ErrClosed
	}
	if err := p.write(m); err != nil {
		p.state.Store(stateFailed)
		return err
	}
	m.Free()
	return nil
}

// write replaces mangos' own write to a pipe: it has a deadline, and sends the message in one
// piece.
func (p *pipe) write(m *mangos.Message) error {
	if err := p.net.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	head := binary.BigEndian.AppendUint64([]byte{1}, uint64(len(m.Header)+len(m.Body)))
	buffers := net.Buffers{append(head, m.Header...), m.Body}
	_, err := buffers.WriteTo(p.net)
	return err
}

// abandon gives up the request and reports whether it is certain that the daemon has not received
// it.
func (p *pipe) abandon() bool {
	return p.state.CompareAndSwap(stateReady, stateAbandoned) || p.state.Load() == stateFailed
}

func (p *pipe) Close() error {
	p.closed()
	return p.TranPipe.Close()
}

// roundTrip sends a request and waits for the reply.
func (c *conn) roundTrip(ctx context.Context, request []byte) ([]byte, error) {
	c.pipe.state.Store(stateReady)
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	err := c.sock.Send(request)
	var reply []byte
	if err == nil {
		reply, err = c.sock.Recv()
	}
	if err == nil {
		return reply, nil
	}
	why := errBroken
	if ctx.Err() != nil {
		why = ctx.Err()
	}
	if c.pipe.abandon() {
		return nil, fmt.Errorf("%w: %w", errNotSent, why)
	}
	return nil, why
}

// scheme names our transport to mangos. Users cannot select it in a URL.
const scheme = "loxilight-client"

// optionPipe is the dialer option that passes the connection to mangos.
const optionPipe = "loxilight-pipe"

func init() { transport.RegisterTransport(ours{}) }

// ours is a transport whose dialers are already connected.
type ours struct{}

func (ours) Scheme() string { return scheme }

func (ours) NewDialer(string, mangos.Socket) (mangos.TranDialer, error) { return &tranDialer{}, nil }

func (ours) NewListener(string, mangos.Socket) (mangos.TranListener, error) {
	return nil, mangos.ErrBadTran
}

// tranDialer returns its pipe once, and then ErrClosed, so that mangos stops redialing.
type tranDialer struct{ pipe atomic.Pointer[pipe] }

func (d *tranDialer) Dial() (mangos.TranPipe, error) {
	if p := d.pipe.Swap(nil); p != nil {
		return p, nil
	}
	return nil, mangos.ErrClosed
}

func (d *tranDialer) GetOption(string) (any, error) { return nil, mangos.ErrBadOption }

func (d *tranDialer) SetOption(name string, value any) error {
	p, ok := value.(*pipe)
	if name != optionPipe || !ok {
		return mangos.ErrBadOption
	}
	d.pipe.Store(p)
	return nil
}

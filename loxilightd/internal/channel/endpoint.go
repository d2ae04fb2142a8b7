// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"go.nanomsg.org/mangos/v3"
	"go.nanomsg.org/mangos/v3/transport"
	"golang.org/x/sys/unix"
)

type endpointOptions struct {
	path      string
	newSocket func() (mangos.Socket, error)
	access    access
	limits    Limits
	quota     *quota
	log       *slog.Logger
	tooLong   []byte
	maxRecv   int
	requests  bool // the protocol requires an answer to each message, so requests are counted
	// attached is called with each connection that mangos has accepted, and must greet it. It must
	// not block. Nil: no greeting.
	attached func(*conn)
}

// endpoint is one listening socket with its connections. It is the transport listener of a mangos
// socket: mangos sees a connection only after its handshake.
type endpoint struct {
	opts     endpointOptions
	sock     mangos.Socket
	listener *net.UnixListener
	inode    os.FileInfo // the socket's, so that no other file is removed
	ready    chan *conn  // connections after their handshake
	done     chan struct{}
	stopOnce sync.Once
	stopErr  error
	logLimit logLimit // for messages about events that peers can cause at will

	mu      sync.Mutex
	conns   map[*conn]bool // true: after the handshake
	pending int            // connections in their handshake
	users   map[int]int    // connections by user
}

func newEndpoint(o endpointOptions) (*endpoint, error) {
	l, err := bind(o.path, o.access.group)
	if err != nil {
		return nil, err
	}
	e := &endpoint{
		opts: o, listener: l, ready: make(chan *conn), done: make(chan struct{}),
		conns: map[*conn]bool{}, users: map[int]int{},
	}
	if e.inode, err = os.Lstat(o.path); err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	if err := e.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", o.path, err), e.stopAccepting())
	}
	return e, nil
}

func (e *endpoint) start() error {
	sock, err := e.opts.newSocket()
	if err != nil {
		return err
	}
	e.sock = sock
	// The queue is as long as a connection's limit on requests, so it never blocks a reply.
	queue := e.opts.limits.PerPeer
	if !e.opts.requests {
		queue = eventQueue
	}
	if err := sock.SetOption(mangos.OptionWriteQLen, queue); err != nil {
		return err
	}
	if e.opts.attached != nil {
		sock.SetPipeEventHook(func(event mangos.PipeEvent, p mangos.Pipe) {
			if event == mangos.PipeEventAttached {
				e.opts.attached(connOf(p))
			}
		})
	}
	return sock.ListenOptions(scheme+"://"+e.opts.path, map[string]any{optionEndpoint: e})
}

// eventQueue is how many events can wait for one subscriber before it loses some.
const eventQueue = 1024

// acceptLoop accepts connections until the listener is closed. When file descriptors run out, it
// closes a stalled connection, or waits, longer each time, until a file descriptor is free.
func (e *endpoint) acceptLoop() {
	const shortest, longest = 5 * time.Millisecond, 500 * time.Millisecond
	wait := shortest
	for {
		c, err := e.listener.AcceptUnix()
		if err == nil {
			wait = shortest
			e.welcome(c)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if !errors.Is(err, unix.ECONNABORTED) { // caused by the peer itself
			e.logLimit.do(func(more int) {
				e.opts.log.Warn("cannot accept connections", "socket", e.opts.path, "error", err, "not_logged", more)
			})
		}
		noFiles := errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
		if noFiles && e.hangUpOnStalest() {
			wait = shortest
		}
		select {
		case <-time.After(wait):
		case <-e.done:
			return
		}
		wait = min(2*wait, longest)
	}
}

// hangUpOnStalest frees a file descriptor by closing the connection that has been stalled longest,
// if any has been stalled long enough.
func (e *endpoint) hangUpOnStalest() bool {
	const enough = 100 * time.Millisecond
	e.mu.Lock()
	victim := e.stalest(0, true)
	if victim != nil {
		if since, _ := victim.stalledSince(); time.Since(since) < enough {
			victim = nil
		} else {
			e.remove(victim)
		}
	}
	e.mu.Unlock()
	if victim != nil {
		_ = victim.Close() // the peer is at fault
	}
	return victim != nil
}

// welcome starts the handshake of a connection if its user is permitted and does not have too many
// connections.
func (e *endpoint) welcome(nc *net.UnixConn) {
	peer, err := e.opts.access.admit(nc)
	if err != nil {
		e.logLimit.do(func(more int) {
			e.opts.log.Warn("connection refused", "socket", e.opts.path, "peer", peer, "error", err, "not_logged", more)
		})
		_ = nc.Close() // nothing was written
		return
	}
	c := newConn(nc, peer, &e.opts, e.forget)
	if !e.admit(c) {
		e.logLimit.do(func(more int) {
			e.opts.log.Warn("too many connections", "socket", e.opts.path, "peer", peer, "not_logged", more)
		})
		c.cancel()
		_ = nc.Close() // nothing was written
		return
	}
	go func() {
		if err := c.handshake(e.sock.Info()); err != nil {
			e.opts.log.Debug("handshake not completed", "socket", e.opts.path, "peer", peer, "error", err)
			_ = c.Close() // before the handshake, nothing is lost
			return
		}
		e.mu.Lock()
		if shaken, there := e.conns[c]; there && !shaken {
			e.conns[c] = true
			e.pending--
			c.completedHandshake()
		}
		e.mu.Unlock()
		select {
		case e.ready <- c:
		case <-e.done:
			_ = c.Close()
		}
	}()
}

// forget removes a closed connection from the lists.
func (e *endpoint) forget(c *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.remove(c)
}

func (e *endpoint) remove(c *conn) {
	if _, there := e.conns[c]; !there {
		return
	}
	if !e.conns[c] {
		e.pending--
	}
	delete(e.conns, c)
	if e.users[c.peer.UID]--; e.users[c.peer.UID] == 0 {
		delete(e.users, c.peer.UID)
	}
}

// stopAccepting removes the socket from the directory and stops accepting connections; existing
// connections continue.
func (e *endpoint) stopAccepting() error {
	e.stopOnce.Do(func() {
		close(e.done)
		e.stopErr = e.listener.Close()
		if now, err := os.Lstat(e.opts.path); err == nil && os.SameFile(now, e.inode) {
			e.stopErr = errors.Join(e.stopErr, os.Remove(e.opts.path))
		}
	})
	return e.stopErr
}

// drain waits until every reply has been written, but no longer than timeout.
func (e *endpoint) drain(timeout time.Duration) {
	deadline := time.Now().Add(timeout)
	for time.Now().Before(deadline) && e.busy() {
		time.Sleep(time.Millisecond)
	}
}

func (e *endpoint) busy() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.conns {
		if _, idle := c.idleSince(); !idle {
			return true
		}
	}
	return false
}

// close closes all connections.
func (e *endpoint) close() error {
	err := e.stopAccepting()
	if e.sock != nil {
		err = errors.Join(err, e.sock.Close())
	}
	e.mu.Lock()
	var left []*conn
	for c := range e.conns {
		left = append(left, c)
	}
	e.mu.Unlock()
	for _, c := range left {
		_ = c.Close() // mangos also closes the connections that it knows
	}
	return err
}

// scheme is the name of our transport in mangos. Clients cannot use it.
const scheme = "loxilightd"

// optionEndpoint is the listener option that contains the endpoint.
const optionEndpoint = "loxilight-endpoint"

func init() { transport.RegisterTransport(unixTransport{}) }

// unixTransport is the transport with endpoints as listeners.
type unixTransport struct{}

func (unixTransport) Scheme() string { return scheme }

func (unixTransport) NewDialer(string, mangos.Socket) (mangos.TranDialer, error) {
	return nil, mangos.ErrBadTran
}

func (unixTransport) NewListener(string, mangos.Socket) (mangos.TranListener, error) {
	return &tranListener{}, nil
}

// tranListener adapts an endpoint to mangos. The only error of Accept is ErrClosed: after any other
// error mangos pauses for all connections.
type tranListener struct{ *endpoint }

func (l *tranListener) Listen() error {
	go l.acceptLoop()
	return nil
}

func (l *tranListener) Accept() (mangos.TranPipe, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.done:
		return nil, mangos.ErrClosed
	}
}

func (l *tranListener) Close() error { return l.stopAccepting() }

func (l *tranListener) Address() string { return "ipc://" + l.opts.path }

func (l *tranListener) GetOption(string) (any, error) { return nil, mangos.ErrBadOption }

func (l *tranListener) SetOption(name string, value any) error {
	e, ok := value.(*endpoint)
	if name != optionEndpoint || !ok {
		return mangos.ErrBadOption
	}
	l.endpoint = e
	return nil
}

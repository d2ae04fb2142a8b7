// SPDX-License-Identifier: Apache-2.0

// Package client connects every client to loxilightd: llcli, the CNI plugin, the Kubernetes agent,
// and users' programs. Each phase of a call is bounded in time, a change is sent at most once, and
// an error states whether the daemon is not running, denies access, does not answer, or may have
// made the change.
//
// The package is only a transport: it neither parses documents nor prints.
package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
)

// DefaultTimeout bounds a call whose context has no deadline.
const DefaultTimeout = 10 * time.Second

// Options of [Dial]. The zero value selects the default daemon.
type Options struct {
	// Socket is the URL of the control socket, or its path; default [api.ControlSocket].
	Socket string
	// Events is the URL or path of the events socket; default: in the same directory as the control
	// socket.
	Events string
	// Timeout limits each call whose context has no deadline, not counting the time spent waiting
	// for the data plane (Change.Wait); default [DefaultTimeout].
	Timeout time.Duration
}

// Client calls the daemon. It connects when it needs to and keeps a few
// connections for the next call, so a restart of the daemon does not break it.
// It is safe for concurrent use.
type Client struct {
	socket, events string // paths
	timeout        time.Duration

	mu     sync.Mutex
	idle   []*conn
	closed bool
}

// maxIdle is how many connections are kept for the next call.
const maxIdle = 2

// Dial connects to the daemon, so that Dial itself returns connection errors: [ErrNotRunning],
// [ErrPermission] or [ErrNotAnswering].
func Dial(ctx context.Context, o Options) (*Client, error) {
	c, err := New(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.bound(ctx, 0)
	defer cancel()
	conn, err := connect(ctx, c.socket)
	if err != nil {
		return nil, err
	}
	c.keep(conn)
	return c, nil
}

// New is [Dial] without connecting: the first call returns connection errors.
func New(o Options) (*Client, error) {
	if o.Socket == "" {
		o.Socket = api.ControlSocket
	}
	socket, err := socketPath(o.Socket)
	if err != nil {
		return nil, err
	}
	if o.Events == "" {
		o.Events = filepath.Join(filepath.Dir(socket), filepath.Base(api.EventsSocket))
	}
	events, err := socketPath(o.Events)
	if err != nil {
		return nil, err
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	return &Client{socket: socket, events: events, timeout: o.Timeout}, nil
}

func socketPath(url string) (string, error) {
	path, ipc := strings.CutPrefix(url, "ipc://")
	if !ipc && strings.Contains(url, "://") || path == "" {
		return "", fmt.Errorf("socket %q: want a path or ipc://PATH", url)
	}
	return path, nil
}

// Close closes the idle connections. Calls in progress continue; their connections are closed when
// the calls end.
func (c *Client) Close() error {
	c.mu.Lock()
	idle := c.idle
	c.idle, c.closed = nil, true
	c.mu.Unlock()
	for _, conn := range idle {
		conn.close()
	}
	return nil
}

// Socket returns the path of the control socket.
func (c *Client) Socket() string { return c.socket }

// Call calls a method that changes nothing and decodes the answer into result, which may be nil.
// The call is repeated once if the connection breaks. The daemon's own errors are [*api.Error];
// others are [*Error].
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	ctx, cancel := c.bound(ctx, 0)
	defer cancel()
	request, err := encode(method, params)
	if err != nil {
		return err
	}
	raw, err := c.roundTrip(ctx, request)
	if errors.Is(err, errBroken) && ctx.Err() == nil {
		raw, err = c.roundTrip(ctx, request)
	}
	if err != nil {
		return c.callError(method, "", false, err)
	}
	return decode(method, raw, result)
}

// Change calls a method that changes something. The request is sent at most once; if the answer
// does not arrive, the error is [ErrOutcomeUnknown] with the request id, with which the change can
// be requested again without being made twice. wait is how long the daemon may delay its answer.
// Parameters of apply, replace and delete get a request id unless they have one. If the parameters are
// larger than a request, their objects are sent in several requests that take effect together; a
// single object that is larger than a request is rejected with an [*api.Error].
func (c *Client) Change(ctx context.Context, method, requestID string, wait time.Duration, params, result any) error {
	ctx, cancel := c.bound(ctx, wait)
	defer cancel()
	p, err := newPlan(method, requestID, params)
	if err != nil {
		return err
	}
	for i, request := range p.requests() {
		commits := i == len(p.staged)
		raw, err := c.roundTrip(ctx, request)
		if errors.Is(err, errNotSent) && errors.Is(err, errBroken) && ctx.Err() == nil {
			raw, err = c.roundTrip(ctx, request) // the reused connection led to a daemon that has exited
		}
		if err != nil {
			return c.callError(method, p.requestID, commits, err)
		}
		if commits {
			return decode(method, raw, result)
		}
		var sofar api.ChangeResult
		if err := decode(method, raw, &sofar); err != nil {
			return err
		}
		if sofar.Staged != p.counts[i] {
			return fmt.Errorf("%s: the daemon has %d of %d objects of the transaction, it was restarted in the meantime: nothing was changed, try again",
				method, sofar.Staged, p.counts[i])
		}
	}
	return nil
}

// NewRequestID returns a unique id for Change.RequestID.
func NewRequestID() string { return rand.Text() }

func (c *Client) bound(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.timeout+wait)
}

// roundTrip sends one request over a connection that is not in use.
func (c *Client) roundTrip(ctx context.Context, request []byte) ([]byte, error) {
	conn := c.reuse()
	if conn == nil {
		var err error
		if conn, err = connect(ctx, c.socket); err != nil {
			return nil, err
		}
	}
	raw, err := conn.roundTrip(ctx, request)
	if err != nil {
		conn.close() // a late answer must not be taken for the answer to the next request
		return nil, err
	}
	c.keep(conn)
	return raw, nil
}

func (c *Client) reuse() *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.idle) > 0 {
		conn := c.idle[len(c.idle)-1]
		c.idle = c.idle[:len(c.idle)-1]
		if !conn.gone.Load() {
			return conn
		}
		conn.close()
	}
	return nil
}

func (c *Client) keep(conn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || conn.gone.Load() || len(c.idle) >= maxIdle {
		conn.close()
		return
	}
	c.idle = append(c.idle, conn)
}

func encode(method string, params any) ([]byte, error) {
	call := struct {
		JSONRPC string `json:"jsonrpc"`
		ID      int    `json:"id"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
	}{"2.0", 1, method, params}
	request, err := json.Marshal(call)
	if err != nil {
		return nil, fmt.Errorf("%s: encode the request: %w", method, err)
	}
	if len(request) > api.MaxRequest {
		return nil, fmt.Errorf("%s: %w (%d bytes of %d)", method, ErrTooLong, len(request), api.MaxRequest)
	}
	return request, nil
}

func decode(method string, raw []byte, result any) error {
	var reply api.Reply
	if err := json.Unmarshal(raw, &reply); err != nil {
		return fmt.Errorf("%s: the answer is not a JSON-RPC reply; is the daemon older or newer than the client? %w", method, err)
	}
	if reply.Error != nil {
		return reply.Error
	}
	if reply.Result == nil {
		return fmt.Errorf("%s: the answer has neither result nor error, is the daemon older or newer than the client?", method)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(reply.Result, result); err != nil {
		return fmt.Errorf("%s: decode the result: %w", method, err)
	}
	return nil
}

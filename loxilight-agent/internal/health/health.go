// SPDX-License-Identifier: Apache-2.0

// Package health answers HTTP probes of cloud load balancers and kubelets. It makes no judgements
// of its own.
package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Checks report the state of the agent.
type Checks interface {
	// Live reports whether the agent works: if it does not, a restart may help.
	Live() bool
	// Alive reports whether changes reach the daemon; updated is when it last had all of them.
	Alive() (alive bool, updated time.Time)
	// Eligible reports whether load balancers may send to this node: it stays in the cluster.
	Eligible() bool
	// Readiness reports whether the node can serve pods, and if not, why.
	Readiness() (ready bool, why string)
}

// Handler answers at /healthz and /livez, as kube-proxy does for load balancers and probes, and at
// /readyz.
func Handler(c Checks) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, good bool, body map[string]any) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !good {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(body) // the client may be gone
	}
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		alive, updated := c.Alive()
		eligible := c.Eligible()
		answer(w, alive && eligible, map[string]any{"lastUpdated": updated.UTC().String(), "currentTime": time.Now().UTC().String(), "nodeEligible": eligible})
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		_, updated := c.Alive()
		answer(w, c.Live(), map[string]any{"lastUpdated": updated.UTC().String(), "currentTime": time.Now().UTC().String()})
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		ready, why := c.Readiness()
		body := map[string]any{"ready": ready}
		if why != "" {
			body["message"] = why
		}
		answer(w, ready, body)
	})
	return mux
}

// Limits for a request, and the pause before an address that is in use is tried again: a kube-proxy
// that is about to stop may still use it.
const (
	requestTimeout = 5 * time.Second
	maxHeader      = 16 << 10
	retryAfter     = 5 * time.Second
)

// MaxConnections bounds the connections that one server has at a time. Each ends with its
// first answer, or after the time limit of a request, so probes always get their turn.
const MaxConnections = 64

// NewServer makes a server for probes from outside: bounded time and headers, and one
// request for each connection. Its listeners are to be made by [Bound].
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout,
		IdleTimeout: requestTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	server.SetKeepAlivesEnabled(false)
	return server
}

// Bound limits the connections that a listener has at a time. Beyond the limit, the oldest is
// closed: a client that sends nothing cannot keep others out.
func Bound(l net.Listener, connections int) net.Listener {
	return &bounded{Listener: l, most: connections}
}

// bounded is a listener that knows its connections, oldest first.
type bounded struct {
	net.Listener
	most int

	mu   sync.Mutex
	open []*boundedConn
}

// boundedConn leaves its listener's list when it is closed.
type boundedConn struct {
	net.Conn
	of   *bounded
	once sync.Once
}

// Accept implements [net.Listener].
func (b *bounded) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &boundedConn{Conn: conn, of: b}
	var oldest *boundedConn
	b.mu.Lock()
	if b.open = append(b.open, c); len(b.open) > b.most {
		oldest = b.open[0]
	}
	b.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // its client is no longer served
	}
	return c, nil
}

// Close implements [net.Conn].
func (c *boundedConn) Close() error {
	c.once.Do(func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.of.open = slices.DeleteFunc(c.of.open, func(o *boundedConn) bool { return o == c })
	})
	return c.Conn.Close()
}

// Serve listens on an address until ctx is done. It does not listen if the address is empty. An
// address in use is tried again.
func Serve(ctx context.Context, log *slog.Logger, name, address string, h http.Handler) {
	if address == "" {
		return
	}
	for reported := false; ; {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err == nil {
			err = serve(ctx, log, listener, h)
		}
		if ctx.Err() != nil {
			return
		}
		if !reported {
			reported = true
			log.Error("the health server cannot listen; it is retried", slog.String("server", name), slog.String("address", address), slog.Any("error", err))
		}
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
			return
		}
	}
}

func serve(ctx context.Context, log *slog.Logger, listener net.Listener, h http.Handler) error {
	server := NewServer(h, log)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // open requests get no answer
	defer stop()
	if err := server.Serve(Bound(listener, MaxConnections)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

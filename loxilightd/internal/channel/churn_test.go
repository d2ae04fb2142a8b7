// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// TestChurn runs well-behaved and misbehaving clients at random, and then checks for leaks:
// connections, file descriptors, goroutines, quota.
func TestChurn(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m, ch, c := serveMini(t, Options{Limits: Limits{
		HandshakeTimeout: 200 * time.Millisecond, FrameTimeout: 200 * time.Millisecond, WriteTimeout: 200 * time.Millisecond,
		Connections: 64,
	}})
	apply(t, c, services(100, 1)...)
	files, goroutines := openFiles(t), runtime.NumGoroutine()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for i := range 8 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for ctx.Err() == nil {
				churn(ctx, random, ch, c)
			}
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			_ = ch.Publish(api.TopicChanges, changeEvent(1)) // cannot fail while the channel is open
			runtime.Gosched()
		}
	})
	all.Wait()
	if v, err := c.Version(t.Context()); err != nil || v.Version != "1.0" {
		t.Errorf("afterwards: %v, %v", v, err)
	}
	_ = c.Close() // its idle connections must not count as leaks
	eventually(t, "nothing of it is left", func() bool {
		runtime.GC() // collect objects that clients dropped
		return ch.control.connections() == 0 && ch.events.connections() == 0 &&
			openFiles(t) <= files && runtime.NumGoroutine() <= goroutines
	})
	q := ch.quota
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.total != (usage{}) || len(q.users) != 0 {
		t.Errorf("still counted: %+v, %+v", q.total, q.users)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.objects) != 100 {
		t.Errorf("%d objects, want 100", len(m.objects))
	}
}

// connections returns the number of all connections.
func (e *endpoint) connections() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.conns)
}

// churn is one random client. It ignores errors: later checks detect them.
func churn(ctx context.Context, random *rand.Rand, ch *Channel, c *client.Client) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(random.IntN(50))*time.Millisecond)
	defer cancel()
	path := controlPath(ch)
	if random.IntN(4) == 0 {
		path = eventsPath(ch)
	}
	switch random.IntN(6) {
	case 0:
		for range c.List(ctx, api.ListParams{Kind: api.KindService}) {
		}
		return
	case 1:
		if s, err := c.Subscribe(ctx); err == nil {
			_, _ = s.Next(ctx)
			s.Close()
		}
		return
	case 2: // a separate client, closed in the middle of a request
		if own, err := client.New(client.Options{Socket: path}); err == nil {
			go func() { _, _ = own.Version(ctx) }()
			runtime.Gosched()
			_ = own.Close()
		}
		return
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if random.IntN(3) > 0 {
		_, _ = conn.Write([]byte{0, 'S', 'P', 0, 0, []byte{protoReq, protoSub}[random.IntN(2)], 0, 0})
	}
	for range random.IntN(10) {
		f := requestFrame(random.Uint32(), `{"jsonrpc":"2.0","id":1,"method":"version"}`)
		if random.IntN(4) == 0 {
			f = f[:random.IntN(len(f))]
		}
		_, _ = conn.Write(f)
	}
	if random.IntN(2) == 0 {
		_, _ = io.CopyN(io.Discard, conn, int64(random.IntN(200)))
	}
}

// FuzzPeer sends arbitrary bytes to both sockets: the daemon survives, and continues to serve other
// clients.
func FuzzPeer(f *testing.F) {
	hello := []byte{0, 'S', 'P', 0, 0, protoReq, 0, 0}
	f.Add(hello)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(append(hello, requestFrame(1, "hello")...))
	f.Add(append(hello, 1, 0, 0, 0, 0, 0, 0x10, 0, 0x21))                   // slightly too long
	f.Add(append(hello, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)) // far too long
	f.Add(append(hello, frame([]byte{0, 0, 0, 1, 0x80, 0, 0, 2, 'x'})...))  // through a nanomsg device
	dir, err := os.MkdirTemp("", "ll")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
	c, err := Listen(Options{RunDir: dir, Log: slog.New(slog.DiscardHandler), TooLong: []byte("too long")})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Serve(ctx, echo) }()
	f.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, name := range []string{ControlSocket, EventsSocket} {
			conn, err := net.Dial("unix", filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write(b) // the daemon may have closed it
			_ = conn.Close()
		}
		r := dialRaw(t, filepath.Join(dir, ControlSocket)).shake(protoReq)
		r.send(requestFrame(7, "hello"))
		if got, err := r.receive(); err != nil || got != "\x80\x00\x00\x07echo hello" {
			t.Errorf("another client got %q, %v", got, err)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// served fails the test unless an honest client gets its answer within a time that allows for a
// busy machine but is shorter than the timeout for peers.
func served(t *testing.T, c *Channel, within time.Duration) {
	t.Helper()
	begin := time.Now()
	got, err := request(t, url(c), "hello")
	if took := time.Since(begin); err != nil || got != "echo hello" || took > within {
		t.Errorf("an honest client got %q, %v after %s, want an echo within %s", got, err, took, within)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// TestSilentPeers: 500 connections that send nothing.
func TestSilentPeers(t *testing.T) {
	c := serve(t, Options{Limits: Limits{HandshakeTimeout: time.Second}}, echo)
	served(t, c, time.Second)
	files, goroutines := openFiles(t), runtime.NumGoroutine()
	var silent []*raw
	for range 500 {
		silent = append(silent, dialRaw(t, controlPath(c)))
	}
	served(t, c, 500*time.Millisecond)
	for _, s := range silent {
		s.waitClosed()
		_ = s.Close() // the daemon has hung up
	}
	eventually(t, "file descriptors and goroutines come back", func() bool {
		return openFiles(t) <= files+2 && runtime.NumGoroutine() <= goroutines+5
	})
}

// TestMoreSilentPeersThanConnections opens more silent connections than the limit allows: silent
// connections are closed.
func TestMoreSilentPeersThanConnections(t *testing.T) {
	c := serve(t, Options{Limits: Limits{Connections: 16, HandshakeTimeout: time.Hour}}, echo)
	for range 100 {
		dialRaw(t, controlPath(c))
	}
	served(t, c, time.Second)
}

// TestGarbage: invalid handshakes, and peers that use a different protocol.
func TestGarbage(t *testing.T) {
	c := serve(t, Options{}, echo)
	for i := range 300 {
		r := dialRaw(t, controlPath(c))
		if i%2 == 0 {
			_, _ = r.Write([]byte("GET / HTTP/1.1\r\nHost: loxilight\r\n\r\n")) // the daemon may hang up before all is written
		} else {
			_, _ = r.Write([]byte{0, 'S', 'P', 0, 0, protoSub, 0, 0})
		}
	}
	served(t, c, 500*time.Millisecond)
	r := dialRaw(t, controlPath(c))
	r.send([]byte{0, 'S', 'P', 0, 0, protoSub, 0, 0})
	r.waitClosed()
}

// TestStalledFrame: a frame that begins but never ends.
func TestStalledFrame(t *testing.T) {
	c := serve(t, Options{Limits: Limits{FrameTimeout: 300 * time.Millisecond}}, echo)
	for _, begun := range [][]byte{
		{1},                            // one byte of the header
		frame(make([]byte, 1000))[:9],  // no body
		requestFrame(7, "status")[:12], // half a request id
		requestFrame(7, strings.Repeat("x", 99))[:50], // half a body
	} {
		r := dialRaw(t, controlPath(c)).shake(protoReq)
		r.send(begun)
		served(t, c, time.Second)
		r.waitClosed()
	}
}

// TestBadFrames: an invalid request frame closes the connection.
func TestBadFrames(t *testing.T) {
	c := serve(t, Options{}, echo)
	for name, bad := range map[string][]byte{
		"another type":  append([]byte{2}, frame([]byte("x"))[1:]...),
		"huge":          {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"a gigabyte":    {1, 0, 0, 0, 0, 0x40, 0, 0, 0},
		"no request id": frame([]byte("abc")),
		"only hops":     frame(make([]byte, 4*20)),
		"nothing":       frame(nil),
	} {
		t.Run(name, func(t *testing.T) {
			r := dialRaw(t, controlPath(c)).shake(protoReq)
			r.send(bad)
			r.waitClosed()
			served(t, c, time.Second)
		})
	}
}

// TestOversizeRequest: an oversized request receives an error, and the connection
// continues.
func TestOversizeRequest(t *testing.T) {
	c := serve(t, Options{TooLong: []byte("too long")}, echo)
	r := dialRaw(t, controlPath(c)).shake(protoReq)
	for range 20 { // more than the limit on unanswered requests
		r.send(requestFrame(9, strings.Repeat("x", api.MaxRequest+1)))
		if got, err := r.receive(); err != nil || got != "\x80\x00\x00\x09too long" {
			t.Fatalf("answer = %q, %v; want \"too long\" with the request's id", got, err)
		}
	}
	r.send(requestFrame(10, strings.Repeat("x", api.MaxRequest)))
	if got, err := r.receive(); err != nil || len(got) != 4+len("echo ")+api.MaxRequest {
		t.Errorf("answer to the longest request: %d bytes, %v", len(got), err)
	}
	served(t, c, time.Second)
}

// TestStuckReaders: clients that send requests and do not read the answers. With
// unmodified mangos a few of them block every worker.
func TestStuckReaders(t *testing.T) {
	var answered atomic.Int64
	c := serve(t, Options{Limits: Limits{WriteTimeout: time.Second}}, func(ctx context.Context, p Peer, r []byte) []byte {
		answered.Add(1)
		if string(r) == "large" {
			// This reply is larger than a socket buffer.
			return make([]byte, 900<<10)
		}
		return echo(ctx, p, r)
	})
	for range 8 {
		r := dialRaw(t, controlPath(c)).shake(protoReq)
		for id := range uint32(8) {
			_, _ = r.Write(requestFrame(id, "large")) // the daemon may have hung up already: it keeps few unread bytes
		}
	}
	eventually(t, "the daemon has answered", func() bool { return answered.Load() >= 8 })
	for range 5 {
		served(t, c, 500*time.Millisecond)
	}
	eventually(t, "those who do not read are hung up on", func() bool { return countOf(c.control) == 0 })
}

// TestPeerIsBounded sends more requests over one connection than the limit on unanswered requests:
// the rest wait in the socket, not in the daemon.
func TestPeerIsBounded(t *testing.T) {
	var running, most atomic.Int64
	release := make(chan struct{})
	c := serve(t, Options{Limits: Limits{PerPeer: 3}}, func(_ context.Context, _ Peer, r []byte) []byte {
		if string(r) == "hello" {
			return []byte("echo hello")
		}
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		<-release
		running.Add(-1)
		return r
	})
	r := dialRaw(t, controlPath(c)).shake(protoReq)
	for id := range uint32(20) {
		r.send(requestFrame(id, "wait"))
	}
	eventually(t, "three are carried out", func() bool { return running.Load() == 3 })
	served(t, c, time.Second)
	close(release)
	seen := map[string]bool{}
	for range 20 {
		got, err := r.receive()
		if err != nil {
			t.Fatal(err)
		}
		seen[got] = true
	}
	if len(seen) != 20 || most.Load() != 3 {
		t.Errorf("%d answers, %d at once; want 20 and 3", len(seen), most.Load())
	}
}

// TestHangUpEndsContext: the client is killed while its request is being executed.
func TestHangUpEndsContext(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	c := serve(t, Options{}, func(ctx context.Context, p Peer, r []byte) []byte {
		if string(r) == "wait" {
			close(began)
			<-ctx.Done()
			close(ended)
		}
		return echo(ctx, p, r)
	})
	r := dialRaw(t, controlPath(c)).shake(protoReq)
	r.send(requestFrame(1, "wait"))
	<-began
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the handler's context continues")
	}
	served(t, c, time.Second)
}

// TestStopAnswersWhatRuns stops the daemon while it is executing a request.
func TestStopAnswersWhatRuns(t *testing.T) {
	dir, outer := runDir(t), t
	began, release := make(chan struct{}), make(chan struct{})
	answer := make(chan error, 1)
	t.Run("daemon", func(t *testing.T) {
		c := serve(t, Options{RunDir: dir}, func(context.Context, Peer, []byte) []byte {
			close(began)
			<-release
			return []byte("late")
		})
		r := dialRaw(outer, controlPath(c)).shake(protoReq)
		r.send(requestFrame(1, "x"))
		<-began
		go func() {
			<-c.control.done // the daemon is stopping
			close(release)
			got, err := r.receive()
			if err == nil && got != "\x80\x00\x00\x01late" {
				err = fmt.Errorf("answer %q", got)
			}
			answer <- err
		}()
	})
	if err := <-answer; err != nil {
		t.Errorf("a request that was being carried out was not answered: %v", err)
	}
	if _, err := client.Dial(t.Context(), client.Options{Socket: dir + "/" + ControlSocket}); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("after the stop: %v, want ErrNotRunning", err)
	}
}

// TestManyClients serves many honest clients at once.
func TestManyClients(t *testing.T) {
	_, _, c := serveMini(t, Options{})
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for range 50 {
				if v, err := c.Version(t.Context()); err != nil || v.Version != "1.0" {
					t.Errorf("version = %v, %v", v, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestHonestBesideFlood: peers that misbehave in every way connect as fast as they can, as
// the same user. Each honest client, which connects, sends one request and disconnects, is still
// served.
func TestHonestBesideFlood(t *testing.T) {
	c := serve(t, Options{TooLong: []byte("too long"), Limits: Limits{Connections: 64}}, echo)
	path := controlPath(c)
	attacks := []func(*net.UnixConn){
		func(*net.UnixConn) {}, // silent
		func(n *net.UnixConn) { _, _ = n.Write([]byte("GET / HTTP/1.1\r\n\r\n")) },
		func(n *net.UnixConn) { shakeHands(n) },
		func(n *net.UnixConn) { shakeHands(n); _, _ = n.Write(frame(make([]byte, 1000))[:13]) },
		func(n *net.UnixConn) { shakeHands(n); _, _ = n.Write(frame(make([]byte, 900<<10))[:100<<10]) },
		func(n *net.UnixConn) { shakeHands(n); _, _ = n.Write([]byte{1, 0x40, 0, 0, 0, 0, 0, 0, 0}) },
		func(n *net.UnixConn) { shakeHands(n); _, _ = n.Write([]byte{1, 0, 0, 0, 0, 3, 0xc0, 0, 0, 0x80}) },
		func(n *net.UnixConn) { // does not read
			shakeHands(n)
			for id := range uint32(8) {
				_, _ = n.Write(requestFrame(id, strings.Repeat("x", 500<<10)))
			}
		},
	}
	stop := make(chan struct{})
	var flood sync.WaitGroup
	var count atomic.Int64
	for i := range 4 {
		flood.Go(func() {
			var open []*net.UnixConn
			for k := i; ; k++ {
				select {
				case <-stop:
					for _, n := range open {
						_ = n.Close()
					}
					return
				default:
				}
				n, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
				if err != nil {
					continue // the backlog is full
				}
				_ = n.SetDeadline(time.Now().Add(50 * time.Millisecond))
				attacks[k%len(attacks)](n)
				count.Add(1)
				if open = append(open, n); len(open) > 64 {
					_ = open[0].Close()
					open = open[1:]
				}
			}
		})
	}
	failed := 0
	const honest = 300
	for i := range honest {
		if err := askOnce(path); err != nil {
			failed++
			t.Logf("client %d: %v", i, err)
		}
	}
	close(stop)
	flood.Wait()
	t.Logf("%d hostile connections", count.Load())
	if failed > 0 {
		t.Errorf("%d of %d honest clients were not served", failed, honest)
	}
}

func shakeHands(n *net.UnixConn) {
	_, _ = n.Write([]byte{0, 'S', 'P', 0, 0, protoReq, 0, 0})
	_, _ = io.ReadFull(n, make([]byte, 8))
}

// askOnce connects, sends one request and disconnects, without a retry.
func askOnce(path string) error {
	n, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer n.Close() // the reply has been read
	if err := n.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if _, err := n.Write(append([]byte{0, 'S', 'P', 0, 0, protoReq, 0, 0}, requestFrame(1, "hello")...)); err != nil {
		return err
	}
	got := make([]byte, 8+9+4+len("echo hello"))
	if _, err := io.ReadFull(n, got); err != nil {
		return err
	}
	if !strings.HasSuffix(string(got), "echo hello") {
		return fmt.Errorf("answered %q", got)
	}
	return nil
}

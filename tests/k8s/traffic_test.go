// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// client is a source of requests.
type client struct {
	name string
	ns   *testnet.NS
	from netip.Addr // the kernel selects the port; zero: and the address
}

// get sends a request over a connection of its own, and returns the answer's body.
func (c client) get(server netip.AddrPort, path string) (string, error) {
	return c.getWithin(3*time.Second, server, path)
}

func (c client) getWithin(timeout time.Duration, server netip.AddrPort, path string) (string, error) {
	web := http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true, DialContext: c.dial(timeout)}}
	answer, err := web.Get("http://" + server.String() + path)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }() // only read from
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return string(text), err
}

func (c client) dial(timeout time.Duration) func(context.Context, string, string) (net.Conn, error) {
	return func(_ context.Context, network, address string) (conn net.Conn, err error) {
		d := net.Dialer{Timeout: timeout}
		if c.from.IsValid() {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.from, 0))
		}
		err = c.ns.Try(func() error {
			conn, err = d.Dial(network, address)
			return err
		})
		return conn, err
	}
}

// connect opens a connection, which the caller closes.
func (c client) connect(server netip.AddrPort) (net.Conn, error) {
	return c.dial(3*time.Second)(context.Background(), "tcp", server.String())
}

// ask sends one datagram and returns the answer. local is the client's port; 0: any.
func (c client) ask(server netip.AddrPort, local int, text string) (string, error) {
	var conn *net.UDPConn
	err := c.ns.Try(func() (err error) {
		conn, err = net.DialUDP("udp", &net.UDPAddr{Port: local}, net.UDPAddrFromAddrPort(server))
		return err
	})
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // nothing is lost
	if _, err := conn.Write([]byte(text)); err != nil {
		return "", err
	}
	if err := conn.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	b := make([]byte, 2048)
	n, err := conn.Read(b)
	return string(b[:n]), err
}

// names sends requests, and returns how often each server answered. It fails the test if a request
// is not answered.
func (c client) names(t testing.TB, server netip.AddrPort, times int) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for range times {
		name, err := c.get(server, "/hostname")
		if err != nil {
			t.Errorf("%s asks %s: %v", c.name, server, err)
			return seen
		}
		seen[name]++
	}
	return seen
}

// refused fails the test unless a connection is refused at once.
func (c client) refused(t testing.TB, server netip.AddrPort) {
	t.Helper()
	begin := time.Now()
	conn, err := c.connect(server)
	switch {
	case err == nil:
		_ = conn.Close() // it should not exist
		t.Errorf("%s reaches %s, want that it is refused", c.name, server)
	case !strings.Contains(err.Error(), "refused") || time.Since(begin) > time.Second:
		t.Errorf("%s asks %s: %v after %s, want that it is refused at once", c.name, server, err, time.Since(begin))
	}
}

// load sends requests continuously, over a new connection each, until it is stopped.
type load struct {
	stop   chan struct{}
	done   sync.WaitGroup
	mu     sync.Mutex
	asked  int
	failed []string
}

// startLoad sends requests from a client to some servers in turn.
func startLoad(c client, servers ...netip.AddrPort) *load {
	l := &load{stop: make(chan struct{})}
	for i := range 4 {
		l.done.Go(func() {
			for n := i; ; n++ {
				select {
				case <-l.stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				server := servers[n%len(servers)]
				begin := time.Now()
				_, err := c.getWithin(10*time.Second, server, "/hostname")
				l.mu.Lock()
				l.asked++
				if err != nil {
					l.failed = append(l.failed, fmt.Sprintf("%s %s: %s asks %s: %v (after %s)", begin.Format("15:04:05.000"), c.name, c.name, server, err, time.Since(begin).Round(time.Millisecond)))
				}
				l.mu.Unlock()
			}
		})
	}
	return l
}

// count returns the number of requests so far.
func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

// end stops the requests and fails the test if one was lost.
func (l *load) end(t testing.TB) {
	t.Helper()
	close(l.stop)
	l.done.Wait()
	t.Logf("%d requests, %d lost", l.asked, len(l.failed))
	if len(l.failed) > 0 {
		t.Errorf("%d of %d requests were lost:\n%s", len(l.failed), l.asked, strings.Join(l.failed[:min(8, len(l.failed))], "\n"))
	}
	if l.asked < 50 {
		t.Errorf("%d requests only: that shows nothing", l.asked)
	}
}

// keysOf returns the names that were seen.
func keysOf(seen map[string]int) []string {
	var all []string
	for name := range seen {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

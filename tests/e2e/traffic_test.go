// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// traffic is steady load from one machine to a frontend: datagrams, each of which
// must be answered, new connections, and connections that last.
type traffic struct {
	ns       *testnet.NS
	target   string
	stop     chan struct{}
	wg       sync.WaitGroup
	begin    time.Time
	flows    []*flow
	tuples   []string      // of what lasts: protocol, source, destination
	opened   atomic.Uint64 // new connections that did all that they should
	exchange atomic.Uint64 // on those that last

	mu       sync.Mutex
	failures []string
}

// load is how much of each.
type load struct {
	flows       int // UDP sockets
	packets     int // datagrams a second, of all flows
	connections int // new TCP connections a second
	lasting     int // TCP connections that last
	idle        int // UDP sockets that were used once
}

const (
	tick     = 2 * time.Millisecond
	burstMax = 100 // datagrams sent at once to catch up
)

// startTraffic begins and returns when all flows and lasting connections are up.
func startTraffic(t *testing.T, ns *testnet.NS, target string, l load) *traffic {
	t.Helper()
	tr := &traffic{ns: ns, target: target, stop: make(chan struct{}), begin: time.Now()}
	t.Cleanup(tr.end)
	for i := range l.flows + l.idle {
		c, err := ns.Dial("udp", "", target, patience)
		if err != nil {
			t.Fatal(err)
		}
		if name, err := exchangeUDP(c, []byte("12345678")); err != nil {
			t.Fatalf("first datagram to %s: %q, %v", target, name, err)
		}
		tr.tuples = append(tr.tuples, fmt.Sprintf("udp %s %s", c.LocalAddr(), target))
		if i >= l.flows {
			t.Cleanup(func() { c.Close() })
			continue
		}
		f := &flow{c: c, servers: make(map[string]uint64)}
		if err := c.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		tr.flows = append(tr.flows, f)
		tr.wg.Go(f.receive)
	}
	for range l.lasting {
		c, err := ns.Dial("tcp", "", target, patience)
		if err != nil {
			t.Fatal(err)
		}
		tr.tuples = append(tr.tuples, fmt.Sprintf("tcp %s %s", c.LocalAddr(), target))
		tr.wg.Go(func() { tr.last(c) })
	}
	if l.flows > 0 {
		tr.wg.Go(func() { tr.sendAll(l.packets) })
	}
	if l.connections > 0 {
		tr.wg.Go(func() { tr.open(l.connections) })
	}
	return tr
}

// end stops it; it may be called twice.
func (tr *traffic) end() {
	select {
	case <-tr.stop:
	default:
		close(tr.stop)
	}
	tr.wg.Wait()
}

func (tr *traffic) fail(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if len(tr.failures) < 10 {
		after := time.Since(tr.begin).Round(time.Millisecond)
		tr.failures = append(tr.failures, fmt.Sprintf("after %s: %s", after, fmt.Sprintf(format, args...)))
	}
}

// flow is one UDP socket. Datagrams are numbered.
type flow struct {
	c    net.Conn
	sent uint64

	mu       sync.Mutex
	received uint64            // distinct
	seen     []bool            // by number
	servers  map[string]uint64 // by name
}

func (f *flow) receive() {
	b := make([]byte, 2048)
	for {
		n, err := f.c.Read(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error shows as a datagram lost
		}
		name, data, _ := bytes.Cut(b[:n], []byte(" "))
		if len(data) != 8 {
			continue
		}
		f.note(string(name), binary.BigEndian.Uint64(data))
	}
}

func (f *flow) note(name string, number uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for uint64(len(f.seen)) <= number {
		f.seen = append(f.seen, make([]bool, 4096)...)
	}
	if !f.seen[number] {
		f.seen[number] = true
		f.received++
	}
	f.servers[name]++
}

// sendAll sends so many datagrams a second, by all flows in turn.
func (tr *traffic) sendAll(rate int) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	begin, due, sent := time.Now(), 0, 0
	b := make([]byte, 8)
	for {
		select {
		case <-tr.stop:
			tr.drain()
			return
		case <-ticker.C:
		}
		due = int(time.Since(begin).Seconds() * float64(rate))
		for n := 0; sent < due && n < burstMax; n++ {
			f := tr.flows[sent%len(tr.flows)]
			binary.BigEndian.PutUint64(b, f.sent)
			f.sent++
			sent++
			if _, err := f.c.Write(b); err != nil {
				tr.fail("datagram: %v", err)
			}
		}
	}
}

// drain waits for the answers that are still under way.
func (tr *traffic) drain() {
	for end := time.Now().Add(patience); tr.lost() > 0 && time.Now().Before(end); {
		time.Sleep(tick)
	}
	for _, f := range tr.flows {
		f.c.Close()
	}
}

func (tr *traffic) lost() (n uint64) {
	for _, f := range tr.flows {
		f.mu.Lock()
		n += f.sent - f.received
		f.mu.Unlock()
	}
	return n
}

func (tr *traffic) sent() (n uint64) {
	for _, f := range tr.flows {
		n += f.sent
	}
	return n
}

// open makes so many new connections a second, each with a word there and back.
func (tr *traffic) open(rate int) {
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-tr.stop:
			return
		case <-ticker.C:
			wg.Go(func() {
				if _, err := talkTCP(tr.ns, "", tr.target, []byte("one word")); err != nil {
					tr.fail("new connection: %v", err)
					return
				}
				tr.opened.Add(1)
			})
		}
	}
}

// last keeps a connection busy.
func (tr *traffic) last(c net.Conn) {
	defer c.Close()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	name := make([]byte, 0, 64)
	for b := make([]byte, 1); !bytes.HasSuffix(name, []byte("\n")); {
		if err := errors.Join(c.SetDeadline(time.Now().Add(patience)), justRead(c, b)); err != nil {
			tr.fail("lasting connection: %v", err)
			return
		}
		name = append(name, b...)
	}
	word := []byte("words that go there and back again")
	back := make([]byte, len(word))
	for {
		select {
		case <-tr.stop:
			return
		case <-ticker.C:
		}
		_, err := c.Write(word)
		if err := errors.Join(c.SetDeadline(time.Now().Add(patience)), err, justRead(c, back)); err != nil {
			tr.fail("lasting connection to %s: %v", bytes.TrimSpace(name), err)
			return
		}
		tr.exchange.Add(1)
	}
}

func justRead(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	return err
}

// expectUnharmed ends the traffic and fails the test if anything was lost, refused
// or reset, or if a flow changed its server.
func (tr *traffic) expectUnharmed(t *testing.T) {
	t.Helper()
	tr.end()
	seconds := time.Since(tr.begin).Seconds()
	t.Logf("%s: %d datagrams (%.0f a second), %d new connections (%.0f a second), %d words on lasting ones", tr.target,
		tr.sent(), float64(tr.sent())/seconds, tr.opened.Load(), float64(tr.opened.Load())/seconds, tr.exchange.Load())
	if lost := tr.lost(); lost > 0 {
		t.Errorf("%s: %d of %d datagrams were lost", tr.target, lost, tr.sent())
	}
	for i, f := range tr.flows {
		if len(f.servers) > 1 {
			t.Errorf("%s: flow %d was answered by %v", tr.target, i, slices.Collect(maps.Keys(f.servers)))
		}
	}
	if len(tr.failures) > 0 {
		t.Errorf("%s:\n%s", tr.target, strings.Join(tr.failures, "\n"))
	}
	if tr.opened.Load() == 0 && tr.exchange.Load() == 0 && tr.sent() == 0 {
		t.Errorf("%s: there was no traffic", tr.target)
	}
}

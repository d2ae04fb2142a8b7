// SPDX-License-Identifier: Apache-2.0

// Package testtraffic puts steady load on a frontend and counts the damage: datagrams that were
// lost, and connections that were refused or reset. It is for tests only.
package testtraffic

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

// Traffic is steady load from one machine to a frontend: datagrams, each of which must be answered,
// new connections, and lasting connections.
type Traffic struct {
	Tuples []string // tuples of UDP sockets and lasting connections: protocol, source, destination

	ns       *testnet.NS
	target   string
	stop     chan struct{}
	wg       sync.WaitGroup
	begin    time.Time
	flows    []*flow
	opened   atomic.Uint64 // new connections that were served completely
	exchange atomic.Uint64 // exchanges on lasting connections

	mu       sync.Mutex
	harmed   int // failed connections, and datagrams that could not be sent
	failures []string
	servers  map[string]uint64 // new connections that were answered, by server name
}

// Load contains the amount of each kind of traffic.
type Load struct {
	Flows       int // UDP sockets
	Packets     int // datagrams per second, for all flows together
	Connections int // new TCP connections per second
	Lasting     int // lasting TCP connections
	Idle        int // UDP sockets that are idle after two exchanges: established connections
	Once        int // UDP sockets that are idle after one exchange: half-open connections
}

const (
	tick     = 2 * time.Millisecond
	burstMax = 100 // datagrams sent at once to catch up
)

// Start starts the traffic and returns when all flows and lasting connections are up.
func Start(t testing.TB, ns *testnet.NS, target string, l Load) *Traffic {
	t.Helper()
	tr := &Traffic{ns: ns, target: target, stop: make(chan struct{}), begin: time.Now(), servers: make(map[string]uint64)}
	t.Cleanup(tr.End)
	for range l.Flows {
		c := tr.openUDP(t, 1)
		f := &flow{c: c, servers: make(map[string]uint64)}
		if err := c.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		tr.flows = append(tr.flows, f)
		tr.wg.Go(f.receive)
	}
	for i := range l.Idle + l.Once {
		exchanges := 2
		if i >= l.Idle {
			exchanges = 1
		}
		c := tr.openUDP(t, exchanges)
		t.Cleanup(func() { c.Close() })
	}
	for range l.Lasting {
		c, err := ns.Dial("tcp", "", target, Patience)
		if err != nil {
			t.Fatal(err)
		}
		tr.Tuples = append(tr.Tuples, fmt.Sprintf("tcp %s %s", c.LocalAddr(), target))
		tr.wg.Go(func() { tr.last(c) })
	}
	if l.Flows > 0 {
		tr.wg.Go(func() { tr.sendAll(l.Packets) })
	}
	if l.Connections > 0 {
		tr.wg.Go(func() { tr.open(l.Connections) })
	}
	return tr
}

// openUDP opens a UDP socket and exchanges datagrams on it.
func (tr *Traffic) openUDP(t testing.TB, exchanges int) net.Conn {
	t.Helper()
	c, err := tr.ns.Dial("udp", "", tr.target, Patience)
	if err != nil {
		t.Fatal(err)
	}
	for i := range exchanges {
		if name, err := ExchangeUDP(c, []byte("12345678")); err != nil {
			t.Fatalf("datagram %d to %s: %q, %v", i+1, tr.target, name, err)
		}
	}
	tr.Tuples = append(tr.Tuples, fmt.Sprintf("udp %s %s", c.LocalAddr(), tr.target))
	return c
}

// End stops the traffic; it may be called twice.
func (tr *Traffic) End() {
	select {
	case <-tr.stop:
	default:
		close(tr.stop)
	}
	tr.wg.Wait()
}

func (tr *Traffic) fail(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.harmed++
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
	seen     []bool            // datagrams seen, by number
	servers  map[string]uint64 // datagrams answered, by server name
}

func (f *flow) receive() {
	b := make([]byte, 2048)
	for {
		n, err := f.c.Read(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error counts as a lost datagram
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

// sendAll sends rate datagrams per second, from each flow in turn.
func (tr *Traffic) sendAll(rate int) {
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

// drain waits for the answers that are still in transit.
func (tr *Traffic) drain() {
	for end := time.Now().Add(Patience); tr.Lost() > 0 && time.Now().Before(end); {
		time.Sleep(tick)
	}
	for _, f := range tr.flows {
		f.c.Close()
	}
}

// Lost returns the number of datagrams that have not been answered so far.
func (tr *Traffic) Lost() (n uint64) {
	for _, f := range tr.flows {
		f.mu.Lock()
		n += f.sent - f.received
		f.mu.Unlock()
	}
	return n
}

// Sent returns the number of datagrams sent. It may be called once the traffic has ended.
func (tr *Traffic) Sent() (n uint64) {
	for _, f := range tr.flows {
		n += f.sent
	}
	return n
}

// Opened returns the number of new connections that were served completely.
func (tr *Traffic) Opened() uint64 { return tr.opened.Load() }

// Harmed returns the number of connections, new or lasting, that were refused or reset, or got no
// answer in time, and of datagrams that could not be sent.
func (tr *Traffic) Harmed() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.harmed
}

// Servers returns how many datagrams and new connections each server answered, by server name.
func (tr *Traffic) Servers() map[string]uint64 {
	tr.mu.Lock()
	all := maps.Clone(tr.servers)
	tr.mu.Unlock()
	for _, f := range tr.flows {
		f.mu.Lock()
		for name, n := range f.servers {
			all[name] += n
		}
		f.mu.Unlock()
	}
	return all
}

// open opens rate new connections per second, and exchanges a word on each.
func (tr *Traffic) open(rate int) {
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
				name, err := TalkTCP(tr.ns, "", tr.target, []byte("one word"))
				if err != nil {
					tr.fail("new connection: %v", err)
					return
				}
				tr.opened.Add(1)
				tr.mu.Lock()
				defer tr.mu.Unlock()
				tr.servers[name]++
			})
		}
	}
}

// last keeps a connection busy.
func (tr *Traffic) last(c net.Conn) {
	defer c.Close()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	name := make([]byte, 0, 64)
	for b := make([]byte, 1); !bytes.HasSuffix(name, []byte("\n")); {
		if err := errors.Join(c.SetDeadline(time.Now().Add(Patience)), ReadFull(c, b)); err != nil {
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
		if err := errors.Join(c.SetDeadline(time.Now().Add(Patience)), err, ReadFull(c, back)); err != nil {
			tr.fail("lasting connection to %s: %v", bytes.TrimSpace(name), err)
			return
		}
		tr.exchange.Add(1)
	}
}

// ReadFull is io.ReadFull for callers that need only the error.
func ReadFull(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	return err
}

// ExpectUnharmed ends the traffic and fails the test if anything was lost, refused
// or reset, or if a flow changed its server.
func (tr *Traffic) ExpectUnharmed(t testing.TB) {
	t.Helper()
	tr.End()
	seconds := time.Since(tr.begin).Seconds()
	t.Logf("%s: %d datagrams (%.0f a second), %d new connections (%.0f a second), %d words on lasting ones", tr.target,
		tr.Sent(), float64(tr.Sent())/seconds, tr.opened.Load(), float64(tr.opened.Load())/seconds, tr.exchange.Load())
	if lost := tr.Lost(); lost > 0 {
		t.Errorf("%s: %d of %d datagrams were lost", tr.target, lost, tr.Sent())
	}
	for i, f := range tr.flows {
		if len(f.servers) > 1 {
			t.Errorf("%s: flow %d was answered by %v", tr.target, i, slices.Collect(maps.Keys(f.servers)))
		}
	}
	if len(tr.failures) > 0 {
		t.Errorf("%s:\n%s", tr.target, strings.Join(tr.failures, "\n"))
	}
	if tr.opened.Load() == 0 && tr.exchange.Load() == 0 && tr.Sent() == 0 {
		t.Errorf("%s: there was no traffic", tr.target)
	}
}

// SPDX-License-Identifier: Apache-2.0

package million

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// failuresMax is the number of failed connections after which a client gives up: each of them can
// take as long as callTimeout.
const failuresMax = 10

// Client opens connections and keeps them, as a process in the client's namespace. Its exported
// methods are called by the test, through net/rpc.
type Client struct {
	setup  ClientSetup
	target unix.SockaddrInet4
	fds    []int32      // by number of the connection; -1: it has failed
	opened atomic.Int64 // connections that have been tried; their fds are final until they fail
	broken atomic.Bool  // too many have failed

	mu      sync.Mutex // held while requests are sent and answered
	members []int      // connections with background requests, a random sample
	sampled int        // connections from which the sample was taken
	quiet   bool       // no background requests
	round   uint32
	rounds  int // of background requests

	tallying sync.Mutex
	tally    Tally
}

// ClientSetup configures a client.
type ClientSetup struct {
	Worker    int            // number of the client, part of its requests
	Target    netip.AddrPort // frontend of the Service
	Sources   []netip.Addr   // addresses of the client
	Total     int            // connections, at most
	Members   int            // connections with background requests
	PerSecond int            // new connections; 0: as fast as possible
}

// Tally describes the connections of a client.
type Tally struct {
	Opened    int            // without those that failed
	Exchanges int            // requests with the right answer
	Rounds    int            // of requests on all background connections
	Members   int            // background connections
	Failures  map[string]int // connections that have failed, by kind
	Stamps    []Stamp        // one for each hundredth of the connections
	Examples  []string       // details of some failures
}

// Stamp is the time at which a number of connections were open.
type Stamp struct {
	At     time.Time
	Opened int
}

// Requests select connections for requests.
type Requests struct {
	From, To int // numbers of the connections
	Random   int // 0: one request on each connection; otherwise as many, each on a random connection
	Batch    int // requests that are sent before the first answer is read
}

// firstPort is the lowest source port of connections.
const firstPort = 10000

// Setup configures the client and begins with background requests.
func (c *Client) Setup(s ClientSetup, _ *bool) error {
	if perSource := (s.Total + len(s.Sources) - 1) / len(s.Sources); firstPort+perSource > 1<<16 {
		return fmt.Errorf("%d connections from %d addresses: too few ports", s.Total, len(s.Sources))
	}
	c.setup = s
	c.target = unix.SockaddrInet4{Port: int(s.Target.Port()), Addr: s.Target.Addr().As4()}
	c.fds = make([]int32, s.Total)
	c.tally.Failures = make(map[string]int)
	go c.talk()
	return nil
}

// Open opens connections until total connections have been opened.
func (c *Client) Open(total int, _ *bool) error {
	begin, first := time.Now(), int(c.opened.Load())
	for i := first; i < total; i++ {
		if c.broken.Load() {
			return errors.New("too many connections have failed")
		}
		fd, err := c.connect(i)
		if c.fds[i] = int32(fd); err != nil {
			c.fail(i, "open", err)
		}
		c.opened.Store(int64(i + 1))
		if n := i + 1; n%max(1, c.setup.Total/100) == 0 || n == c.setup.Total {
			c.tallying.Lock()
			c.tally.Stamps = append(c.tally.Stamps, Stamp{At: time.Now(), Opened: n})
			c.tallying.Unlock()
		}
		if c.setup.PerSecond > 0 {
			due := time.Duration(i+1-first) * time.Second / time.Duration(c.setup.PerSecond)
			time.Sleep(due - time.Since(begin))
		}
	}
	return nil
}

// source returns the address and port from which connection i is opened.
func (c *Client) source(i int) *unix.SockaddrInet4 {
	n := len(c.setup.Sources)
	return &unix.SockaddrInet4{Addr: c.setup.Sources[i%n].As4(), Port: firstPort + i/n}
}

// connect opens connection i. A socket that is closed resets its connection, so that none lingers
// after the end of the process.
func (c *Client) connect(i int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for _, step := range []func() error{
		func() error { return limitCalls(fd) },
		func() error {
			return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		},
		func() error { return unix.Bind(fd, c.source(i)) },
		func() error { return connect(fd, &c.target) },
	} {
		if err := step(); err != nil {
			return fd, err
		}
	}
	return fd, nil
}

// Progress returns the number of connections that have been opened.
func (c *Client) Progress(_ int, opened *int) error {
	*opened = int(c.opened.Load())
	return nil
}

// Quiet turns background requests off or on.
func (c *Client) Quiet(quiet bool, _ *bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.quiet = quiet
	return nil
}

// Send sends requests, reads the answers, and returns the duration.
func (c *Client) Send(r Requests, took *time.Duration) error {
	begin := time.Now()
	count := r.Random
	if count == 0 {
		count = r.To - r.From
	}
	batch := make([]int, 0, r.Batch)
	for next := 0; next < count; {
		if c.broken.Load() {
			return errors.New("too many connections have failed")
		}
		for batch = batch[:0]; next < count && len(batch) < r.Batch; next++ {
			i := r.From + next
			if r.Random > 0 {
				i = r.From + rand.IntN(r.To-r.From)
			}
			batch = append(batch, i)
		}
		c.mu.Lock()
		c.exchange(batch)
		c.mu.Unlock()
	}
	*took = time.Since(begin)
	return nil
}

// Tally returns the tally so far.
func (c *Client) Tally(_ int, t *Tally) error {
	c.mu.Lock()
	rounds, members := c.rounds, len(c.members)
	c.mu.Unlock()
	c.tallying.Lock()
	defer c.tallying.Unlock()
	*t = c.tally
	t.Rounds, t.Members, t.Opened = rounds, members, int(c.opened.Load())
	for _, n := range c.tally.Failures {
		t.Opened -= n
	}
	return nil
}

// talk sends a request on each background connection, at most twice a second and for at most a
// quarter of the time.
func (c *Client) talk() {
	for begin := time.Now(); !c.broken.Load(); begin = time.Now() {
		c.mu.Lock()
		c.sample()
		members := c.members
		c.mu.Unlock()
		for at := 0; at < len(members); at += 64 {
			c.mu.Lock()
			if !c.quiet {
				c.exchange(members[at:min(at+64, len(members))])
			}
			c.mu.Unlock()
		}
		c.mu.Lock()
		c.rounds++
		c.mu.Unlock()
		took := time.Since(begin)
		time.Sleep(max(time.Second/2-took, 3*took))
	}
}

// sample replaces members so that they are a random sample of all connections.
func (c *Client) sample() {
	for opened := int(c.opened.Load()); c.sampled < opened; c.sampled++ {
		if len(c.members) < c.setup.Members {
			c.members = append(c.members, c.sampled)
		} else if j := rand.IntN(c.sampled + 1); j < len(c.members) {
			c.members[j] = c.sampled
		}
	}
}

// exchange sends a request on each connection of a batch, then reads and compares the answers.
func (c *Client) exchange(batch []int) {
	c.round++
	right := 0
	for _, i := range batch {
		if c.fds[i] >= 0 {
			want := newMessage(c.setup.Worker, i, c.round)
			if err := writeAll(int(c.fds[i]), want[:]); err != nil {
				c.fail(i, "send", err)
			}
		}
	}
	for _, i := range batch {
		if c.fds[i] < 0 {
			continue
		}
		want := newMessage(c.setup.Worker, i, c.round)
		got, err := readMessage(int(c.fds[i]))
		if err == nil && got != want {
			err = fmt.Errorf("%w: %x instead of %x", errWrong, got, want)
		}
		if err != nil {
			c.fail(i, "answer", err)
			continue
		}
		right++
	}
	c.tallying.Lock()
	c.tally.Exchanges += right
	c.tallying.Unlock()
}

// fail records that connection i has failed, and closes it.
func (c *Client) fail(i int, what string, err error) {
	source := c.source(i)
	c.tallying.Lock()
	defer c.tallying.Unlock()
	c.tally.Failures[kindOf(err)]++
	failures := 0
	for _, n := range c.tally.Failures {
		failures += n
	}
	if failures <= 3 {
		c.tally.Examples = append(c.tally.Examples, fmt.Sprintf("%s: connection %d from %s:%d: %s: %v",
			time.Now().Format(time.TimeOnly), i, netip.AddrFrom4(source.Addr), source.Port, what, err))
	}
	if failures >= failuresMax {
		c.broken.Store(true)
	}
	if c.fds[i] >= 0 {
		unix.Close(int(c.fds[i])) // the connection has failed
		c.fds[i] = -1
	}
}

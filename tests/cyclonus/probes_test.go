// SPDX-License-Identifier: Apache-2.0

package cyclonus

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/worker"
	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// The patience with a probe. A denied probe is a packet without an answer, so it takes all of the
// time. cyclonus repeats all probes once if some results are unexpected; then there is more time.
const (
	patience     = 150 * time.Millisecond
	longPatience = 2 * time.Second
)

// station is a pod's namespace with its servers, which answer with their name.
type station struct {
	*testnet.NS
	name      string // namespace/name of the pod
	addresses [2]netip.Addr
	sctp      [2]net.PacketConn // raw: the kernel may have no SCTP sockets
	closers   []io.Closer
}

func (s *station) close() (err error) {
	for _, c := range s.closers {
		if e := c.Close(); !errors.Is(e, net.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// target is the pod that is to answer, and the address at which it is probed.
type target struct {
	name string
	addr netip.Addr
}

// probes sends probes and notes their results.
type probes struct {
	next    sync.Mutex
	number  uint32   // of the last probe
	waiting sync.Map // channels of the probes that wait for an INIT ACK, by number
	arrived sync.Map // numbers of the requests, of UDP and SCTP, that reached a server
	times   map[string]int
	failed  map[attempt]failure
}

// failure is why a probe failed.
type failure struct {
	err     error
	arrived bool // the request reached its server, but the answer did not arrive
}

// attempt is one probe of a case.
type attempt struct {
	time     int // which of the probes of a case
	from, to string
	key      string // protocol and port, as cyclonus has it
}

func newProbes() *probes {
	p := &probes{}
	p.begin()
	return p
}

// begin begins a case.
func (p *probes) begin() {
	p.times, p.failed = map[string]int{}, map[attempt]failure{}
	p.arrived.Clear()
}

// send sends all requests of a batch at once, from a pod.
func (p *probes) send(from *pod, requests []*worker.Request, targets []target) []*worker.Result {
	p.next.Lock()
	time := p.times[from.name]
	p.times[from.name]++
	p.next.Unlock()
	results := make([]*worker.Result, len(requests))
	var wg sync.WaitGroup
	for i, r := range requests {
		wg.Go(func() {
			results[i] = &worker.Result{Request: r}
			to := netip.AddrPortFrom(targets[i].addr, uint16(r.Port))
			limit := patience
			if time > 0 || from.name == targets[i].name { // a pod always reaches itself
				limit = longPatience
			}
			if err := p.probe(from, r.Protocol, to, targets[i].name, limit, time); err != nil {
				results[i].Error = err.Error()
			}
		})
	}
	wg.Wait()
	return results
}

func (p *probes) probe(from *pod, protocol corev1.Protocol, to netip.AddrPort, name string, limit time.Duration, time int) error {
	p.next.Lock()
	p.number++
	number := p.number
	p.next.Unlock()
	var err error
	want := answer(name, protocol, to.Port())
	switch protocol {
	case corev1.ProtocolTCP:
		err = probeTCP(from, to, want, limit)
	case corev1.ProtocolUDP:
		err = probeUDP(from, to, number, want, limit)
	case corev1.ProtocolSCTP:
		err = p.probeSCTP(from, to, number, want, limit)
	default:
		return fmt.Errorf("protocol %s", protocol)
	}
	if err != nil {
		_, arrived := p.arrived.Load(number)
		p.next.Lock()
		defer p.next.Unlock()
		p.failed[attempt{time, from.name, name, fmt.Sprintf("%s/%d", protocol, to.Port())}] = failure{err, arrived}
	}
	return err
}

// answer is the answer of a server.
func answer(name string, protocol corev1.Protocol, port uint16) string {
	return fmt.Sprintf("%s %s %d\n", name, protocol, port)
}

// serve starts the servers of a pod: one for each port of its containers.
func (p *probes) serve(t testnet.T, to *pod) {
	t.Helper()
	var sctp []uint16
	for _, c := range to.object.Spec.Containers {
		for _, port := range c.Ports {
			number := uint16(port.ContainerPort)
			at, text := fmt.Sprintf("[::]:%d", number), answer(to.name, port.Protocol, number)
			switch port.Protocol {
			case corev1.ProtocolTCP:
				l := to.Listen(t, at)
				to.closers = append(to.closers, l)
				go serveTCP(l, text)
			case corev1.ProtocolUDP:
				u := to.ListenUDP(t, at)
				to.closers = append(to.closers, u)
				go p.serveUDP(u, text)
			case corev1.ProtocolSCTP:
				sctp = append(sctp, number)
			}
		}
	}
	for family, network := range []string{"ip4:132", "ip6:132"} {
		to.Do(t, func() (err error) {
			to.sctp[family], err = (&net.ListenConfig{}).ListenPacket(context.Background(), network, "")
			return err
		})
		to.closers = append(to.closers, to.sctp[family])
		go p.serveSCTP(to.sctp[family], to.name, sctp)
	}
	t.Cleanup(func() { _ = to.close() }) // end of the test
}

func serveTCP(l net.Listener, text string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close() // no longer needed
			_, _ = io.WriteString(c, text)
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = io.Copy(io.Discard, c) // until the client resets the connection
		}()
	}
}

func probeTCP(from *pod, to netip.AddrPort, want string, limit time.Duration) error {
	end := time.Now().Add(limit)
	c, err := from.Dial("tcp", "", to.String(), limit)
	if err != nil {
		return err
	}
	defer c.Close() // the result is known
	if err := errors.Join(c.(*net.TCPConn).SetLinger(0), c.SetDeadline(end.Add(limit))); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		return fmt.Errorf("connected, answer %q, want %q: %w", got, want, err)
	}
	return nil
}

func (p *probes) serveUDP(u *net.UDPConn, text string) {
	b := make([]byte, 2048)
	for {
		n, from, err := u.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n == 4 {
			p.arrived.Store(binary.BigEndian.Uint32(b), true)
			_, _ = u.WriteToUDPAddrPort(append(b[:n:n], text...), from) // the client repeats its request
		}
	}
}

func probeUDP(from *pod, to netip.AddrPort, number uint32, want string, limit time.Duration) error {
	c, err := from.Dial("udp", "", to.String(), limit)
	if err != nil {
		return err
	}
	defer c.Close() // the result is known
	request := binary.BigEndian.AppendUint32(nil, number)
	b := make([]byte, 2048)
	for range 2 {
		_, err = c.Write(request)
		var n int
		for err == nil {
			_ = c.SetReadDeadline(time.Now().Add(limit / 2)) // cannot fail
			if n, err = c.Read(b); err == nil && string(b[:n]) == string(request)+want {
				return nil
			} else if err == nil {
				err = fmt.Errorf("answer %q, want %q", b[:n], want)
			}
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
	}
	return err
}

// Chunks of SCTP (RFC 9260, section 3.2), and the State Cookie parameter.
const (
	chunkInit    = 1
	chunkInitAck = 2
	stateCookie  = 7
)

// sctpPacket returns a packet that begins an association, or answers such a packet.
func sctpPacket(source, destination uint16, tag uint32, kind byte, own uint32, cookie string) []byte {
	value := append(binary.BigEndian.AppendUint32(nil, own), 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
	if cookie != "" {
		value = binary.BigEndian.AppendUint16(value, stateCookie)
		value = append(binary.BigEndian.AppendUint16(value, uint16(4+len(cookie))), cookie...)
	}
	return testpkt.Build(testpkt.SCTP{Source: source, Destination: destination, Tag: tag, Chunks: []testpkt.Chunk{{Type: kind, Value: value}}})
}

// serveSCTP answers requests for some ports, and hands answers to the probes that wait for them.
func (p *probes) serveSCTP(raw net.PacketConn, name string, ports []uint16) {
	b := make([]byte, 2048)
	for {
		n, from, err := raw.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 32 {
			continue
		}
		source, destination := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		number := binary.BigEndian.Uint32(b[16:])
		switch b[12] {
		case chunkInit:
			if slices.Contains(ports, destination) {
				p.arrived.Store(number, true)
				text := answer(name, corev1.ProtocolSCTP, destination)
				_, _ = raw.WriteTo(sctpPacket(destination, source, number, chunkInitAck, rand.Uint32()|1, text), from) // the client repeats its request
			}
		case chunkInitAck:
			if c, ok := p.waiting.Load(binary.BigEndian.Uint32(b[4:])); ok {
				select {
				case c.(chan []byte) <- bytes.Clone(b[:n]):
				default: // a second answer
				}
			}
		}
	}
}

// probeSCTP begins an association, whose verification tag is the number of the probe.
func (p *probes) probeSCTP(from *pod, to netip.AddrPort, number uint32, want string, limit time.Duration) error {
	family := 0
	if to.Addr().Is6() {
		family = 1
	}
	answers := make(chan []byte, 1)
	p.waiting.Store(number, answers)
	defer p.waiting.Delete(number)
	port := uint16(32768 + number%28000)
	request := sctpPacket(port, to.Port(), 0, chunkInit, number, "")
	err := errors.New("no answer")
	for range 2 {
		if _, e := from.sctp[family].WriteTo(request, &net.IPAddr{IP: to.Addr().AsSlice()}); e != nil {
			err = e
		}
		select {
		case b := <-answers:
			if binary.BigEndian.Uint16(b) != to.Port() || binary.BigEndian.Uint16(b[2:]) != port || !strings.Contains(string(b[32:]), want) {
				return fmt.Errorf("answer %q, want %q", b, want)
			}
			return nil
		case <-time.After(limit / 2):
		}
	}
	return err
}

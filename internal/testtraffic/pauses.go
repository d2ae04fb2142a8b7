// SPDX-License-Identifier: Apache-2.0

package testtraffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testnet"
)

// Pauses is a set of UDP flows from many source addresses to one target. Each flow sends a request,
// pauses, and repeats that. Pauses verifies the source of each answer.
type Pauses struct {
	Name     string
	Flows    int
	Sources  netip.Prefix // addresses of the flows; the machine must have them all
	Target   netip.AddrPort
	Pause    time.Duration // mean pause of a flow
	Spread   time.Duration // a pause is up to this much shorter or longer
	Duration time.Duration

	conn  *net.UDPConn
	mu    sync.Mutex
	flows []pausing
	wrong []string
}

// pausing is one flow.
type pausing struct {
	asked, answered, wrong uint32
	last                   [2]bool // whether the last two requests were answered, newest first
}

const wheelStep = 10 * time.Millisecond

// Run sends for the whole duration, then waits for the last answers to arrive.
func (p *Pauses) Run(t testing.TB, ns *testnet.NS) {
	t.Helper()
	local, level, option := "0.0.0.0:0", unix.IPPROTO_IP, unix.IP_PKTINFO
	if p.Sources.Addr().Is6() {
		local, level, option = "[::]:0", unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	p.conn = ns.ListenUDP(t, local)
	raw, err := p.conn.SyscallConn()
	if err == nil {
		var set error
		err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, 1) })
		err = errors.Join(err, set)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.flows = make([]pausing, p.Flows)
	var wg sync.WaitGroup
	wg.Go(p.receive)
	p.send(t)
	time.Sleep(2 * time.Second) // the last answers
	p.conn.Close()
	wg.Wait()
}

// send sends the requests of all flows, each at its own time.
func (p *Pauses) send(t testing.TB) {
	wheel := make([][]int32, p.Duration/wheelStep+1)
	put := func(flow int32, at time.Duration) {
		if step := int(at / wheelStep); step < len(wheel) {
			wheel[step] = append(wheel[step], flow)
		}
	}
	first := min(p.Pause, p.Duration/2)
	for i := range p.Flows {
		put(int32(i), first*time.Duration(i)/time.Duration(p.Flows))
	}
	begin := time.Now()
	for step := range wheel {
		at := time.Duration(step) * wheelStep
		time.Sleep(time.Until(begin.Add(at)))
		for _, flow := range wheel[step] {
			if err := p.ask(int(flow)); err != nil {
				t.Errorf("%s: %v", p.Name, err)
				return
			}
			// The next time counts from now, not from the scheduled time: on a slow machine, pauses
			// are longer.
			spread := time.Duration((rand.Float64()*2 - 1) * float64(p.Spread))
			put(flow, max(at+wheelStep, time.Since(begin)+p.Pause+spread))
		}
		wheel[step] = nil
	}
}

func (p *Pauses) source(flow int) netip.Addr {
	if p.Sources.Addr().Is4() {
		b := p.Sources.Addr().As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(flow)+1)
		return netip.AddrFrom4(b)
	}
	b := p.Sources.Addr().As16()
	binary.BigEndian.PutUint32(b[12:], uint32(flow)+1)
	return netip.AddrFrom16(b)
}

func (p *Pauses) flowOf(a netip.Addr) int {
	b := a.AsSlice()
	from := p.Sources.Addr().AsSlice()
	return int(binary.BigEndian.Uint32(b[len(b)-4:])-binary.BigEndian.Uint32(from[len(from)-4:])) - 1
}

// ask sends the next request of a flow.
func (p *Pauses) ask(flow int) error {
	p.mu.Lock()
	f := &p.flows[flow]
	f.asked++
	f.last[1], f.last[0] = f.last[0], false
	number := f.asked
	p.mu.Unlock()
	a := p.source(flow)
	oob := pktInfo(a)
	question := binary.BigEndian.AppendUint32(nil, number)
	if _, _, err := p.conn.WriteMsgUDPAddrPort(question, oob, p.Target); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%s to %s: %w", a, p.Target, err)
	}
	return nil
}

func pktInfo(a netip.Addr) []byte {
	if a.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
}

// receive receives answers until the socket is closed.
func (p *Pauses) receive() {
	b, oob := make([]byte, 2048), make([]byte, 256)
	for {
		n, oobn, _, from, err := p.conn.ReadMsgUDPAddrPort(b, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 4 {
			continue // an ICMP error: the request is lost
		}
		to, ok := destinationOf(oob[:oobn])
		flow := p.flowOf(to)
		if !ok || flow < 0 || flow >= p.Flows {
			continue
		}
		p.note(flow, binary.BigEndian.Uint32(b[n-4:n]), netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
	}
}

// destinationOf returns the destination address of a datagram.
func destinationOf(oob []byte) (netip.Addr, bool) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}, false
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12:
			return netip.AddrFrom4([4]byte(m.Data[8:12])), true
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16:
			return netip.AddrFrom16([16]byte(m.Data[:16])).Unmap(), true
		}
	}
	return netip.Addr{}, false
}

func (p *Pauses) note(flow int, number uint32, from netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := &p.flows[flow]
	if from != p.Target {
		f.wrong++
		if len(p.wrong) < 10 {
			p.wrong = append(p.wrong, fmt.Sprintf("%s, question %d: from %s", p.source(flow), number, from))
		}
		return
	}
	f.answered++
	if back := f.asked - number; back < 2 {
		f.last[back] = true
	}
}

// Expect fails the test if an answer did not come from the target, or if a flow is broken, that is,
// its last two requests were not answered.
func (p *Pauses) Expect(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	var asked, answered, wrong uint64
	broken := 0
	for i := range p.flows {
		f := &p.flows[i]
		asked, answered, wrong = asked+uint64(f.asked), answered+uint64(f.answered), wrong+uint64(f.wrong)
		if f.asked >= 2 && !f.last[0] && !f.last[1] {
			broken++
		}
	}
	t.Logf("%s: %d flows asked %d times: %d answers, %d from a wrong address, %d lost, %d flows broken",
		p.Name, p.Flows, asked, answered, wrong, int64(asked)-int64(answered)-int64(wrong), broken)
	if wrong > 0 || broken > 0 {
		t.Errorf("%s: %d answers from a wrong address, %d flows broken; want none: %q", p.Name, wrong, broken, p.wrong)
	}
	if asked == 0 || answered < asked*99/100 {
		t.Errorf("%s: %d of %d questions answered", p.Name, answered, asked)
	}
}

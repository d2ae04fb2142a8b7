// SPDX-License-Identifier: Apache-2.0

package endure

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// eachFamily runs a test for IPv4 and IPv6.
func eachFamily(t *testing.T, test func(t *testing.T, f family)) {
	t.Helper()
	testnet.RequireRoot(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) { test(t, f) })
	}
}

// established is traffic on a thousand established connections, or fewer in a small version.
func (s *site) established() *testtraffic.Traffic {
	s.t.Helper()
	load := testtraffic.Load{Flows: 40, Packets: 400, Lasting: 4}
	if long() {
		load = testtraffic.Load{Flows: 980, Packets: 980, Lasting: 20}
	}
	return testtraffic.Start(s.t, s.clients, s.family.frontend, load)
}

// low returns the last four bytes of a prefix's address, of which the last bits are free.
func low(prefix string) (base uint32, bits int) {
	p := netip.MustParsePrefix(prefix)
	b := p.Addr().AsSlice()
	return binary.BigEndian.Uint32(b[len(b)-4:]), min(32, p.Addr().BitLen()-p.Bits())
}

// TestDaemonStopped: the daemon is stopped for ten minutes, and ten thousand clients ask each second,
// in connections of their own, many times more than the table has room for. The last minute
// is served as well as the first, and no established connection loses a packet.
func TestDaemonStopped(t *testing.T) {
	eachFamily(t, func(t *testing.T, f family) {
		// An answer that comes later than a small table lasts finds no connection: this one lasts for
		// seconds, and an answer in a hundred may be as late on a busy machine.
		connections, rate, intervals, interval, lost := 8192, 2000, 2, 3*time.Second, uint64(100)
		if long() {
			connections, rate, intervals, interval, lost = 1<<18, 10_000, 10, time.Minute, 1000
		}
		s := newSite(t, f, connections)
		tr := s.established()
		s.Stop()
		asked := uint64(0)
		for i := range intervals {
			g := s.askOnce(rate, asked)
			time.Sleep(interval)
			g.stopSending()
			sent := g.sent.Load()
			answered := func() bool { return g.answered.Load()+sent/lost >= sent }
			for end := time.Now().Add(testnet.OnThisMachine(3 * time.Second)); !answered() && time.Now().Before(end); {
				time.Sleep(20 * time.Millisecond)
			}
			g.stop()
			t.Logf("interval %d: %d questions, %d answers", i, sent, g.answered.Load())
			if !answered() {
				t.Errorf("interval %d: of %d questions, more than one in %d have no answer", i, sent, lost)
			}
			if long() && sent < uint64(rate)*uint64(interval/time.Second)*8/10 {
				t.Errorf("only %d questions in %s: this machine is too slow for the test", sent, interval)
			}
			asked += sent
		}
		s.Start()
		s.logCounters()
		tr.ExpectUnharmed(t)
	})
}

// askOnce asks rate questions per second, each in a connection of its own, the first one in the
// connection with that number, and counts the answers.
func (s *site) askOnce(rate int, first uint64) *generator {
	s.t.Helper()
	base, _ := low(s.family.forged)
	question := netip.MustParseAddrPort(s.family.question)
	g := s.generate(s.newPattern(question, 0), rate, func(n uint64) (uint32, uint16) {
		n += first
		return base | uint32(n%4096), uint16(1024 + n/4096%60000)
	})
	s.count(g, question.Port())
	return g
}

// TestPortsReused: clients open connections from the same ports again a minute later, while questions
// of others keep the connection table full. No connection fails, and as many of their packets as the
// first time take the fast path.
func TestPortsReused(t *testing.T) {
	eachFamily(t, func(t *testing.T, f family) {
		connections, count, rate, pause := 2048, 320, 2000, 2*time.Second
		if long() {
			connections, count, rate, pause = 1<<18, 100_000, 10_000, time.Minute
		}
		s := newSite(t, f, connections)
		s.clients.Run(t, "ip", "route", "add", "local", f.clients, "dev", "lo")
		for key, value := range map[string]string{"ipv4.tcp_tw_reuse": "1", "ipv4.tcp_max_tw_buckets": "400000", "ipv6.ip_nonlocal_bind": "1"} {
			s.clients.Sysctl(t, "net."+key, value)
		}
		slow := func() uint64 { return s.Counters("", "").Verdicts["slow"] }
		before := slow()
		s.openAll(count)
		first, begin := slow()-before, time.Now()
		s.askOnce(rate, 0)
		testnet.Eventually(t, 2*time.Minute, "the table is full", func() bool {
			status, err := s.Client.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			u := status.Capacity["connections "+f.name]
			return u.Used*10 > u.Size*9
		})
		time.Sleep(time.Until(begin.Add(pause)))
		before = slow()
		s.openAll(count)
		again := slow() - before
		s.logCounters()
		t.Logf("%d connections: %d packets on the slow path, the second time %d", count, first, again)
		if again > first+uint64(count/100)+20 { // neighbours are resolved again
			t.Errorf("%d connections: %d packets on the slow path, the second time %d", count, first, again)
		}
	})
}

// openAll opens count TCP connections from fixed addresses and ports, with eight exchanges each.
func (s *site) openAll(count int) {
	s.t.Helper()
	const addresses = 8
	base := netip.MustParsePrefix(s.family.clients).Addr()
	begin := time.Now()
	var all sync.WaitGroup
	var failed atomic.Int64
	for i := range addresses {
		base = base.Next()
		source := base
		all.Go(func() {
			for n := range count / addresses {
				local := netip.AddrPortFrom(source, uint16(2000+n))
				if err := exchange(s, local); err != nil && failed.Add(1) < 10 {
					s.t.Errorf("connection %d from address %d: %v", n, i, err)
				}
			}
		})
	}
	all.Wait()
	s.t.Logf("%d connections in %s, %d failed", count, time.Since(begin).Round(time.Millisecond), failed.Load())
}

// exchange opens a connection, exchanges eight words, and closes it first.
func exchange(s *site, local netip.AddrPort) error {
	c, err := s.clients.Dial("tcp", local.String(), s.family.frontend, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(c, b); err != nil { // its name
		return err
	}
	for range 8 {
		if _, err := c.Write([]byte("word")); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
	}
	return nil
}

// TestUnderAttack: hosts with forged addresses ask a Service that answers, send blind SYN and ACK
// to another, and one client opens as many connections as it can. Established connections
// of others lose nothing, and honest clients can connect.
func TestUnderAttack(t *testing.T) {
	eachFamily(t, func(t *testing.T, f family) {
		connections, divisor, lasts := 4096, 10, 3*time.Second
		if long() {
			connections, divisor, lasts = 1<<18, 1, 5*time.Minute
		}
		s := newSite(t, f, connections)
		established := s.established()
		honest := testtraffic.Start(t, s.clients, f.frontend, testtraffic.Load{Connections: 50})
		base, bits := low(f.forged)
		forged := func(uint64) (uint32, uint16) {
			return base | rand.Uint32()>>(32-bits), uint16(1024 + rand.IntN(64000))
		}
		clients, _ := low(f.clients)
		one := func(n uint64) (uint32, uint16) { return clients | 7, uint16(1024 + n%64000) }
		web, question := netip.MustParseAddrPort(f.frontend), netip.MustParseAddrPort(f.question)
		attacks := []*generator{
			s.generate(s.newPattern(question, 0), 35_000/divisor, forged),
			s.generate(s.newPattern(web, testpkt.SYN), 5_000/divisor, forged),
			s.generate(s.newPattern(web, testpkt.ACK), 5_000/divisor, forged),
			s.generate(s.newPattern(question, 0), 2_000/divisor, one),
		}
		s.count(attacks[0], question.Port())
		begin := time.Now()
		time.Sleep(lasts)
		for i, g := range attacks {
			g.stop()
			t.Logf("attack %d: %.0f packets a second", i, float64(g.sent.Load())/time.Since(begin).Seconds())
		}
		if asked, answered := attacks[0].sent.Load()+attacks[3].sent.Load(), attacks[0].answered.Load(); answered < asked/2 {
			t.Errorf("of %d questions %d were answered: this is not the load that the test is for", asked, answered)
		}
		s.logCounters()
		established.ExpectUnharmed(t)
		honest.End()
		opened, failed := honest.Opened(), honest.Harmed()
		t.Logf("honest clients: %d connected, %d did not", opened, failed)
		if uint64(failed)*99 > opened {
			t.Errorf("honest clients: %d connected, %d did not", opened, failed)
		}
	})
}

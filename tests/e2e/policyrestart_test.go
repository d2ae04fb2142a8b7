// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// restartPolicies allow a to reach b on port 4660, and nothing else.
const restartPolicies = `
kind: Tier
name: main
spec: {order: 200, always: [self, node]}
---
kind: Policy
name: db
spec:
  tier: main
  isolate: [ingress]
  appliedTo: [{entities: {matchLabels: {app: b}}}]
  ingress:
    - action: allow
      from: [{entities: {matchLabels: {app: a}}}]
      ports: [{protocol: tcp, port: 4660}, {protocol: udp, port: 4660}]
`

// forbidden sends datagrams that policies forbid: on flows that were established before, and on new ones.
type forbidden struct {
	heard atomic.Uint64 // that arrived
	sent  uint64        // read after end
	stop  chan struct{}
	wg    sync.WaitGroup
}

// startForbidden establishes flows from one namespace to a port of another, and returns a function that
// begins to send rate datagrams per second on them and on new flows.
func startForbidden(t *testing.T, from, to *testnet.NS, targets []string) (f *forbidden, begin func(rate int)) {
	t.Helper()
	f = &forbidden{stop: make(chan struct{})}
	var flows []net.Conn
	for _, target := range targets {
		l := to.ListenUDP(t, target)
		t.Cleanup(func() { l.Close() })
		f.wg.Go(func() {
			for b := make([]byte, 100); ; {
				n, client, err := l.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				f.heard.Add(1)
				_, _ = l.WriteToUDPAddrPort(b[:n], client) // the client asks again
			}
		})
		for range 8 {
			c, err := from.Dial("udp", "", target, patience)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			flows = append(flows, c)
			for range 2 { // then it is established
				testnet.Eventually(t, patience, "a flow is answered", func() bool {
					_, _ = c.Write([]byte("ask"))
					_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
					_, err := c.Read(make([]byte, 100))
					return err == nil
				})
			}
		}
	}
	t.Cleanup(f.end)
	return f, func(rate int) {
		f.wg.Go(func() {
			ticker := time.NewTicker(2 * time.Millisecond)
			defer ticker.Stop()
			began := time.Now()
			for {
				select {
				case <-f.stop:
					return
				case <-ticker.C:
				}
				due := uint64(time.Since(began).Seconds() * float64(rate))
				for n := 0; f.sent < due && n < 100; n++ {
					_, _ = flows[f.sent%uint64(len(flows))].Write([]byte("forbidden"))
					f.sent++
					if f.sent%100 == 0 { // of a new flow
						if c, err := from.Dial("udp", "", targets[f.sent/100%uint64(len(targets))], patience); err == nil {
							_, _ = c.Write([]byte("forbidden"))
							_ = c.Close()
						}
					}
				}
			}
		})
	}
}

func (f *forbidden) end() {
	select {
	case <-f.stop:
	default:
		close(f.stop)
	}
}

// policyWords are entries of ll_rules: the tables of policies in force, and the record of their content.
type policyWords struct{ inForce, recorded [2]uint32 }

func (s *endpointSite) policyWords() (words policyWords) {
	s.t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(s.PinDir, "layout-1/ll_rules"), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer m.Close()
	if err := errors.Join(m.Lookup(uint32(3), &words.inForce), m.Lookup(uint32(5), &words.recorded)); err != nil {
		s.t.Fatal(err)
	}
	return words
}

// TestPoliciesKilledUnderTraffic is R01: while the daemon is killed, stopped, or replaced by one with
// tables of other sizes, and started again, no packet is lost that policies allow, and none passes that
// they forbid. LOXILIGHT_RESTARTS is how often.
func TestPoliciesKilledUnderTraffic(t *testing.T) {
	restarts := 3
	if v := os.Getenv("LOXILIGHT_RESTARTS"); v != "" {
		var err error
		if restarts, err = strconv.Atoi(v); err != nil {
			t.Fatalf("LOXILIGHT_RESTARTS=%s: %v", v, err)
		}
	}
	tables := func(connections int) string {
		return fmt.Sprintf("tables: {connections: %d, services: 4096, backends: 65536, affinity: 1024, ranges: 1024}", connections)
	}
	s := newEndpoints(t, tables(65536))
	a, b, x := s.pods["a"], s.pods["b"], s.pods["x"]
	denied, begin := startForbidden(t, x.ns, b.ns, []string{b.addr.String() + ":4661", "[" + b.addr6.String() + "]:4661"})
	var allowed []*testtraffic.Traffic
	s.LLCLI("apply", "-f", s.File(restartPolicies), "--wait", "5s")
	b.ns.ServeTCP(t, "["+b.addr6.String()+"]:4660", "b")
	for _, target := range []string{b.addr.String() + ":4660", "[" + b.addr6.String() + "]:4660"} {
		allowed = append(allowed, testtraffic.Start(t, a.ns, target, testtraffic.Load{Flows: 16, Packets: 5000, Connections: 20, Lasting: 5}))
	}
	passed := denied.heard.Load()
	begin(10_000)
	took := map[string]time.Duration{}
	for i := range restarts {
		what := []string{"killed", "stopped", "other sizes"}[i%3]
		before := s.policyWords()
		if what == "killed" {
			testnet.Eventually(t, endpointPatience, "the policies in force are recorded", func() bool {
				before = s.policyWords()
				return before.recorded != [2]uint32{}
			})
		}
		switch what {
		case "killed":
			s.Kill()
		case "stopped":
			s.Stop()
		case "other sizes":
			s.Kill()
			s.Configure("switch: {namespace: "+s.name+"}", tables(65536<<(1-i/3%2)))
		}
		start := time.Now()
		s.Start()
		s.ready(endpointPatience, what)
		took[what] = time.Since(start)
		if now := s.policyWords(); what == "killed" && now.inForce != before.inForce {
			t.Errorf("a restart that finds its policies in force has written them: %x before, %x now", before, now)
		}
		if n := denied.heard.Load() - passed; n > 0 {
			t.Fatalf("%d packets passed that policies forbid, after %d restarts, the last one %s", n, i+1, what)
		}
	}
	denied.end()
	for _, tr := range allowed {
		tr.ExpectUnharmed(t)
	}
	if n := denied.heard.Load() - passed; n > 0 || denied.sent == 0 {
		t.Errorf("%d of %d packets passed that policies forbid", n, denied.sent)
	}
	t.Logf("%d forbidden packets; started after %v", denied.sent, took)
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// TestSYNFlood: connections in use survive a flood of new ones that is many times the size
// of the tables, and new connections are opened afterwards.
func TestSYNFlood(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s := newSite(t)
		s.Configure("tables: {connections: 512, services: 64, backends: 64, affinity: 64, ranges: 64}",
			"datapath: {sweepInterval: 200ms}")
		s.start()
		s.serve(s.backends[0], backendAddr(family, 0, 8080), "b1")
		front := netip.MustParseAddrPort(vip + ":9000")
		s.Apply(serviceYAML("web", []string{front.String() + "/tcp", front.String() + "/udp"}, []string{backendAddr(family, 0, 8080)}))
		tr := testtraffic.Start(t, s.client, front.String(), testtraffic.Load{Flows: 20, Packets: 1000, Lasting: 100})
		w := s.near.Wire(t, "eth0")
		near := map[string]string{"IPv4": "192.0.2.77", "IPv6": "2001:db8:0:2::77"}[family]
		syn := func(port uint16, seq uint32) []byte {
			return testpkt.Build(testpkt.Ethernet{Source: s.near.MAC(t, "eth0"), Destination: s.node.MAC(t, "in0")},
				ipOf(netip.MustParseAddr(near), front.Addr()), testpkt.TCP{Source: port, Destination: front.Port(), Flags: testpkt.SYN, Seq: seq})
		}
		frames := make([][]byte, 0, 60000)
		for port := range uint16(60000) {
			frames = append(frames, syn(port+1024, uint32(port)*7919))
		}
		// The backend need not answer them all.
		s.backends[0].Sysctl(t, "net.ipv4.tcp_syncookies", "0")
		for i, frame := range frames {
			w.Send(t, frame)
			if i%256 == 0 { // slow enough for the queues between the machines
				time.Sleep(5 * time.Millisecond)
			}
		}
		tr.ExpectUnharmed(t)
		if got, err := talkTCP(s.client, "", front.String(), nil); got != "b1" || err != nil {
			t.Errorf("a new connection after the flood: %q, %v", got, err)
		}
	})
}

// TestFullServiceTables: a change that exceeds the tables is rejected as a whole, with the
// reason, and existing services continue; once there is room, it is accepted.
func TestFullServiceTables(t *testing.T) {
	s := newSite(t)
	s.Configure("tables: {connections: 512, services: 64, backends: 64, affinity: 64, ranges: 64}")
	s.start()
	s.serve(s.backends[0], "10.0.1.2:8080", "b1")
	s.Apply(serviceYAML("web", []string{vip4 + ":9000/tcp"}, []string{"10.0.1.2:8080"}))
	var many []string
	for i := range 70 {
		many = append(many, fmt.Sprintf("10.0.2.%d:8080", i+1))
	}
	before := s.LLCLI("get", "services", "-o", "json")
	out, code, err := s.TryLLCLI("apply", "-f", s.File(
		serviceYAML("web", []string{vip4 + ":9000/tcp"}, []string{"10.0.2.2:8080"})+
			serviceYAML("large", []string{vip4 + ":9001/tcp"}, many)))
	if code != 1 || err == nil || !strings.Contains(err.Error(), "backends") {
		t.Errorf("70 backends in a table of 64: exit code %d, %v\n%s", code, err, out)
	}
	if after := s.LLCLI("get", "services", "-o", "json"); after != before {
		t.Errorf("a refused change changed something:\n%s\nwas\n%s", after, before)
	}
	if name, err := talkTCP(s.client, "", vip4+":9000", nil); name != "b1" || err != nil {
		t.Errorf("after a refused change: %q, %v", name, err)
	}
	s.Apply(serviceYAML("large", []string{vip4 + ":9001/tcp"}, many[:60]))
	s.LLCLI("delete", "Service", "large", "--wait", "5s")
	s.Apply(serviceYAML("other", []string{vip4 + ":9002/tcp"}, append(many[:60:60], "10.0.1.2:8080")))
}

// TestOneBadOfFiveHundred: no part of a request with one bad object is applied, and the error names
// the object and the field.
func TestOneBadOfFiveHundred(t *testing.T) {
	s := newSite(t).start()
	var all strings.Builder
	for i := range 500 {
		backend := "10.0.1.2:8080"
		if i == 499 {
			backend = "10.0.1.2"
		}
		all.WriteString(serviceYAML(fmt.Sprintf("s%d", i), []string{fmt.Sprintf("%s:%d/tcp", vip4, 10000+i)}, []string{backend}))
	}
	_, code, err := s.TryLLCLI("apply", "-f", s.File(all.String()))
	if code != 1 || err == nil || !strings.Contains(err.Error(), "Service/s499") || !strings.Contains(err.Error(), "spec.backends[0].address") {
		t.Errorf("exit code %d, %v", code, err)
	}
	if out := s.LLCLI("get", "services", "-o", "json"); strings.Contains(out, `"s0"`) {
		t.Errorf("something was applied:\n%.500s", out)
	}
}

// replaceServices replaces an owner's services with count services of one generation, which is part
// of the port of their backends.
func (s *site) replaceServices(ctx context.Context, owner string, index, count, generation int, wait time.Duration) error {
	p := api.ReplaceParams{Owner: owner, Kinds: []string{api.KindService}, Change: api.Change{Wait: api.Duration(wait)}}
	for i := range count {
		spec, err := json.Marshal(api.ServiceSpec{
			Frontends: []string{fmt.Sprintf("203.0.113.%d:%d/udp", index, 1000+i)},
			Backends:  []api.Backend{{Address: fmt.Sprintf("10.0.1.2:%d", 8000+generation)}},
		})
		if err != nil {
			return err
		}
		p.Objects = append(p.Objects, api.Object{Kind: api.KindService, Name: fmt.Sprintf("%s-%d", owner, i), Owner: owner, Spec: spec})
	}
	_, err := s.Client.Replace(ctx, p)
	return err
}

// TestReplaceIsQuick: a thousand services change within a second. The best time of three
// counts, because the machine may be busy.
func TestReplaceIsQuick(t *testing.T) {
	s := newSite(t).start()
	best := time.Hour
	for generation := range 3 {
		begin := time.Now()
		if err := s.replaceServices(t.Context(), "many", 1, 1000, generation, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(begin))
	}
	if best > time.Second {
		t.Errorf("a new generation of 1,000 services took %s", best)
	}
}

// TestKilledWhileWriting: four writers change a thousand services each, and the daemon is
// killed in the meantime. Afterwards, each writer's services are all of one generation, which is
// not older than the last acknowledged one, and packets are balanced accordingly.
func TestKilledWhileWriting(t *testing.T) {
	const writers, services, kills = 4, 1000, 5
	s := newSite(t).start()
	for generation := range 64 {
		s.backends[0].ServeUDP(t, fmt.Sprintf("10.0.1.2:%d", 8000+generation), fmt.Sprint(generation))
	}
	done := make([]int, writers) // the last acknowledged generation of each writer
	for w := range writers {
		if err := s.replaceServices(t.Context(), fmt.Sprint("w", w), w+1, services, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	for range kills {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for ctx.Err() == nil {
					next := (done[w] + 1) % 64
					if s.replaceServices(ctx, fmt.Sprint("w", w), w+1, services, next, 0) != nil {
						return
					}
					done[w] = next
				}
			})
		}
		time.Sleep(500*time.Millisecond + time.Duration(rand.IntN(300))*time.Millisecond) // a random moment is the point
		s.Kill()
		cancel()
		wg.Wait()
		s.Start()
		s.ready()
		for w := range writers {
			done[w] = s.expectGeneration(t, w, services, done[w])
		}
	}
}

// expectGeneration checks the services of a writer, both the objects and where packets go, and
// returns their generation.
func (s *site) expectGeneration(t *testing.T, w, services, done int) (generation int) {
	t.Helper()
	found := make(map[string]int)
	for o, err := range s.Client.List(t.Context(), api.ListParams{Kind: api.KindService, Owner: fmt.Sprint("w", w)}) {
		if err != nil {
			t.Fatal(err)
		}
		var spec api.ServiceSpec
		if err := json.Unmarshal(o.Spec, &spec); err != nil {
			t.Fatal(err)
		}
		found[spec.Backends[0].Address]++
	}
	if len(found) != 1 {
		t.Fatalf("writer %d: services are of %d generations: %v", w, len(found), found)
	}
	for address, n := range found {
		if _, err := fmt.Sscanf(address, "10.0.1.2:80%d", &generation); err != nil || n != services {
			t.Fatalf("writer %d: %d services to %s, want %d; %v", w, n, address, services, err)
		}
		if generation != done && generation != (done+1)%64 {
			t.Errorf("writer %d: generation %d, and %d was done", w, generation, done)
		}
		for _, i := range []int{0, 1, services / 2, services - 1} {
			target := fmt.Sprintf("203.0.113.%d:%d", w+1, 1000+i)
			testnet.Eventually(t, patience, target+" answers", func() bool {
				c, err := s.client.Dial("udp", "", target, patience)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				answer, err := s.quickUDP(c)
				name, _, _ := strings.Cut(answer, " ")
				if err != nil {
					t.Logf("%s: %v", target, err)
				} else if name != fmt.Sprint(generation) {
					t.Errorf("%s leads to generation %s, and its object is of %d", target, name, generation)
				}
				return err == nil
			})
		}
	}
	return generation
}

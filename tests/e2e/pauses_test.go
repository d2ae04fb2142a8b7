// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

var (
	pausingFlows = flag.Int("pauses.flows", 12_000, "UDP flows of TestPauses, all kinds together")
	pausesTime   = flag.Duration("pauses.time", 50*time.Second, "how long TestPauses sends")
)

// pauseNATs translate packets from addresses behind b1: NAT of each kind.
const pauseNATs = `
---
kind: NAT
name: masquerade
spec: {type: masquerade, match: {source: ["10.49.0.0/17", "2001:db8:49::/96"], out: [in0]}}
---
kind: NAT
name: endpoint-independent
spec: {type: snat, mapping: endpoint-independent, match: {source: ["10.49.128.0/18"]}, to: {addresses: ["192.0.2.101"]}}
---
kind: NAT
name: one-to-one
spec: {type: snat, oneToOne: true, match: {source: ["10.49.192.0/18"]}, to: {addresses: ["10.59.192.0/18"]}}
`

// TestPauses: flows whose pauses are about as long as an idle time get every answer from the
// address of their request, and none stays broken: UDP through services of each algorithm (idle
// time 10 s), through NAT of each kind and without (30 s), TCP through a service (10 s).
func TestPauses(t *testing.T) {
	s := newSite(t, fmt.Sprintf("tables: {connections: %d, services: 4096, backends: 65536}",
		max(1<<17, 4**pausingFlows)))
	s.anyAddress(s.client, "10.48.0.0/16", "2001:db8:48::/96")
	s.anyAddress(s.backends[0], "10.49.0.0/16", "2001:db8:49::/96")
	s.node.Route(t, "10.49.0.0/16", "10.0.1.2")
	s.node.Route(t, "2001:db8:49::/96", "2001:db8:1::2")
	s.start()
	objects := pauseNATs
	var backends []string
	for i := range s.backends {
		for _, family := range []string{"IPv4", "IPv6"} {
			s.backends[i].ServeUDP(t, backendAddr(family, i, 5353), fmt.Sprint("b", i+1))
			s.backends[i].ServeTCP(t, backendAddr(family, i, 5353), fmt.Sprint("b", i+1))
			backends = append(backends, backendAddr(family, i, 5353))
		}
	}
	s.near.ServeUDP(t, "192.0.2.77:5353", "near")
	s.near.ServeUDP(t, "[2001:db8:0:2::77]:5353", "near")
	for i, algorithm := range api.Algorithms {
		objects += serviceYAML(algorithm, []string{
			fmt.Sprintf("%s:%d/udp", vip4, 5301+i), fmt.Sprintf("%s:%d/udp", vip6, 5301+i),
			fmt.Sprintf("%s:%d/tcp", vip4, 5301+i), fmt.Sprintf("%s:%d/tcp", vip6, 5301+i),
		}, backends, "algorithm: "+algorithm, "idleTimeout: {udp: 10s, tcp: 10s}")
	}
	s.Apply(objects)

	var wg sync.WaitGroup
	all := pausingKinds()
	for i := range all {
		p := &all[i]
		ns := s.client
		if p.Target.Port() == 5353 && p.Name != "plain" {
			ns = s.backends[0]
		}
		p.Flows, p.Spread, p.Duration = *pausingFlows/len(all), time.Second, *pausesTime
		wg.Go(func() { p.Run(t, ns) })
	}
	for _, vip := range []string{vip4, vip6} {
		for i := range 40 {
			wg.Go(func() { s.pauseTCP(fmt.Sprintf("%s:%d", vip, 5301), i) })
		}
	}
	wg.Wait()
	for i := range all {
		all[i].Expect(t)
	}
}

const (
	serviceIdle = 10 * time.Second
	natIdle     = 30 * time.Second // of a request and its answers
)

// pausingKinds are the kinds of flows.
func pausingKinds() []testtraffic.Pauses {
	all := []testtraffic.Pauses{
		{Name: "plain", Sources: netip.MustParsePrefix("10.48.64.0/18"), Target: netip.MustParseAddrPort("10.0.2.2:5353"), Pause: natIdle},
	}
	for i, algorithm := range api.Algorithms {
		all = append(all,
			testtraffic.Pauses{
				Name: algorithm, Sources: netip.MustParsePrefix("10.48.0.0/17"), Pause: serviceIdle,
				Target: netip.MustParseAddrPort(fmt.Sprintf("%s:%d", vip4, 5301+i)),
			},
			testtraffic.Pauses{
				Name: algorithm + ", IPv6", Sources: netip.MustParsePrefix("2001:db8:48::/96"), Pause: serviceIdle,
				Target: netip.MustParseAddrPort(fmt.Sprintf("%s:%d", vip6, 5301+i)),
			})
	}
	for name, source := range map[string]string{
		"masquerade": "10.49.0.0/17", "masquerade, IPv6": "2001:db8:49::/96", "endpoint-independent": "10.49.128.0/18", "one to one": "10.49.192.0/18",
	} {
		target := "192.0.2.77:5353"
		if netip.MustParsePrefix(source).Addr().Is6() {
			target = "[2001:db8:0:2::77]:5353"
		}
		all = append(all, testtraffic.Pauses{Name: name, Sources: netip.MustParsePrefix(source), Target: netip.MustParseAddrPort(target), Pause: natIdle})
	}
	return all
}

// anyAddress makes all addresses of prefixes local to a machine.
func (s *site) anyAddress(ns *testnet.NS, prefixes ...string) {
	s.t.Helper()
	ns.Sysctl(s.t, "net.ipv6.ip_nonlocal_bind", "1")
	for _, prefix := range prefixes {
		ns.Run(s.t, "ip", "route", "add", "local", prefix, "dev", "lo")
	}
}

// pauseTCP runs one TCP connection, which sends requests and pauses for about its idle time.
func (s *site) pauseTCP(target string, number int) {
	c, err := s.client.Dial("tcp", "", target, testtraffic.Patience)
	if err != nil {
		s.t.Errorf("TCP to %s: %v", target, err)
		return
	}
	defer c.Close()
	name := make([]byte, 3)
	_, err = io.ReadFull(c, name)
	question := []byte("question")
	for end := time.Now().Add(*pausesTime); err == nil && time.Now().Before(end); {
		if err = c.SetDeadline(time.Now().Add(testtraffic.Patience)); err != nil {
			break
		}
		_, err = c.Write(question)
		answer := make([]byte, len(question))
		if _, e := io.ReadFull(c, answer); e != nil || string(answer) != string(question) {
			err = errors.Join(err, e, fmt.Errorf("answer %q", answer))
		}
		time.Sleep(serviceIdle + time.Duration(number%10-3)*250*time.Millisecond)
	}
	if err != nil {
		s.t.Errorf("TCP to %s, connection %d with %s: %v", target, number, name, err)
	}
}

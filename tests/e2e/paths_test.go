// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

const patience = testtraffic.Patience

var talkTCP, talkUDP, exchangeUDP = testtraffic.TalkTCP, testtraffic.TalkUDP, testtraffic.ExchangeUDP

// serve answers TCP and UDP at addr with the name of the server.
func (s *site) serve(ns *testnet.NS, addr, name string) (tcp, udp *testnet.Server) {
	s.t.Helper()
	return ns.ServeTCP(s.t, addr, name), ns.ServeUDP(s.t, addr, name)
}

var talk = map[string]func(ns *testnet.NS, local, target string, data []byte) (string, error){"tcp": talkTCP, "udp": talkUDP}

// TestPaths: clients and backends are elsewhere, on the client's side of a one-armed node, on the
// node, or the same machine.
func TestPaths(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s := newSite(t).start()
		own := map[string]map[string]string{
			"IPv4": {"client": "192.0.2.17", "near": "192.0.2.77", "node": "192.0.2.1"},
			"IPv6": {"client": "2001:db8:0:2::17", "near": "2001:db8:0:2::77", "node": "2001:db8:0:2::1"},
		}[family]
		far := backendAddr(family, 0, 8080)
		near := net.JoinHostPort(own["near"], "8080")
		local := net.JoinHostPort(own["node"], "8080")
		machines := map[string]*testnet.NS{"client": s.client, "near": s.near, "node": s.node, "far": s.backends[0]}
		for name, addr := range map[string]string{"far": far, "near": near, "node": local} {
			s.serve(machines[name], addr, name)
		}
		farAddr := netip.MustParseAddrPort(far).Addr().String()
		onNode := nodeAddr(family, 0).String()
		for i, tt := range []struct {
			from, to string
			source   string // as the backend sees it
		}{
			{"client", "far", own["client"]},
			{"client", "near", own["node"]},
			{"client", "node", own["client"]},
			{"node", "far", onNode},
			{"node", "near", own["node"]},
			{"node", "node", vip},
			{"far", "near", farAddr},
			{"far", "far", onNode},
			{"far", "node", farAddr},
			{"near", "near", own["node"]},
		} {
			port := 9000 + i
			backend := map[string]string{"far": far, "near": near, "node": local}[tt.to]
			front := fmt.Sprintf("%s:%d", vip, port)
			name := fmt.Sprintf("%s-%s", tt.from, tt.to)
			s.Apply(serviceYAML(name, []string{front + "/tcp", front + "/udp"}, []string{backend}))
			for protocol, talk := range talk {
				t.Run(name+"/"+protocol, func(t *testing.T) {
					for _, size := range []int{0, 1, 1000, 60000} {
						if size > 1400 && protocol == "udp" {
							continue
						}
						got, err := talk(machines[tt.from], "", front, bytes.Repeat([]byte("x"), size))
						if err != nil || got != tt.to {
							t.Fatalf("%d bytes: %q answered, %v; want %q", size, got, err, tt.to)
						}
					}
					s.expectConnection(t, api.ConnectionFilter{Service: name, Protocol: protocol}, tt.source, backend)
				})
			}
		}
		for reason, n := range s.Counters("", "").Drops {
			if n != 0 {
				t.Errorf("%d packets were dropped: %s", n, reason)
			}
		}
	})
}

// expectConnection looks for a tracked connection to backend which there has the given source
// address.
func (s *site) expectConnection(t *testing.T, filter api.ConnectionFilter, source, backend string) {
	t.Helper()
	for _, c := range s.Connections(filter) {
		to, err := netip.ParseAddrPort(c.Reply.Destination)
		if err == nil && to.Addr().String() == strings.Trim(source, "[]") && c.Backend == backend && c.Reply.Source == backend {
			return
		}
	}
	t.Errorf("no connection from %s to %s; there are %+v", source, backend, s.Connections(filter))
}

// TestRefused: a service without a backend refuses connections at once.
func TestRefused(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s := newSite(t).start()
		s.serve(s.backends[0], backendAddr(family, 0, 8080), "late")
		front := vip + ":9000"
		fronts := []string{front + "/tcp", front + "/udp"}
		s.Apply(serviceYAML("empty", fronts, nil))
		for name, ns := range map[string]*testnet.NS{"client": s.client, "node": s.node} {
			for protocol, talk := range talk {
				begin := time.Now()
				_, err := talk(ns, "", front, []byte("x"))
				if !errors.Is(err, syscall.ECONNREFUSED) || time.Since(begin) > testnet.OnThisMachine(time.Second) {
					t.Errorf("%s from %s: %v after %s, want it refused at once", protocol, name, err, time.Since(begin))
				}
			}
		}
		if n := s.Counters(api.KindService, "empty").Drops["no_backend"]; n < 4 {
			t.Errorf("no_backend counts %d, want at least 4", n)
		}
		s.Apply(serviceYAML("empty", fronts, []string{backendAddr(family, 0, 8080)}))
		for protocol, talk := range talk {
			if got, err := talk(s.client, "", front, []byte("x")); got != "late" || err != nil {
				t.Errorf("%s with a backend: %q, %v", protocol, got, err)
			}
		}
	})
}

// TestPortUnreachable: a backend's ICMP error reaches the client as the frontend's.
func TestPortUnreachable(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s := newSite(t).start()
		for i, source := range []string{"keep", "snat"} {
			front := fmt.Sprintf("%s:%d", vip, 9000+i)
			s.Apply(serviceYAML(source, []string{front + "/udp"}, []string{backendAddr(family, 0, 8080)}, "source: "+source))
			for name, ns := range map[string]*testnet.NS{"client": s.client, "node": s.node} {
				if _, err := talkUDP(ns, "", front, []byte("x")); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("%s, from %s: %v, want refused", source, name, err)
				}
			}
		}
	})
}

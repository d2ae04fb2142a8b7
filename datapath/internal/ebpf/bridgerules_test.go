// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
)

// leavingBy returns a rule for packets to a UDP or TCP port that leave through a device.
func leavingBy(device string, port uint16, action datapath.FirewallAction) datapath.FirewallRule {
	return datapath.FirewallRule{Hooks: datapath.HookForward, Action: action, Match: datapath.Match{Out: []string{device},
		Protocols: []datapath.Protocol{datapath.TCP, datapath.UDP}, Ports: []datapath.PortRange{{First: port, Last: port}}}}
}

// put replaces the rules.
func (b *bridged) put(rules ...datapath.FirewallRule) {
	b.t.Helper()
	set := datapath.FirewallSet{Rules: make(map[datapath.RuleName]datapath.FirewallRule)}
	for i, r := range rules {
		set.Rules[datapath.RuleName([]byte{'a' + byte(i)})] = r
	}
	b.putRules(set)
}

// reaches reports whether a TCP connection from a host is established within wait.
func (b *bridged) reaches(station int, addr string, wait time.Duration) bool {
	b.t.Helper()
	c, err := b.stations[station].Dial("tcp", "", addr, wait)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// wantNothing sends words, none of which may be answered.
func (b *bridged) wantNothing(what string, c *conversation) {
	b.t.Helper()
	for range 3 {
		_, err := c.Write([]byte("unheard"))
		b.ok(err)
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // the read reports an error
		var got [64]byte
		if n, err := c.Read(got[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
			b.t.Errorf("%s: %q, %v", what, got[:n], err)
		}
	}
}

// TestRulesOfBridgePorts: a rule whose output device is a bridge port applies to bridged frames of
// new and existing connections, and to frames of no connection.
func TestRulesOfBridgePorts(t *testing.T) {
	b := newBridged(t, false)
	b.bridgesAlone()
	for _, f := range []struct{ first, second string }{{"10.9.0.1", "10.9.0.2"}, {"fd09::1", "fd09::2"}} {
		at := func(addr, port string) string { return net.JoinHostPort(addr, port) }
		b.put()
		b.stations[1].ServeTCP(t, at(f.second, "7000"), "server")
		b.stations[1].ServeTCP(t, at(f.second, "7001"), "server")
		b.stations[0].ServeTCP(t, at(f.first, "7001"), "server")
		c := b.talk(0, at(f.second, "7000"), at(f.first, "40000"))
		b.wantShortCut("without rules", c)

		b.put(leavingBy("p1", 7001, datapath.ActionDeny))
		if b.reaches(0, at(f.second, "7001"), 500*time.Millisecond) {
			t.Errorf("%s: a connection came about that a rule denies by the port that it leaves by", f.second)
		}
		if !b.reaches(1, at(f.first, "7001"), 5*time.Second) {
			t.Errorf("%s: no connection the other way", f.first)
		}
		b.wantShortCut("with rules about others", c)
		b.put(leavingBy("p1", 7001, datapath.ActionReject))
		if b.reaches(0, at(f.second, "7001"), 500*time.Millisecond) {
			t.Errorf("%s: a connection came about that a rule rejects by the port that it leaves by", f.second)
		}
		b.put(leavingBy("p1", 7000, datapath.ActionDeny), leavingBy("p0", 40000, datapath.ActionAllow))
		b.wantNothing("denied since it runs", c)
		b.put(leavingBy("p0", 7000, datapath.ActionDeny))
		_ = c.SetDeadline(time.Now().Add(10 * time.Second)) // the next read reports an error
		var got [64]byte
		if _, err := c.Read(got[:]); err != nil {
			t.Errorf("%s: allowed again, but: %v", f.second, err)
		}
		c = b.talk(0, at(f.second, "7000"), at(f.first, "40001"))
		b.wantShortCut("a rule about the other port", c)
	}
}

// TestRulesOfBridgePortsForGroups: broadcast packets are evaluated at each output port.
func TestRulesOfBridgePortsForGroups(t *testing.T) {
	b := newBridged(t, false)
	b.bridgesAlone()
	listen := func(station int) (c *net.UDPConn) {
		b.stations[station].Do(t, func() (err error) {
			c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4zero, Port: 7002})
			return err
		})
		t.Cleanup(func() { c.Close() })
		return c
	}
	heard := listen(1)
	say := func(what string) {
		b.stations[0].Do(t, func() error {
			c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.9.0.255:7002")))
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte(what))
			return err
		})
	}
	var got [64]byte
	hear := func(wait time.Duration) string {
		_ = heard.SetReadDeadline(time.Now().Add(wait)) // the next read reports an error
		n, _, _ := heard.ReadFromUDP(got[:])
		return string(got[:n])
	}
	b.put(leavingBy("p2", 7002, datapath.ActionDeny))
	say("first")
	if s := hear(3 * time.Second); s != "first" {
		t.Errorf("heard %q", s)
	}
	b.put(leavingBy("p1", 7002, datapath.ActionDeny))
	before, err := b.d.Telemetry().NodeCounters(context.Background())
	b.ok(err)
	say("second")
	testnet.Eventually(t, 3*time.Second, "it is dropped and counted", func() bool {
		now, err := b.d.Telemetry().NodeCounters(context.Background())
		b.ok(err)
		return now.Drops["firewall"] == before.Drops["firewall"]+1
	})
	if s := hear(200 * time.Millisecond); s != "" {
		t.Errorf("heard %q, which a rule denies", s)
	}
}

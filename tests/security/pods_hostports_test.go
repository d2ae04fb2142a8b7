// SPDX-License-Identifier: Apache-2.0

package security

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestS2ForeignHostIP: a pod requests host ports at addresses that are not the node's. ADD fails
// with code 7 and names the port mapping, packets to the address are not redirected, and the
// address is not announced on the LAN.
func TestS2ForeignHostIP(t *testing.T) {
	s := newPodsSite(t)
	victim := s.addPod(nil)
	lan := s.lan.Wire(t, "eth0")
	for _, ip := range []string{
		"203.0.113.53", "169.254.169.254", "192.0.2.90", "192.0.2.77", "10.73.3.99", "192.0.2.255", "224.0.0.251",
		"2001:db8:2::90", "2001:db8:ffff::53", "fe80::1", "ff02::fb", "::ffff:203.0.113.53",
	} {
		t.Run(ip, func(t *testing.T) {
			evil := s.newPod(hostPort(ip, 5300, "udp"))
			err := s.tryAdd(evil)
			if cniCode(err) != 7 || !strings.Contains(err.Error(), ip+":5300") && !strings.Contains(err.Error(), "["+ip+"]:5300") &&
				!strings.Contains(err.Error(), strings.TrimPrefix(ip, "::ffff:")+":5300") {
				t.Errorf("ADD: code %d, %v; want code 7 and the port mapping", cniCode(err), err)
			}
			if err == nil {
				evil.serve(t, 5300, "EVIL")
				for name, ns := range map[string]*testnet.NS{"a pod": victim.NS, "the node": s.node, "the LAN": s.lan} {
					if got := answers(ns, ip, 5300); len(got) > 0 {
						t.Errorf("%s asks %s: %q answers", name, ip, got)
					}
				}
			}
			s.del(evil)
		})
	}
	for _, a := range []string{"192.0.2.90", "2001:db8:2::90"} {
		wantsNoAnnouncement(t, lan, a)
	}
}

// wantsNoAnnouncement fails the test if a device saw an ARP packet with the sender address addr, or
// a neighbour advertisement with the target address addr.
func wantsNoAnnouncement(t *testing.T, w *testnet.Wire, addr string) {
	t.Helper()
	a := netip.MustParseAddr(addr).AsSlice()
	for _, f := range w.Frames() {
		arp := len(f) >= 32 && f[12] == 8 && f[13] == 6 && bytes.Equal(f[28:32], a)
		advertisement := len(f) >= 78 && f[12] == 0x86 && f[20] == 58 && f[54] == 136 && bytes.Equal(f[62:78], a)
		if arp || advertisement {
			t.Errorf("%s was announced:\n%s", addr, testpkt.Parse(f))
		}
	}
}

// TestS2AddressLeaves: a host port at one address of the node is removed with that address and is
// restored with it, while the daemon runs and across a restart. Until then the NAT object reports
// that it is not in force, and the LAN host that takes over the address gets its own packets.
func TestS2AddressLeaves(t *testing.T) {
	for _, of := range []struct{ name, ip, length, family string }{
		{"IPv4", "192.0.2.50", "/24", "4"}, {"IPv6", "2001:db8:2::50", "/64", "6"},
	} {
		t.Run(of.name, func(t *testing.T) {
			s := newPodsSite(t)
			other := s.addPod(nil)
			s.node.Addr(t, "eth0", of.ip+of.length)
			p := s.addPod(hostPort(of.ip, 8080, "tcp"))
			p.serve(t, 8080, "pod")
			wants := func(what string, names ...string) {
				t.Helper()
				testnet.Eventually(t, 20*time.Second, what, func() bool { return slices.Equal(answers(s.lan, of.ip, 8080), names) })
			}
			state := func() api.Status {
				for _, st := range s.nats() {
					return st
				}
				return api.Status{}
			}
			wants("the pod answers", "pod")

			s.node.Run(t, "ip", "addr", "del", of.ip+of.length, "dev", "eth0")
			lan := s.lan.Wire(t, "eth0")
			testnet.Eventually(t, 10*time.Second, "the NAT says that its address is gone", func() bool {
				st := state()
				return st.State != api.StateReady && strings.Contains(st.Message, of.ip)
			})
			wantsNoAnnouncement(t, lan, of.ip)
			s.lan.Addr(t, "eth0", of.ip+of.length)
			s.lan.ServeTCP(t, ":8080", "lan")
			testnet.Eventually(t, 20*time.Second, "another pod reaches the new holder of the address", func() bool {
				return slices.Equal(answers(other.NS, of.ip, 8080), []string{"lan"})
			})
			s.Stop()
			s.Start()
			testnet.Eventually(t, 10*time.Second, "after a restart the NAT says that its address is gone", func() bool {
				st := state()
				return st.State != api.StateReady && strings.Contains(st.Message, of.ip)
			})
			if got := answers(other.NS, of.ip, 8080); !slices.Equal(got, []string{"lan"}) {
				t.Errorf("after a restart %q answers, want lan", got)
			}

			s.lan.Run(t, "ip", "addr", "del", of.ip+of.length, "dev", "eth0")
			s.node.Addr(t, "eth0", of.ip+of.length)
			testnet.Eventually(t, 10*time.Second, "the NAT is in force again", func() bool { return state().State == api.StateReady })
			wants("the pod answers again", "pod")
		})
	}
}

// TestS15PortsOfTheNode: a pod requests host ports on which the node listens, and reserved ones.
// ADD fails with the reason.
func TestS15PortsOfTheNode(t *testing.T) {
	s := newPodsSite(t)
	s.node.ServeTCP(t, ":7001", "node")
	s.node.ServeUDP(t, ":7002", "node")
	s.node.ServeTCP(t, "192.0.2.1:7003", "node")
	s.node.ServeTCP(t, "[2001:db8:2::1]:7004", "node")
	s.node.ServeTCP(t, "127.0.0.1:7005", "node")
	s.node.ServeTCP(t, "0.0.0.0:7006", "node")
	for _, tt := range []struct {
		ip       string
		port     int
		protocol string
		refused  bool
	}{
		{"", 22, "tcp", true}, {"", 2379, "tcp", true}, {"", 2380, "tcp", true}, {"", 6443, "tcp", true}, {"", 10248, "tcp", true},
		{"", 10250, "tcp", true}, {"192.0.2.1", 10250, "tcp", true}, {"2001:db8:2::1", 10259, "tcp", true}, {"", 4789, "udp", true},
		{"", 6081, "udp", true}, {"127.0.0.1", 10248, "tcp", true},
		{"", 7001, "tcp", true}, {"192.0.2.1", 7001, "tcp", true}, {"2001:db8:2::1", 7001, "tcp", true}, {"127.0.0.1", 7001, "tcp", true},
		{"", 7002, "udp", true}, {"", 7002, "tcp", false}, {"", 7001, "udp", false},
		{"", 7003, "tcp", true}, {"0.0.0.0", 7003, "tcp", true}, {"::", 7003, "tcp", false}, {"127.0.0.1", 7003, "tcp", false},
		{"::", 7004, "tcp", true}, {"192.0.2.1", 7004, "tcp", false},
		{"", 7005, "tcp", false}, {"127.0.0.1", 7005, "tcp", true},
		{"192.0.2.1", 7006, "tcp", true}, {"2001:db8:2::1", 7006, "tcp", true}, {"", 7006, "udp", false},
		{"", 10260, "tcp", false},
	} {
		p := s.newPod(hostPort(tt.ip, tt.port, tt.protocol))
		err := s.tryAdd(p)
		if refused := err != nil; refused != tt.refused || refused && !strings.Contains(err.Error(), "hostPort") {
			t.Errorf("host port %s:%d/%s: %v, want refused %t", tt.ip, tt.port, tt.protocol, err, tt.refused)
		}
		s.del(p)
	}
	if got := answers(s.lan, "192.0.2.1", 7003); !slices.Equal(got, []string{"node"}) {
		t.Errorf("the node's own port answers as %q", got)
	}
}

// TestS15Configured: the reserved ports are the configured ones, and none if the list is empty.
func TestS15Configured(t *testing.T) {
	s := newPodsSite(t, "cni: {reservedHostPorts: [7100-7101]}")
	for port, refused := range map[int]bool{22: false, 7100: true, 7101: true, 7102: false} {
		p := s.newPod(hostPort("", port, "tcp"))
		if err := s.tryAdd(p); (err != nil) != refused {
			t.Errorf("host port %d: %v", port, err)
		}
		s.del(p)
	}
}

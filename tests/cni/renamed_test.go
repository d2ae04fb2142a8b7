// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// uplinkUser is a pod that opens connections to a machine outside, one after the other.
type uplinkUser struct {
	*site
	tries   atomic.Int64
	targets []string
	servers []*testnet.Server
}

// open opens connections until stop is closed.
func (u *uplinkUser) open(p *pod, target string, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		if c, err := p.Dial("tcp", "", target, 200*time.Millisecond); err == nil {
			c.Close()
		}
		u.tries.Add(1)
	}
}

// try waits for some connections to be tried: untranslated packets show up after a few tries.
func (u *uplinkUser) try() {
	u.t.Helper()
	before := u.tries.Load()
	testnet.Eventually(u.t, 20*time.Second, "connections are tried", func() bool { return u.tries.Load() > before+20 })
}

// more waits for new connections to some of the targets, and checks all connections so far.
func (u *uplinkUser) more(when string, which ...int) {
	u.t.Helper()
	for _, i := range which {
		seen := u.servers[i].Seen.Load()
		testnet.Eventually(u.t, 20*time.Second, when+": new connections to "+u.targets[i], func() bool { return u.servers[i].Seen.Load() > seen+5 })
	}
	for i, want := range []string{"192.0.2.1", "2001:db8:2::1"} {
		for _, a := range u.servers[i].Clients() {
			if a.Unmap() != netip.MustParseAddr(want) {
				u.t.Errorf("%s: a connection came from %s, untranslated; want %s", when, a, want)
			}
		}
	}
}

func (u *uplinkUser) rename(from, to string) {
	u.t.Helper()
	u.node.Run(u.t, "ip", "link", "set", from, "down")
	u.node.Run(u.t, "ip", "link", "set", from, "name", to, "up")
	u.try()
	u.node.Addr(u.t, to, "2001:db8:2::1/64") // removed when the link went down
}

// TestUplinkOfPodsChanges renames the uplink and removes an address from it while a pod opens new
// connections. None of its packets may reach the machine outside untranslated, however the
// Interface names the uplink.
func TestUplinkOfPodsChanges(t *testing.T) {
	s := newSite(t)
	p := s.addPod(s.list("1.1.0", nil), "c1")
	for name, by := range map[string]string{"device": "device: eth0", "address": "address: 192.0.2.1", "IPv6 address": `address: "2001:db8:2::1"`} {
		t.Run("by "+name, func(t *testing.T) {
			u := &uplinkUser{
				site:    &site{Daemon: s.For(t), t: t, node: s.node, outside: s.outside, name: s.name, cni: s.cni},
				targets: []string{"192.0.2.77:9000", "[2001:db8:2::77]:9000"},
			}
			u.Apply("kind: Interface\nname: eth0\nspec: {" + by + "}\n")
			var opened sync.WaitGroup
			stop := make(chan struct{})
			t.Cleanup(func() { close(stop); opened.Wait() })
			for _, target := range u.targets {
				u.servers = append(u.servers, s.outside.ServeTCP(t, target, "out"))
				opened.Go(func() { u.open(p, target, stop) })
			}
			u.more("at first", 0, 1)
			u.rename("eth0", "wan7")
			u.more("renamed", 0, 1)
			u.rename("wan7", "eth0")
			u.more("with its name again", 0, 1)
			u.node.Run(t, "ip", "address", "del", "192.0.2.1/24", "dev", "eth0")
			u.try()
			u.more("without its IPv4 address")
			u.node.Addr(t, "eth0", "192.0.2.1/24")
			u.more("with its IPv4 address again", 0, 1)
		})
	}
}

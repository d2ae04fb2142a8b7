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

// TestUplinkOfPodsChanges renames the uplink and removes an address from it while a pod opens new
// connections. None of its packets may reach the machine outside untranslated, however the
// Interface names the uplink.
func TestUplinkOfPodsChanges(t *testing.T) {
	for name, by := range map[string]string{"device": "device: eth0", "address": "address: 192.0.2.1", "IPv6 address": `address: "2001:db8:2::1"`} {
		t.Run("by "+name, func(t *testing.T) {
			s := newSite(t)
			s.Apply("kind: Interface\nname: eth0\nspec: {" + by + "}\n")
			p := s.addPod(s.list("1.1.0", nil), "c1")
			targets := []string{"192.0.2.77:9000", "[2001:db8:2::77]:9000"}
			servers := []*testnet.Server{s.outside.ServeTCP(t, targets[0], "out"), s.outside.ServeTCP(t, targets[1], "out")}
			var tries atomic.Int64
			// Untranslated packets show up after a few tries.
			try := func() {
				t.Helper()
				before := tries.Load()
				testnet.Eventually(t, 20*time.Second, "connections are tried", func() bool { return tries.Load() > before+20 })
			}
			stop := make(chan struct{})
			var opened sync.WaitGroup
			for _, target := range targets {
				opened.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(5 * time.Millisecond):
						}
						if c, err := p.Dial("tcp", "", target, 200*time.Millisecond); err == nil {
							c.Close()
						}
						tries.Add(1)
					}
				})
			}
			more := func(when string, which ...int) {
				t.Helper()
				for _, i := range which {
					seen := servers[i].Seen.Load()
					testnet.Eventually(t, 20*time.Second, when+": new connections to "+targets[i], func() bool { return servers[i].Seen.Load() > seen+5 })
				}
				for i, want := range []string{"192.0.2.1", "2001:db8:2::1"} {
					for _, a := range servers[i].Clients() {
						if a.Unmap() != netip.MustParseAddr(want) {
							t.Errorf("%s: a connection came from %s, untranslated; want %s", when, a, want)
						}
					}
				}
			}
			rename := func(from, to string) {
				s.node.Run(t, "ip", "link", "set", from, "down")
				s.node.Run(t, "ip", "link", "set", from, "name", to, "up")
				try()
				s.node.Addr(t, to, "2001:db8:2::1/64") // removed when the link went down
			}
			more("at first", 0, 1)
			rename("eth0", "wan7")
			more("renamed", 0, 1)
			rename("wan7", "eth0")
			more("with its name again", 0, 1)
			s.node.Run(t, "ip", "address", "del", "192.0.2.1/24", "dev", "eth0")
			try()
			more("without its IPv4 address")
			s.node.Addr(t, "eth0", "192.0.2.1/24")
			more("with its IPv4 address again", 0, 1)
			close(stop)
			opened.Wait()
		})
	}
}

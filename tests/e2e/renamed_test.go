// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestRenamedUplink renames the uplink, whose name a NAT uses for masquerading, while new
// connections are opened. No packet may reach the other machine untranslated: the rule holds for
// the device as long as our programs are attached to it, even after a restart of the daemon.
func TestRenamedUplink(t *testing.T) {
	s := newSite(t).start()
	s.Apply(`
kind: NAT
name: out
spec: {type: masquerade, match: {source: [10.0.0.0/16, "2001:db8:1::/64"], out: [in0]}}
`)
	servers := []*testnet.Server{s.client.ServeTCP(t, "192.0.2.17:9000", "out"), s.client.ServeTCP(t, "[2001:db8:0:2::17]:9000", "out")}
	stop := make(chan struct{})
	var opened sync.WaitGroup
	opened.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			for _, target := range []string{"192.0.2.17:9000", "[2001:db8:0:2::17]:9000"} {
				if c, err := s.backends[0].Dial("tcp", "", target, 50*time.Millisecond); err == nil {
					c.Close()
				}
			}
		}
	})
	more := func(when string) {
		t.Helper()
		for i, server := range servers {
			seen := server.Seen.Load()
			testnet.Eventually(t, patience, when+": new connections", func() bool { return server.Seen.Load() > seen+5 })
			for _, a := range server.Clients() {
				if want := []string{"192.0.2.1", "2001:db8:0:2::1"}[i]; a.Unmap() != netip.MustParseAddr(want) {
					t.Errorf("%s: a connection came from %s, untranslated; want %s", when, a, want)
				}
			}
		}
	}
	// Connections of each stage continue in all later ones.
	var lasting []net.Conn
	talk := func(when string) {
		t.Helper()
		c, err := s.backends[0].Dial("tcp", "", "192.0.2.17:9000", patience)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		t.Cleanup(func() { _ = c.Close() }) // has nothing unsent
		lasting = append(lasting, c)
		for i, c := range lasting {
			_ = c.SetDeadline(time.Now().Add(patience)) // a later call fails otherwise
			_, err := c.Write([]byte("x"))
			if err == nil {
				_, err = c.Read(make([]byte, 100))
			}
			if err != nil {
				t.Errorf("%s: connection %d: %v", when, i, err)
			}
		}
	}
	more("at first")
	talk("at first")
	s.rename("in0", "wan7")
	s.node.Addr(t, "wan7", "2001:db8:0:2::1/64") // removed when the link went down
	more("renamed")
	talk("renamed")
	s.Kill()
	s.Start()
	more("renamed, after a restart")
	talk("renamed, after a restart")
	s.rename("wan7", "in0")
	s.node.Addr(t, "in0", "2001:db8:0:2::1/64")
	more("with its name again")
	talk("with its name again")
	s.ready()
	s.Kill()
	s.rename("in0", "wan7")
	s.node.Addr(t, "wan7", "2001:db8:0:2::1/64")
	more("renamed without a daemon")
	talk("renamed without a daemon")
	s.Start()
	more("renamed before a start")
	talk("renamed before a start")
	s.rename("wan7", "in0")
	s.node.Addr(t, "in0", "2001:db8:0:2::1/64")
	more("with its name again, at last")
	talk("with its name again, at last")
	close(stop)
	opened.Wait()
	s.ready()
}

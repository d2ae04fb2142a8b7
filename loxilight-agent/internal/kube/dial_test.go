// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net"
	"testing"
)

// listen returns the address of a server that accepts connections.
func listen(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			_ = conn.Close() // the connection is not used
		}
	}()
	return l.Addr().String()
}

// dialed returns how often each address was connected to, by agents that know all of them.
func dialed(t *testing.T, agents int, configured bool, address string, servers ...string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for range agents {
		d := newDialer(configured)
		known := func() []string { return append([]string(nil), servers...) }
		d.servers.Store(&known)
		conn, err := d.dial(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		counts[conn.RemoteAddr().String()]++
		_ = conn.Close() // nothing was sent
	}
	return counts
}

// TestAgentsShareTheAPIServers: without a configured address, agents begin with different servers,
// and the address of the Service is last. A configured address is first, and agents that cannot
// reach it share the others.
func TestAgentsShareTheAPIServers(t *testing.T) {
	service, servers := listen(t), []string{listen(t), listen(t), listen(t)}
	const agents = 120
	counts := dialed(t, agents, false, service, servers...)
	for _, s := range servers {
		if counts[s] < agents/12 { // by chance: less than once in a million
			t.Errorf("%s has %d of %d agents: %v", s, counts[s], agents, counts)
		}
	}
	if counts[service] > 0 {
		t.Errorf("%d agents went by way of the Service", counts[service])
	}
	if counts := dialed(t, 10, true, service, servers...); counts[service] != 10 {
		t.Errorf("the configured server is not first: %v", counts)
	}
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	counts = dialed(t, agents, true, gone.Addr().String(), servers...)
	for _, s := range servers {
		if counts[s] < agents/12 {
			t.Errorf("%s has %d of %d agents whose API server is gone: %v", s, counts[s], agents, counts)
		}
	}
	if counts := dialed(t, 10, false, service, gone.Addr().String(), servers[1]); counts[servers[1]] != 10 {
		t.Errorf("a server that is gone delays the others: %v", counts)
	}
}

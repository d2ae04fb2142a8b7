// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// manyPeers is the number of nodes in a cluster of a common size.
const manyPeers = 500

// peersYAML returns Peers, each with prefixes of its own in both families.
func peersYAML(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "---\nkind: Peer\nname: many-%d\nspec: {underlay: [198.18.%d.%d], prefixes: [10.%d.%d.0/24, \"fd75:%x::/64\"], tunnel: mesh}\n",
			i, i/250, i%250+1, 80+i/250, i%250, i+1)
	}
	return b.String()
}

// resident returns the resident memory of a process in MiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}

// TestManyPeers: the Peers of a large cluster are in force in seconds, a changed Peer in a
// fraction of a second, and they take little memory.
func TestManyPeers(t *testing.T) {
	testnet.RequireRoot(t)
	for _, kind := range []meshKind{{tunnel: "vxlan", split: true}, {tunnel: "geneve"}} {
		t.Run(kind.String(), func(t *testing.T) { testManyPeers(t, kind) })
	}
}

func testManyPeers(t *testing.T, kind meshKind) {
	m := newMesh(t, 2, kind)
	one := m.nodes[0]
	one.ns.Route(t, "198.18.0.0/15", "192.0.2.99")
	m.nodes[1].ns.Addr(t, "eth0", "192.0.2.99/24") // a gateway that answers
	before := resident(t, one.Process().PID())
	took := func(what string, most time.Duration, args ...string) {
		t.Helper()
		most = max(most, testnet.OnThisMachine(most))
		begin := time.Now()
		one.LLCLI(append(args, "--wait", "5m")...)
		d := time.Since(begin)
		t.Logf("%s: %s", what, d.Round(time.Millisecond))
		if most = max(most, testnet.OnThisMachine(most)); d > most {
			t.Errorf("%s took %s, at most %s is well", what, d, most)
		}
	}
	took("500 peers", 10*time.Second, "apply", "-f", one.File(peersYAML(0, manyPeers)))
	took("another address of one", 3*time.Second, "apply", "-f", one.File(strings.Replace(peersYAML(7, 8), "198.18.0.8", "198.18.9.8", 1)))
	took("one more", 3*time.Second, "apply", "-f", one.File(peersYAML(manyPeers, manyPeers+1)))
	if grew := resident(t, one.Process().PID()) - before; grew > 40 {
		t.Errorf("they take %d MiB", grew)
	} else {
		t.Logf("they take %d MiB", grew)
	}
	m.allPairs()
	begin := time.Now()
	one.Stop()
	one.Start()
	m.ready(one)
	t.Logf("a restart: %s", time.Since(begin).Round(time.Millisecond))
	ip := []string{"route", "show", "proto", "76"}
	if one.sw != "" {
		ip = append([]string{"-n", one.sw}, ip...)
	}
	if routes := strings.Count(one.ns.Run(t, "ip", ip...), "hstunnel"); routes != manyPeers+2 {
		t.Errorf("%d routes by the tunnel, want %d", routes, manyPeers+2)
	}
	m.allPairs()
}

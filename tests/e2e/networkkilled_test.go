// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

// networkOf returns the kernel's devices, addresses and routes, without volatile numbers.
func networkOf(t *testing.T, ns *testnet.NS) string {
	t.Helper()
	var lines []string
	for _, command := range []string{"ip -o link", "ip -o -4 addr", "ip -4 route", "ip -6 route show root 2001:db8::/32"} {
		words := strings.Fields(command)
		for line := range strings.Lines(ns.Run(t, words[0], words[1:]...)) {
			if strings.Contains(command, "-o") {
				_, line, _ = strings.Cut(line, ": ") // without the index
			}
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}

// carriers waits until every device in a namespace has its carrier: the kernel reports the carrier
// of a new device with a delay, which changes networkOf.
func carriers(t *testing.T, ns *testnet.NS) {
	t.Helper()
	testnet.Eventually(t, patience, "every device has its carrier", func() bool {
		have := networkOf(t, ns)
		return !slices.ContainsFunc([]string{"NO-CARRIER", "state DOWN", "linkdown"}, func(s string) bool { return strings.Contains(have, s) })
	})
}

// TestNetworkKilled kills a daemon repeatedly while it changes a bridge of its own, a bridge of
// another program and routes. The final state is the desired one, and when all objects are deleted,
// nothing of ours is left and nothing of the other program is missing.
func TestNetworkKilled(t *testing.T) {
	node := testnet.New(t, "node")
	d := testdaemon.New(t, node, programs)
	var hops []string // of the Routes; behind the port that the last objects always have
	for i := range 4 {
		hops = append(hops, fmt.Sprintf("10.91.0.%d/24", 2+i))
	}
	for i := range 4 {
		outside := testnet.New(t, "outside")
		testnet.Veth(t, testnet.Port{NS: outside, Name: "eth0", Addrs: hops}, testnet.Port{NS: node, Name: fmt.Sprint("p", i)})
		hops = nil
	}
	node.Bridge(t, "theirs", "p3")
	node.Addr(t, "theirs", "10.90.0.1/24")
	node.Run(t, "ip", "route", "add", "203.0.113.0/25", "via", "10.90.0.7")
	carriers(t, node)
	before := networkOf(t, node)

	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 1))
	objects := func(bits int) string {
		ports := func(first, count int) string {
			var all []string
			for i := range count {
				if bits>>(first+i)&1 == 1 {
					all = append(all, fmt.Sprintf("{device: p%d, isolated: %t}", first+i, bits>>8&1 == 1))
				}
			}
			return strings.Join(all, ", ")
		}
		text := fmt.Sprintf(`
kind: Bridge
name: ours
spec: {device: br0, addresses: [10.91.0.1/24, 10.92.%d.1/24], ageing: %ds, ports: [%s]}
---
kind: Bridge
name: taken
spec: {device: theirs, addresses: [10.93.%d.1/24], ports: [%s]}
`, bits&7, 60+bits&7, ports(0, 2), bits>>3&7, ports(2, 2))
		for i := range 20 {
			text += fmt.Sprintf("---\nkind: Route\nname: r%d\nspec: {prefix: 10.100.%d.0/24, metric: %d, via: 10.91.0.%d}\n", i, i, 1+(bits>>i)&1, 2+bits>>6&3)
			text += fmt.Sprintf("---\nkind: Route\nname: six%d\nspec: {prefix: \"2001:db8:%x::/48\", type: %s, metric: %d}\n", i, i, []string{"blackhole", "prohibit"}[bits>>i&1], 1+(bits>>(i+1))&1)
		}
		return text
	}
	d.Start()
	for range 12 {
		d.LLCLI("apply", "-f", d.File(objects(random.IntN(1<<22))))
		pause := time.NewTimer(time.Duration(random.IntN(25)) * time.Millisecond)
		<-pause.C // the daemon is killed at a random moment
		d.Kill()
		d.Start()
	}
	bits := random.IntN(1<<22) | 1 // br0 needs a port with carrier, or its Routes are not Ready
	d.Apply(objects(bits))
	got := networkOf(t, node)
	for _, want := range []string{fmt.Sprintf("10.92.%d.1/24", bits&7), fmt.Sprintf("10.93.%d.1/24", bits>>3&7), "10.91.0.1/24", "10.90.0.1/24"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	for what, want := range map[string]int{"inet 10.92.": 1, "inet 10.93.": 1, "10.100.": 20, "2001:db8:": 20} {
		lines := 0
		for line := range strings.Lines(got) {
			if strings.Contains(line, what) && (strings.Contains(line, "proto 76") || strings.Contains(line, "inet")) {
				lines++
			}
		}
		if lines != want {
			t.Errorf("%d of %s, want %d:\n%s", lines, what, want, got)
		}
	}
	d.LLCLI("delete", "-f", d.File(objects(bits)))
	now := ""
	t.Cleanup(func() {
		if now != before {
			t.Logf("before:\n%s\nafter:\n%s", before, now)
		}
	})
	testnet.Eventually(t, patience, "nothing of ours is left", func() bool {
		now = networkOf(t, node)
		return now == before
	})
}

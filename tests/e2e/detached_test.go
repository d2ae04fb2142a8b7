// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// detectedWithin is how long packets pass without our programs after another program detached
// them, and attachedWithin how long attaching them again takes, on an idle machine.
const (
	detectedWithin = 500 * time.Millisecond
	attachedWithin = time.Second
)

// TestDetachedLinks detaches our links of all ports under traffic. They are attached again and
// counted as repairs, and existing flows continue.
func TestDetachedLinks(t *testing.T) {
	requireAttach(t, "tcx")
	s, fronts := balanced(t, "tcx")
	traffic := testtraffic.Start(t, s.client, fronts[0], testtraffic.Load{Flows: 8, Packets: 1000, Lasting: 8})
	for range 3 {
		before := s.Repairs()
		// All links are opened before the first is detached, because the daemon then pins new ones.
		var links []link.Link
		testnet.Eventually(t, patience, "all links are pinned", func() bool {
			pins, err := filepath.Glob(filepath.Join(s.PinDir, "layout-*", "ports", "0", "*", "*gress"))
			if err != nil || len(pins) != 2*len(devices)+1 { // the loopback has one
				return false
			}
			for _, pin := range pins {
				l, err := link.LoadPinnedLink(pin, nil)
				if err != nil {
					closeAll(links)
					links = nil
					return false
				}
				links = append(links, l)
			}
			return true
		})
		for _, l := range links {
			if err := l.Detach(); err != nil {
				t.Fatal(err)
			}
		}
		closeAll(links)
		begin := time.Now()
		testnet.Eventually(t, detectedWithin+attachedWithin, "all programs are attached again", func() bool {
			counts, err := s.hooks()
			for _, n := range counts {
				if n != 1 || err != nil {
					return false
				}
			}
			return true
		})
		t.Logf("attached again after %s", time.Since(begin).Round(time.Millisecond))
		testnet.Eventually(t, patience, "repairs are counted", func() bool { return s.Repairs() >= before+uint64(len(devices)) })
		s.healthy()
	}
	lost := traffic.Lost()
	later := testtraffic.Start(t, s.client, fronts[0], testtraffic.Load{Flows: 8, Packets: 500, Connections: 20})
	testnet.Eventually(t, patience, "new connections", func() bool { return later.Opened() >= 20 })
	later.ExpectUnharmed(t)
	traffic.End()
	t.Logf("%d of %d datagrams were lost, %d connections ended", traffic.Lost(), traffic.Sent(), traffic.Harmed())
	if traffic.Lost() > lost {
		t.Errorf("%d datagrams of older flows were lost after the repair", traffic.Lost()-lost)
	}
}

func closeAll(links []link.Link) {
	for _, l := range links {
		l.Close() // it stays pinned
	}
}

// detach detaches a pinned link, as another program might.
func detach(t *testing.T, pin string) {
	t.Helper()
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Detach(); err != nil {
		t.Fatal(err)
	}
}

// TestForeignTCX attaches another program's tcx programs before and after ours, both before the
// daemon attaches and later. All of them see packets that the kernel handles, our program works,
// and the repair of its link changes none of the others.
func TestForeignTCX(t *testing.T) {
	requireAttach(t, "tcx")
	s := newSite(t)
	s.serve(s.backends[0], "10.0.1.2:8080", "b1")
	early := s.countPackets(t, "in0", link.Head())
	s.start()
	s.Apply(serviceYAML("web", []string{vip4 + ":9000/tcp"}, []string{"10.0.1.2:8080"}))
	before := s.countPackets(t, "in0", link.Head())
	after := s.countPackets(t, "in0", link.Tail())
	work := func(when string) {
		t.Helper()
		seen := []uint64{early(), before(), after()}
		if name, err := s.quick(vip4 + ":9000"); name != "b1" || err != nil {
			t.Errorf("%s: the service answers %q, %v", when, name, err)
		}
		// ARP and echo requests to the node are left to the kernel, and so to programs after ours.
		s.client.Run(t, "ping", "-c", "1", "-W", "5", "192.0.2.1")
		for i, count := range []func() uint64{early, before, after} {
			if count() == seen[i] {
				t.Errorf("%s: the other program %d saw no packet", when, i)
			}
		}
	}
	work("at first")
	detach(t, filepath.Join(s.PinDir, "layout-1", "ports", "0", "in0", "ingress"))
	testnet.Eventually(t, patience, "ours is attached again", func() bool {
		n, err := hooksOf(s.node, "in0")
		return err == nil && n == [2]int{4, 1}
	})
	work("after the repair")
	s.Kill()
	work("without the daemon")
	s.Start()
	s.ready()
	work("after a restart")
}

// countPackets attaches, to the ingress hook of a device of the node, a program that counts packets
// and leaves them alone. It returns a function that reads the count.
func (s *site) countPackets(t *testing.T, device string, at link.Anchor) func() uint64 {
	t.Helper()
	counter, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMapValue(asm.R1, counter.FD(), 0),
		asm.Mov.Imm(asm.R2, 1),
		asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R0, -1), // TCX_NEXT
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	var l link.Link
	s.node.Do(t, func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		l, err = link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: at})
		return err
	})
	t.Cleanup(func() { l.Close(); program.Close(); counter.Close() })
	return func() (n uint64) {
		if err := counter.Lookup(uint32(0), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// countedStream sends datagrams that the node handles one by one and does not forward. The frontend
// is its own backend, so that a program that sees a datagram twice counts it twice; the TTL ends at
// the node, so that every datagram goes to the kernel and the next program sees it.
type countedStream struct {
	n    *network
	stop chan struct{}
	wg   sync.WaitGroup
	sent uint64
}

const countedTarget = "10.0.1.11:9000"

func (n *network) countedStream(perMillisecond int) *countedStream {
	n.t.Helper()
	s := &countedStream{n: n, stop: make(chan struct{})}
	n.ok(n.d.Services().Update(n.t.Context(), "counted", datapath.Service{
		Frontends:   []datapath.Frontend{frontend(countedTarget, datapath.UDP)},
		Backends:    backendAddrs(9000, "10.0.1.11"),
		IdleTimeout: datapath.DefaultIdleTimeout(),
	}))
	var c net.Conn
	n.client.Do(n.t, func() (err error) {
		c, err = net.Dial("udp", countedTarget)
		return err
	})
	raw, err := c.(*net.UDPConn).SyscallConn()
	n.ok(err)
	n.ok(raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, 1) }))
	n.ok(err)
	s.wg.Go(func() {
		defer c.Close()
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-ticker.C:
			}
			for range perMillisecond {
				if _, err := c.Write([]byte("counted")); err == nil {
					s.sent++
				}
			}
		}
	})
	return s
}

// end returns how many datagrams were sent, and how many were handled.
func (s *countedStream) end() (sent, handled uint64) {
	s.n.t.Helper()
	close(s.stop)
	s.wg.Wait()
	list, _, err := s.n.d.Connections().List(s.n.t.Context(), datapath.ConnectionFilter{Service: "counted"}, "", 10)
	s.n.ok(err)
	for _, c := range list {
		handled += c.Sent.Packets
	}
	return s.sent, handled
}

// kinds returns the hooks of a port by its pins, after comparing them with the attached programs.
func (n *network) kinds(device string) (kinds []string) {
	n.t.Helper()
	for _, h := range n.d.ports.byName[datapath.PortName(device)].hooks {
		if !h.attached() {
			n.t.Errorf("%s of %s is not attached", h.name(), device)
		}
		kinds = append(kinds, h.name())
	}
	pins, err := filepath.Glob(filepath.Join(n.d.dir, "ports", "0", device, "*"))
	n.ok(err)
	attached := n.hooked(device)
	links := slices.DeleteFunc(slices.Clone(attached), func(s string) bool { return !strings.HasPrefix(s, "tcx ") })
	tcx := slices.Contains(kinds, "tcx-ingress")
	if want := map[bool]int{true: 2, false: 3}[tcx]; len(pins) != want { // the qdisc has a pin, too
		n.t.Errorf("%v on %s: pins %v", kinds, device, pins)
	}
	if tcx != (len(links) == 2) || tcx == slices.Contains(attached, "clsact") || len(links)%2 != 0 {
		n.t.Errorf("%v on %s: attached are %v", kinds, device, attached)
	}
	return kinds
}

// TestHooksOfAnotherKind is R09: from tcx to cls_bpf and back under traffic, each packet is handled
// exactly once.
func TestHooksOfAnotherKind(t *testing.T) {
	requireTCX(t)
	n := newNetwork(t)
	n.restart("tcx")
	n.attach()
	n.serve()
	n.ok(n.d.Services().Update(t.Context(), "web", web(3)))
	c := n.dial("198.51.100.10:80")
	stream := n.countedStream(brief(10, 1))
	for i := range brief(6, 2) {
		kind := []string{"tc", "tcx"}[i%2]
		n.restart(kind)
		want := []string{kind + "-egress", kind + "-ingress"}
		for _, device := range []string{"in0", "out0"} {
			if got := n.kinds(device); !slices.Equal(got, want) {
				t.Errorf("configured %s, hooks of %s are %v", kind, device, got)
			}
		}
		c.echo(t, "by "+kind)
		if _, err := n.ask("198.51.100.10:80"); err != nil {
			t.Errorf("a new connection by %s: %v", kind, err)
		}
	}
	sent, handled := stream.end()
	t.Logf("%d datagrams, %d handled", sent, handled)
	if sent != handled || sent == 0 {
		t.Errorf("%d datagrams were sent, %d were handled", sent, handled)
	}
}

// switching chooses the first and the last step of each kind in a change of hooks.
func switching(steps []string) (chosen []int) {
	for _, kind := range []string{"mark ", "add ", "detach "} {
		is := func(s string) bool { return strings.HasPrefix(s, kind) }
		if first := slices.IndexFunc(steps, is); first >= 0 {
			last := len(steps) - 1
			for !is(steps[last]) {
				last--
			}
			chosen = append(chosen, first)
			if brief(1, 0) > 0 {
				chosen = append(chosen, last)
			}
		}
	}
	return chosen
}

// startWith opens the data plane with that kind of hook.
func (n *network) startWith(attach string) {
	n.t.Helper()
	n.ok(n.d.Close())
	n.config.Attach = attach
	n.open()
}

// TestKilledWhileSwitchingHooks: the daemon dies at each step of the change; each packet is still
// handled once, and the next start has one kind of hook, whichever is configured.
func TestKilledWhileSwitchingHooks(t *testing.T) {
	requireTCX(t)
	n := newNetwork(t)
	n.restart("tcx")
	n.attach()
	n.serve()
	n.ok(n.d.Services().Update(t.Context(), "web", web(3)))
	c := n.dial("198.51.100.10:80")
	stream := n.countedStream(brief(2, 1))
	died := map[string]bool{}
	for _, way := range [][2]string{{"", "tc"}, {"tc", ""}} {
		n.startWith(way[0])
		n.ok(n.d.Close())
		n.config.Attach = way[1]
		steps := countSteps(t, func(int) error { return nil })
		n.ok(n.tryOpen())
		for i, k := range switching(steps()) {
			n.startWith(way[0])
			n.ok(n.d.Close())
			n.config.Attach = way[1]
			at := dieAt(t, k)
			err := n.tryOpen()
			step := at()
			died[step] = true
			if !errors.Is(err, errKilled) {
				t.Fatalf("at %q: %v", step, err)
			}
			c.echo(t, "after a death at "+step)
			n.startWith([]string{"tc", ""}[i%2])
			n.kinds("in0")
			c.echo(t, "started again after a death at "+step)
		}
	}
	sent, handled := stream.end()
	t.Logf("%d datagrams, %d handled; deaths at %v", sent, handled, died)
	if sent != handled || sent == 0 {
		t.Errorf("%d datagrams were sent, %d were handled", sent, handled)
	}
	for _, want := range []string{"mark tcx-egress", "add tc-egress", "detach tcx-egress", "add tcx-egress", "detach tc-egress"} {
		if !died[want] {
			t.Errorf("no death at %q", want)
		}
	}
}

// TestHookThatCannotBeOfAnotherKind: a hook stays and works if another program has the place of the
// other kind of hook.
func TestHookThatCannotBeOfAnotherKind(t *testing.T) {
	requireTCX(t)
	n := newNetwork(t)
	n.attach()
	n.serve()
	n.ok(n.d.Services().Update(t.Context(), "web", web(3)))
	c := n.dial("198.51.100.10:80")
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, actUnspec), asm.Return()},
	})
	n.ok(err)
	defer program.Close()
	n.node.Do(t, func() error {
		dev, err := netlink.LinkByName("in0")
		if err != nil {
			return err
		}
		f := &filter{index: dev.Attrs().Index, side: sides[1]}
		b := f.entry(program)
		b.Name = "stranger"
		return errors.Join(netlink.QdiscAdd(f.qdisc()), netlink.FilterAdd(b))
	})
	n.restart("tc")
	for device, want := range map[datapath.PortName]string{"in0": "tcx-ingress", "out0": "tc-ingress"} {
		hooks := n.d.ports.byName[device].hooks
		if len(hooks) != 2 || hooks[1].name() != want || !hooks[0].attached() || !hooks[1].attached() {
			t.Errorf("hooks of %s are %v, want %s", device, hooks, want)
		}
	}
	c.echo(t, "by the hooks that there are")
	if _, err := n.ask("198.51.100.10:80"); err != nil {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// devices are the ports of a site.
var devices = []string{"in0", "p1", "p2", "p3"}

// hooks returns how many programs are attached to each hook of the node, through tcx or as
// classifiers.
func (s *site) hooks() (counts map[string]int, err error) {
	counts = make(map[string]int)
	for _, name := range devices {
		n, err := hooksOf(s.node, name)
		if err != nil {
			return nil, err
		}
		for i, side := range hookSides {
			counts[name+" "+side.name] = n[i]
		}
	}
	return counts, nil
}

// hooksOf returns how many programs are attached to a device, by hookSides.
func hooksOf(ns *testnet.NS, device string) (counts [2]int, err error) {
	err = ns.Try(func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		for i, side := range hookSides {
			r, err := link.QueryPrograms(link.QueryOptions{Target: dev.Index, Attach: side.attach})
			if err != nil && hasTCX() {
				return fmt.Errorf("programs of %s: %w", device, err)
			}
			if err != nil {
				r = &link.QueryResult{}
			}
			filters, err := classifiers(dev.Index, side.parent)
			if err != nil {
				return fmt.Errorf("classifiers of %s: %w", device, err)
			}
			counts[i] = len(r.Programs) + filters
		}
		return nil
	})
	return counts, err
}

// hasTCX reports whether the kernel supports tcx: since 6.6.
func hasTCX() bool {
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress}) // the loopback
	return err == nil
}

// requireAttach skips the test on kernels that do not support an attach mode.
func requireAttach(t *testing.T, attach string) {
	t.Helper()
	if attach == "tcx" && !hasTCX() {
		t.Skip("needs tcx (Linux 6.6)")
	}
}

var hookSides = []struct {
	name   string
	attach ebpf.AttachType
	parent uint32
}{
	{"ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
	{"egress", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
}

// classifiers counts the eBPF classifiers of a device.
func classifiers(index int, parent uint32) (count int, err error) {
	device := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}
	for {
		filters, err := netlink.FilterList(device, parent)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		count = 0
		for _, f := range filters {
			if _, ours := f.(*netlink.BpfFilter); ours {
				count++
			}
		}
		return count, err
	}
}

// watchHooks watches the hooks continuously and reports every state other than one program on each.
func (s *site) watchHooks(t *testing.T) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	looks := 0
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Millisecond):
			}
			counts, err := s.hooks()
			looks++
			for hook, n := range counts {
				if n != 1 || err != nil {
					t.Errorf("%d programs on %s, want 1; %v", n, hook, err)
					return
				}
			}
		}
	}()
	return func() {
		close(quit)
		<-done
		t.Logf("looked at the hooks %d times", looks)
	}
}

// pins lists the pins, by path.
func (s *site) pins() (paths []string) {
	s.t.Helper()
	err := filepath.WalkDir(s.PinDir, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != s.PinDir {
			return nil // removed while its directory was read
		}
		paths = append(paths, strings.TrimPrefix(path, s.PinDir))
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return paths
}

// balanced starts a site with a service of both families and three backends, whose objects are in
// files, and returns its frontends. attach is the attach mode of the programs.
func balanced(t *testing.T, attach string) (s *site, fronts []string) {
	t.Helper()
	s = newSite(t, fmt.Sprintf("datapath: {sweepInterval: 200ms, attach: %q}", attach))
	fronts = []string{vip4 + ":9000", vip6 + ":9000"}
	var backends []string
	for _, family := range []string{"IPv4", "IPv6"} {
		for i, b := range s.backends {
			s.serve(b, backendAddr(family, i, 8080), fmt.Sprintf("b%d", i+1))
			backends = append(backends, backendAddr(family, i, 8080))
		}
	}
	var all []string
	for _, f := range fronts {
		all = append(all, f+"/tcp", f+"/udp")
	}
	s.ObjectFile("10-ports.yaml", interfaces)
	s.ObjectFile("50-web.yaml", serviceYAML("web", all, backends, "idleTimeout: {udp: 10m}"))
	s.Start()
	s.ready()
	s.followsItself()
	return s, fronts
}

// followsItself waits until the node's packets to itself are tracked, which no object's state
// shows.
func (s *site) followsItself() {
	s.t.Helper()
	testnet.Eventually(s.t, patience, "the program is on the loopback", func() bool {
		return slices.ContainsFunc(s.pins(), func(path string) bool { return strings.HasSuffix(path, "/tunnel link lo/route_localnet") })
	})
}

// ready waits until every object is Ready.
func (s *site) ready() {
	s.t.Helper()
	testnet.Eventually(s.t, patience, "all objects are Ready", func() bool {
		status, err := s.Client.Status(s.t.Context())
		return err == nil && len(status.NotReady) == 0
	})
}

// reload makes the daemon read its files again and waits until they are in force.
func (s *site) reload() {
	s.t.Helper()
	s.LLCLI("reload")
	s.ready()
}

// TestKilledUnderTraffic: the daemon is killed and started twenty times
// under load. Nothing is lost or reset, no connection is forgotten or gets a different backend, and
// at no moment is a program missing.
func TestKilledUnderTraffic(t *testing.T) {
	for _, attach := range []string{"tcx", "tc"} {
		t.Run(attach, func(t *testing.T) { killUnderTraffic(t, attach) })
	}
}

func killUnderTraffic(t *testing.T, attach string) {
	requireAttach(t, attach)
	s, fronts := balanced(t, attach)
	var others strings.Builder
	for i := range 1000 {
		others.WriteString(serviceYAML(fmt.Sprintf("other-%d", i), []string{fmt.Sprintf("203.0.113.7:%d/tcp", 10000+i)}, []string{"10.0.1.2:80"}))
	}
	s.ObjectFile("60-others.yaml", others.String())
	s.reload()

	var load4and6 []*testtraffic.Traffic
	for _, front := range fronts {
		load4and6 = append(load4and6, testtraffic.Start(t, s.client, front, testtraffic.Load{Flows: 16, Packets: 10000, Connections: 60, Lasting: 25, Idle: 2000, Once: 200}))
	}
	var before connections
	testnet.Eventually(t, patience, "all connections that last are established", func() bool {
		before = s.known(load4and6...)
		return before.lasting() == 2*(16+25+2000)
	})
	stop := s.watchHooks(t)
	for i := range 20 {
		s.Kill()
		if i%2 == 0 { // the order in which services are read must not matter
			s.ObjectFile("00-others.yaml", others.String())
			s.ObjectFile("60-others.yaml", "")
		} else {
			s.ObjectFile("60-others.yaml", others.String())
			s.ObjectFile("00-others.yaml", "")
		}
		s.Start()
		if i == 0 { // half-open connections have not expired yet
			s.ready()
			before.expectKept(t, s.known(load4and6...))
		}
	}
	s.ready()
	stop()
	before.expectKept(t, s.known(load4and6...))
	for _, tr := range load4and6 {
		tr.ExpectUnharmed(t)
	}
}

// TestChangedWhileDown is R11: changes to the files while the daemon was down are in force within
// two seconds of its start, and unaffected connections continue.
func TestChangedWhileDown(t *testing.T) {
	s, fronts := balanced(t, "")
	tr := testtraffic.Start(t, s.client, fronts[0], testtraffic.Load{Flows: 4, Packets: 500, Lasting: 4})
	s.serve(s.backends[0], "10.0.1.2:8081", "new")
	s.ObjectFile("70-more.yaml", serviceYAML("removed", []string{vip4 + ":9001/tcp"}, []string{"10.0.1.2:8080"})+
		serviceYAML("changed", []string{vip4 + ":9002/tcp"}, []string{"10.0.1.2:8080"}))
	s.reload()
	if name, err := talkTCP(s.client, "", vip4+":9001", nil); name != "b1" || err != nil {
		t.Fatalf("before: %q, %v", name, err)
	}
	s.Kill()
	s.ObjectFile("70-more.yaml", serviceYAML("changed", []string{vip4 + ":9002/tcp"}, []string{"10.0.1.2:8081"})+
		serviceYAML("added", []string{vip4 + ":9003/tcp"}, []string{"10.0.1.2:8081"}))
	begin := time.Now()
	s.Launch()
	holds := func() bool {
		changed, _ := talkTCP(s.client, "", vip4+":9002", nil)
		added, err := s.quick(vip4 + ":9003")
		_, gone := s.quick(vip4 + ":9001")
		return changed == "new" && added == "new" && err == nil && gone != nil
	}
	testnet.Eventually(t, 10*time.Second, "the files' new state", holds)
	if took := time.Since(begin); took > testnet.OnThisMachine(2*time.Second) {
		t.Errorf("the new state held %s after the start, want 2 s", took)
	} else {
		t.Logf("the new state held %s after the start", took)
	}
	tr.ExpectUnharmed(t)
}

// quick is like talkTCP from the client, for a target that may not exist.
func (s *site) quick(target string) (string, error) {
	c, err := s.client.Dial("tcp", "", target, 100*time.Millisecond)
	if err != nil {
		return "", err
	}
	defer c.Close()
	b := make([]byte, 16)
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	n, err := c.Read(b)
	return strings.TrimSpace(string(b[:n])), err
}

// TestKilledWhileStarting: killed at any moment of its startup, the daemon leaves a state
// that the next start completes: one program on each hook, and no superfluous pin.
func TestKilledWhileStarting(t *testing.T) {
	s, fronts := balanced(t, "")
	want := s.pins()
	begin := time.Now()
	s.Kill()
	s.Start()
	whole := time.Since(begin)
	tr := testtraffic.Start(t, s.client, fronts[0], testtraffic.Load{Flows: 4, Packets: 1000, Connections: 10, Lasting: 4})
	s.Kill()
	for range 40 {
		p := s.Launch()
		select {
		case <-time.After(time.Duration(rand.Int64N(int64(whole)))): // a random moment is the point
		case <-p.Done():
			t.Fatalf("the daemon ended by itself:\n%s", p.Output())
		}
		s.Kill()
	}
	s.Start()
	s.ready()
	s.followsItself()
	counts, err := s.hooks()
	for hook, n := range counts {
		if n != 1 || err != nil {
			t.Errorf("%d programs on %s, want 1; %v", n, hook, err)
		}
	}
	if got := s.pins(); !slices.Equal(got, want) {
		t.Errorf("too much is pinned: %v; too little: %v", without(got, want), without(want, got))
	}
	tr.ExpectUnharmed(t)
}

// without returns the elements of all that are not in others.
func without(all, others []string) (left []string) {
	for _, name := range all {
		if !slices.Contains(others, name) {
			left = append(left, name)
		}
	}
	return left
}

// TestKilledOnOwnAddress kills the daemon with a service on the node's own address. The stack
// treats its answers as martians, so they must never need the stack.
func TestKilledOnOwnAddress(t *testing.T) {
	s := newSite(t).start()
	s.serve(s.backends[0], backendAddr("IPv4", 0, 8080), "b1")
	s.serve(s.backends[0], backendAddr("IPv6", 0, 8080), "b1")
	fronts := []string{"192.0.2.1:9000", "[2001:db8:0:2::1]:9000"}
	s.Apply(serviceYAML("web", []string{fronts[0] + "/tcp", fronts[0] + "/udp", fronts[1] + "/tcp", fronts[1] + "/udp"},
		[]string{backendAddr("IPv4", 0, 8080), backendAddr("IPv6", 0, 8080)}))
	var both []*testtraffic.Traffic
	for _, front := range fronts {
		both = append(both, testtraffic.Start(t, s.client, front, testtraffic.Load{Flows: 4, Packets: 1000, Connections: 10, Lasting: 4}))
	}
	for range 3 {
		s.Kill()
		s.Start()
		s.ready()
	}
	for _, tr := range both {
		tr.ExpectUnharmed(t)
	}
}

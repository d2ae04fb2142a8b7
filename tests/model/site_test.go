// SPDX-License-Identifier: Apache-2.0

// Package model compares the daemon with a small model of what the node must do with packets:
// random objects go into a real loxilightd, random packets through it, and the forwarded packets
// must match the model. The model shares no code with the daemon or the data plane. If something
// may be chosen freely (a backend, a source port), the model accepts every permitted choice, and
// then requires the daemon to keep it.
//
// A failing scenario is reduced, by leaving out objects and packets while it still fails, and
// reported as a story with its seed. -seed repeats it; -cases makes the run longer (make model).
// The tests need root.
package model

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "repeat the configuration of this seed only")
	fromFlag   = flag.Uint64("from", 1, "seeds from this one on, so that a run says what the last one said; 0: by chance")
	casesFlag  = flag.Int("cases", 6000, "packets to judge")
	boundFlag  = flag.Duration("bound", 20*time.Second, "end after this time, however many packets were judged")
	shrinkFlag = flag.Duration("shrink", 15*time.Second, "time to make a difference small")

	programs testdaemon.Programs
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "loxilight-model-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)  // harmless: a directory in /tmp
	os.Setenv("TMPDIR", dir) // of this process
	if flag.Parse(); os.Geteuid() == 0 && !testing.Short() {
		if programs, err = testdaemon.Build(filepath.Join(dir, "bin")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// site is a node between four networks, whose hosts are all in one namespace without
// a stack: the test sends and receives their frames.
//
//	p1 10.0.1.1/24  2001:db8:1::1/64    hosts .2 to .7, ::2 to ::7
//	p2, p3, p4 likewise; behind 10.0.4.2 and 2001:db8:4::2 everything else
type site struct {
	t      *testing.T
	node   *testnet.NS
	daemon *testdaemon.Daemon
	taps   [portCount]*testnet.Tap
	// monitors receive the copies of mirrors.
	monitors [monitorCount]*testnet.Tap
	late     map[string]bool // marks of packets that must not come out
	marks    int             // given so far
	// refusals are the times of the node's recent reports to senders.
	refusals []time.Time
	// carries contains the kinds that the daemon supports, of those in the model.
	carries map[string]bool
	refused int // configurations that the daemon rejected as invalid
}

const (
	portCount = 4
	hostFirst = 2
	hostCount = 6 // on each network
)

func device(port int) string      { return fmt.Sprintf("p%d", port+1) }
func nodeMAC(port int) [6]byte    { return [6]byte{2, 0x11, 0x22, 0x33, byte(port + 1), 0x01} }
func hostMAC(port, i int) [6]byte { return [6]byte{2, 0x44, 0x55, 0x66, byte(port + 1), byte(i)} }

func text(mac [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
}

func newSite(t *testing.T) *site {
	t.Helper()
	testnet.RequireRoot(t)
	s := &site{t: t, node: testnet.New(t, "node"), late: map[string]bool{}}
	world := testnet.New(t, "world")
	for _, scope := range []string{"all", "default"} {
		world.Sysctl(t, "net.ipv6.conf."+scope+".disable_ipv6", "1")
		s.node.Sysctl(t, "net.ipv4.conf."+scope+".send_redirects", "0")
		s.node.Sysctl(t, "net.ipv4.conf."+scope+".rp_filter", "0")
	}
	var batch strings.Builder
	for p := range portCount {
		testnet.Veth(t, testnet.Port{NS: s.node, Name: device(p), MAC: text(nodeMAC(p)), Addrs: []string{
			host(p, 1, false).String() + "/24", host(p, 1, true).String() + "/64",
		}}, testnet.Port{NS: world, Name: device(p)})
		s.node.Offload(t, device(p), false, testnet.TxChecksum)
		world.Offload(t, device(p), false, testnet.TxChecksum, testnet.GRO)
		for i := hostFirst; i < hostFirst+hostCount; i++ {
			for _, v6 := range []bool{false, true} {
				fmt.Fprintf(&batch, "neighbour add %s lladdr %s dev %s nud permanent\n", host(p, i, v6), text(hostMAC(p, i)), device(p))
			}
		}
		s.taps[p] = world.Tap(t, device(p))
	}
	for i := range monitorCount {
		testnet.Veth(t, testnet.Port{NS: s.node, Name: monitor(i)}, testnet.Port{NS: world, Name: monitor(i)})
		s.node.Sysctl(t, "net.ipv6.conf."+monitor(i)+".disable_ipv6", "1")
		world.Offload(t, monitor(i), false, testnet.GRO)
		s.node.Offload(t, monitor(i), false, testnet.TxChecksum)
		s.monitors[i] = world.Tap(t, monitor(i))
	}
	fmt.Fprintf(&batch, "route add default via %s\nroute add default via %s\n", host(3, 2, false), host(3, 2, true))
	s.node.Run(t, "sh", "-ec", "ip -batch - <<END\n"+batch.String()+"END")
	s.node.Forward(t)
	for key, value := range map[string]string{
		"ipv4/icmp_ratelimit": "0", "ipv6/icmp/ratelimit": "0", "ipv4/icmp_msgs_per_sec": "1000000", "ipv4/icmp_msgs_burst": "1000000",
	} { // on some kernels, some of these are global
		_ = s.node.Try(func() error { return os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o644) })
	}
	s.daemon = testdaemon.New(t, s.node, programs,
		"tables: {connections: 65536, services: 256, backends: 1024, affinity: 4096, ranges: 256}")
	s.daemon.Start()
	for p := range portCount {
		xdp := [2]string{"off", "generic"}[p%2] // every other port has the fast path in XDP
		s.daemon.Apply(fmt.Sprintf("kind: Interface\nname: %s\nspec: {device: %s, xdp: %s}\n", device(p), device(p), xdp))
	}
	s.probe()
	return s
}

// probe finds out which kinds the daemon supports.
func (s *site) probe() {
	s.carries = map[string]bool{api.KindService: true}
	for kind, spec := range map[string]any{
		api.KindFirewallRule: api.FirewallRuleSpec{Action: "allow"},
		api.KindMirror:       api.MirrorSpec{Source: api.MirrorSource{Interface: "p1"}, To: api.MirrorTarget{Device: monitor(0)}},
		api.KindNAT:          api.NATSpec{Type: "masquerade", Match: &api.Match{Out: api.Words{"p4"}}},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, err := s.daemon.Client.Apply(ctx, api.ApplyParams{
			Objects: []api.Object{object(kind, "probe", spec)}, Change: api.Change{Wait: api.Duration(5 * time.Second)},
		})
		cancel()
		if s.carries[kind] = err == nil; err != nil {
			s.t.Logf("without %s: %v", kind, err)
		}
	}
	if err := s.configure(nil); err != nil {
		s.t.Fatal(err)
	}
}

// configure replaces all of the daemon's objects except its interfaces, and waits until they are in
// force.
func (s *site) configure(objects []api.Object) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := s.daemon.Client.Replace(ctx, api.ReplaceParams{
		Owner: owner, Kinds: kinds, Objects: objects, Change: api.Change{Wait: api.Duration(10 * time.Second)},
	})
	return err
}

// flush ends all connections.
func (s *site) flush() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := s.daemon.Client.Flush(ctx, api.ConnectionFilter{All: true})
	return err
}

const owner = "model"

// oneCPU keeps the test on one processor: the kernel then handles a frame before the
// call that sends it returns.
func oneCPU(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for cpu := range len(before) * 64 {
		if before.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if unix.SchedSetaffinity(0, &before) == nil {
			runtime.UnlockOSThread()
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

const portCount = 4

// side is one of the two topologies. Every port of the node leads to the world, where only the test
// sends and listens.
//
//	      ┌── p1 ══ p1 ── tap
//	node ─┼── p2 ══ p2 ── tap      world: no addresses, no stack
//	      ├── p3 ══ p3 ── tap
//	      └── p4 ══ p4 ── tap
type side struct {
	name        string
	node, world *testnet.NS
	taps        [portCount]*testnet.Tap
	out         [portCount][][]byte // received, and not yet compared
}

// rig is both sides, and the packets sent so far.
type rig struct {
	t      *testing.T
	rng    *rand.Rand
	kernel *side // alone
	ours   *side
	daemon *testdaemon.Daemon
	ports  []string // that are interfaces of the daemon
	story  []shot   // the last ones that were sent
	sent   int
	// lenient is set while the sides adapt to a change: packets that the kernel forwarded must
	// leave on our side as well, through any port.
	lenient   bool
	own       netip.Addr    // see [change]
	unequal   time.Time     // when the sides differed last, while lenient
	slowest   time.Duration // until they were equal again
	last      string        // change
	overtaken int           // how often frames of a flow left a port in a different order
	carried   int           // frames that came out
	normalise func(frame []byte) []byte
}

// shot is one frame into one port.
type shot struct {
	number int
	port   int // from 0
	frame  []byte
	flow   string // groups related frames
	what   string
}

func (s shot) String() string {
	return fmt.Sprintf("#%d into p%d, %s (%s)", s.number, s.port+1, s.flow, s.what)
}

// nodeMAC is the address of the node's end of a port, on both sides; worldMAC is the address of
// the far end.
func nodeMAC(port int) [6]byte  { return [6]byte{2, 0x11, 0x22, 0x33, byte(port + 1), 0x01} }
func worldMAC(port int) [6]byte { return [6]byte{2, 0x11, 0x22, 0x33, byte(port + 1), 0x02} }

func text(mac [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
}

func newRig(t *testing.T, rng *rand.Rand) *rig {
	t.Helper()
	r := &rig{t: t, rng: rng, normalise: func(frame []byte) []byte { return frame }}
	r.kernel, r.ours = r.newSide("kernel"), r.newSide("ours")
	for i := range portCount {
		r.ports = append(r.ports, port(i))
	}
	return r
}

func port(i int) string { return fmt.Sprintf("p%d", i+1) }

func (r *rig) newSide(name string) *side {
	t := r.t
	s := &side{name: name, node: testnet.New(t, name), world: testnet.New(t, name+"-world")}
	for _, scope := range []string{"all", "default"} {
		s.world.Sysctl(t, "net.ipv6.conf."+scope+".disable_ipv6", "1")
	}
	s.node.Sysctl(t, "net.ipv6.conf.default.router_solicitations", "0")
	s.unlimited(t)
	for i := range portCount {
		testnet.Veth(t,
			testnet.Port{NS: s.node, Name: port(i), MAC: text(nodeMAC(i))},
			testnet.Port{NS: s.world, Name: port(i), MAC: text(worldMAC(i)), MTU: 9000})
		s.node.Offload(t, port(i), false, testnet.TxChecksum)
		s.world.Offload(t, port(i), false, testnet.TxChecksum, testnet.GRO)
		s.taps[i] = s.world.Tap(t, port(i))
	}
	return s
}

// unlimited removes the node's limits for ICMP errors, because limits depend on time. On some
// kernels, some of them are global.
func (s *side) unlimited(t *testing.T) {
	for key, value := range map[string]string{
		"ipv4/icmp_ratelimit": "0", "ipv6/icmp/ratelimit": "0", "ipv4/icmp_msgs_per_sec": "1000000", "ipv4/icmp_msgs_burst": "1000000",
	} {
		err := s.node.Try(func() error { return os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o644) })
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
			t.Fatalf("%s: %v", key, err)
		}
	}
}

// each calls do for both sides, one right after the other.
func (r *rig) each(do func(s *side)) {
	do(r.kernel)
	do(r.ours)
}

// script returns commands for a shell that must not use its own applets for them.
func script(commands string) string {
	var b strings.Builder
	for _, tool := range []string{"ip", "bridge"} {
		if path, err := exec.LookPath(tool); err == nil {
			fmt.Fprintf(&b, "%s() { %s \"$@\"; }\n", tool, path)
		}
	}
	return b.String() + commands
}

// run runs a command on both sides, where it must succeed.
func (r *rig) run(command string) {
	r.t.Helper()
	r.each(func(s *side) { s.node.Run(r.t, "sh", "-ec", script(command)) })
}

// start starts the daemon on our side, attached to all ports.
func (r *rig) start() {
	r.t.Helper()
	r.daemon = testdaemon.New(r.t, r.ours.node, programs,
		"tables: {connections: 65536, services: 64, backends: 64, affinity: 64, ranges: 64}")
	r.daemon.Start()
	var objects strings.Builder
	for i, p := range r.ports {
		xdp := [2]string{"off", "generic"}[i%2] // every other port has the fast path in XDP
		fmt.Fprintf(&objects, "---\nkind: Interface\nname: %s\nspec: {device: %s, xdp: %s}\n", p, p, xdp)
	}
	r.daemon.Apply(objects.String())
	r.drain()
	for i := range portCount { // ignore earlier packets
		r.kernel.out[i], r.ours.out[i] = nil, nil
	}
}

// tracked returns how many packets have taken the fast path so far.
func (r *rig) tracked() uint64 { return r.daemon.Counters("", "").Verdicts["fast"] }

func (r *rig) report(t *testing.T) {
	t.Helper()
	if r.tracked() == 0 && r.carried > r.sent/2 {
		t.Errorf("%d of %d frames were carried, and none by the fast path", r.carried, r.sent)
	}
	t.Logf("%d frames in, %d out of the kernel's ports and the same out of ours, %d by the fast path; alike again after at most %s, %d times in another order",
		r.sent, r.carried, r.tracked(), r.slowest.Round(time.Millisecond), r.overtaken)
}

// patience is the maximum time until the sides are equal; they are equal at once unless the kernel
// processes its packets later.
const patience = 2 * time.Second

const storyLength = 4000 // frames

// fire sends frames into both sides, compares the output, and fails the test if it differs.
func (r *rig) fire(shots []shot) {
	r.t.Helper()
	for i := range shots {
		r.sent++
		shots[i].number = r.sent
		for _, s := range []*side{r.kernel, r.ours} {
			send(r.t, s, shots[i])
		}
	}
	r.story = append(r.story, shots...)
	if len(r.story) > 2*storyLength {
		r.story = append([]shot(nil), r.story[len(r.story)-storyLength:]...)
	}
	r.compare()
}

func send(t *testing.T, s *side, shot shot) {
	for {
		err := s.taps[shot.port].Send(shot.frame)
		switch {
		case err == nil:
			return
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS): // larger than the far end accepts
			return
		case errors.Is(err, unix.EMSGSIZE), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENXIO):
			return // invalid frame, or no link: the same on both sides
		default:
			t.Fatalf("%s: %s: %v", s.name, shot, err)
		}
	}
}

// drain reads the packets that arrived.
func (r *rig) drain() {
	r.t.Helper()
	r.each(func(s *side) {
		for i, tap := range s.taps {
			err := tap.Receive(func(frame []byte) {
				if frame = r.normalise(frame); frame != nil {
					s.out[i] = append(s.out[i], frame)
				}
			})
			if err != nil {
				r.t.Fatalf("%s: p%d: %v", s.name, i+1, err)
			}
		}
	})
}

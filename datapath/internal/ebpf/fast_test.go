// SPDX-License-Identifier: Apache-2.0

package ebpf

//go:generate go tool bpf2go -cc clang-19 -go-package ebpf -target bpfel -tags linux -no-global-types -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" forwarder ../../../ebpf-src/fast_test.bpf.c

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// fastNot is what the program with fastpath.h returns for a packet that it does not handle.
const fastNot = -3

// fastRig is a rig with three programs on the same maps: the full ingress program, the same with
// only the fast path of fastpath_full.h (slow), and a program that has only fastpath.h (alone).
type fastRig struct {
	*rig
	slow, alone     *ebpf.Program
	native, generic *ebpf.Program // in XDP
	runs            int           // of both XDP programs
	taken           int           // packets handled by the native one
}

func newFastRig(t testing.TB) *fastRig {
	t.Helper()
	f := &fastRig{rig: newRig(t)}
	spec, err := kernel.LoadKernel()
	f.ok(err)
	f.ok(spec.Variables["config_fast"].Set(uint8(0)))
	f.slow = f.loadOn(spec, kernel.ProgLlTcIngress)
	spec, err = loadForwarder()
	f.ok(err)
	f.alone = f.loadOn(spec, "ll_fast_test")
	f.native, f.generic = f.loadXDP(datapath.XDPNative), f.loadXDP(datapath.XDPGeneric)
	return f
}

// loadOn loads another program on the maps of the rig.
func (f *fastRig) loadOn(spec *ebpf.CollectionSpec, name string) *ebpf.Program {
	f.t.Helper()
	shared := make(map[string]*ebpf.Map)
	for name, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		if m := kernel.SharedMap(f.maps, name); m != nil {
			shared[name] = m
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) {
		f.t.Fatalf("%+v", refused)
	}
	f.ok(err)
	p, slow := c.DetachProgram(name), c.DetachMap(kernel.MapLlSlow) // without a handle, the kernel empties it
	c.Close()
	f.t.Cleanup(func() {
		p.Close()
		slow.Close()
	})
	return p
}

// fastCase is a packet of the client, and all state that decides its handling.
type fastCase struct {
	what  string
	frame []byte
	tuple rigTuple // of the connection
	leave rigTuple
	meta  rigMeta
	next  kernel.Nexthop // index 5
	epoch kernel.Epoch
	added kernel.Epoch    // of the services
	ports [2]kernel.Epoch // of policies at the input and the output port
	gso   uint32
	mark  uint32
	// The device on which the packet arrives.
	mayBridge  bool
	bridgePort *kernel.BridgePort // if it is a bridge port
	guarded    bool
}

// fastResult is the complete result of a program for a fastCase.
type fastResult struct {
	action  int32
	frame   []byte
	entry   rigConn // a tick that has changed is 0
	nexthop kernel.Nexthop
	counted map[string]uint64
}

func (a fastResult) diff(t *testing.T, what string, b fastResult) {
	t.Helper()
	if a.action != b.action {
		t.Errorf("%s: action %d, and by the other way %d", what, a.action, b.action)
	}
	if !bytes.Equal(a.frame, b.frame) {
		t.Errorf("%s: packets differ (- this way, + the other):\n%s", what, testpkt.Diff(a.frame, b.frame))
	}
	if a.entry != b.entry {
		t.Errorf("%s: entries differ: %+v, and by the other way %+v", what, a.entry, b.entry)
	}
	if a.nexthop != b.nexthop {
		t.Errorf("%s: next hops differ: %+v, and by the other way %+v", what, a.nexthop, b.nexthop)
	}
	if !maps.Equal(a.counted, b.counted) {
		t.Errorf("%s: counters differ: %v, and by the other way %v", what, a.counted, b.counted)
	}
}

// fastTicksAgo is the age of all ticks before a run, so that the run changes them.
const fastTicksAgo = 20

// prepare writes the tables for c.
func (f *fastRig) prepare(c *fastCase) {
	f.t.Helper()
	f.write(c.tuple, c.value())
	f.put(kernel.MapLlNexthop, uint32(5), c.next)
	f.put(kernel.MapLlEpoch, uint32(kernel.EpochOfEPOCH_RULES), c.epoch)
	f.put(kernel.MapLlEpoch, uint32(kernel.EpochOfEPOCH_SERVICES), c.added)
	for i, ifindex := range []uint32{f.in.index, f.out.index} {
		f.put(kernel.MapLlEpoch, kernel.EpochOfPort(kernel.PolicyPortOf(ifindex, 0)), c.ports[i])
	}
	var bit uint64
	if c.mayBridge {
		bit = 1 << (f.in.index & 63)
	}
	f.put(kernel.MapLlBridged, f.in.index>>6, bit)
	bit = 0
	if c.guarded {
		bit = 1 << (f.in.index & 63)
	}
	f.put(kernel.MapLlGuarded, f.in.index>>6, bit)
	key := kernel.BridgePortKey{Ifindex: f.in.index}
	if c.bridgePort != nil {
		f.put(kernel.MapLlBridgePort, key, *c.bridgePort)
	} else if err := f.maps[kernel.MapLlBridgePort].Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		f.t.Fatal(err)
	}
}

// outcome runs c through p, on freshly prepared tables.
func (f *fastRig) outcome(p *ebpf.Program, c *fastCase) fastResult {
	f.t.Helper()
	f.prepare(c)
	before := f.counters()
	var ctx [46]uint32 // struct __sk_buff
	ctx[2], ctx[10], ctx[44] = c.mark, f.in.index, c.gso
	opts := ebpf.RunOptions{Data: c.frame, DataOut: make([]byte, len(c.frame)+256), Context: ctx[:]}
	if p.Type() == ebpf.XDP {
		opts.Context = nil
	}
	var action uint32
	f.ns.Do(f.t, func() (err error) {
		if action, err = p.Run(&opts); errors.Is(err, unix.EINVAL) && len(c.frame) < 14+40 {
			// BPF_PROG_RUN of recent kernels refuses frames with a truncated IP header.
			opts.DataOut, action, err = c.frame, 1<<32+fastNot, nil
		}
		return err
	})
	res := fastResult{action: int32(action), frame: opts.DataOut, counted: f.counters()}
	for name, n := range before {
		if res.counted[name] -= n; res.counted[name] == 0 {
			delete(res.counted, name)
		}
	}
	res.entry, _ = f.conn(c.tuple)
	f.ok(f.maps[kernel.MapLlNexthop].Lookup(uint32(5), &res.nexthop))
	if res.entry.LastSeenTick != c.meta.LastSeenTick {
		res.entry.LastSeenTick = 0
	}
	if res.nexthop.CheckedTick != c.next.CheckedTick {
		res.nexthop.CheckedTick = 0
	}
	return res
}

// same compares p's outcome for c with the outcome of fastpath.h, twice if they differ, since
// time-dependent results may change between two runs.
func (f *fastRig) same(t *testing.T, what string, p *ebpf.Program, c *fastCase) {
	t.Helper()
	if reflect.DeepEqual(f.outcome(f.alone, c), f.outcome(p, c)) {
		return
	}
	if again := f.outcome(f.alone, c); again.action != fastNot { // fastpath.h no longer handles it
		again.diff(t, what, f.outcome(p, c))
	}
}

// both runs c through fastpath.h and, if that handles it, through the other programs. It reports
// whether fastpath.h handles it.
func (f *fastRig) both(t *testing.T, c *fastCase) bool {
	t.Helper()
	defer f.inXDP(t, c)
	fast := f.outcome(f.alone, c)
	if fast.action == fastNot {
		untouched := fastResult{action: fastNot, frame: c.frame, entry: c.value(), nexthop: c.next, counted: map[string]uint64{}}
		fast.diff(t, c.what+", left to the others", untouched)
		return false
	}
	f.same(t, c.what, f.slow, c)
	f.same(t, c.what+", in the whole program", f.ingress, c)
	return true
}

// TestFastIsAsSlow: packets that fastpath.h forwards leave exactly as without it, whatever the
// packet, its connection and its next hop. Packets that it does not handle are unchanged.
func TestFastIsAsSlow(t *testing.T) {
	f := newFastRig(t)
	const seed = 42
	pairs := brief(400, 60)
	rnd := rand.New(rand.NewPCG(seed, seed))
	for _, base := range f.bases() {
		if !f.both(t, base.build(f)) {
			t.Errorf("%s: not taken by fastpath.h", base.name)
		}
		for _, change := range fastChanges {
			got := f.both(t, base.build(f, change))
			if got && change.left[base.version()] || !got && change.taken && !f.both(t, base.build(f, change)) {
				t.Errorf("%s, %s: taken by fastpath.h: %v", base.name, change.name, got)
			}
		}
		taken := 0
		for range pairs {
			if f.both(t, base.build(f, fastChanges[rnd.IntN(len(fastChanges))], fastChanges[rnd.IntN(len(fastChanges))])) {
				taken++
			}
		}
		if t.Logf("%s: %d of %d taken", base.name, taken, pairs); taken < pairs/8 || t.Failed() {
			t.Fatalf("%s: %d taken", base.name, taken)
		}
	}
	if t.Logf("%d of %d taken in XDP", f.taken, f.runs); f.taken < f.runs/8 {
		t.Error("too few to compare")
	}
}

// TestFastIsAsSlowAtRandom does the same with packets in which some bytes are random.
func TestFastIsAsSlowAtRandom(t *testing.T) {
	f := newFastRig(t)
	const seed = 43
	packets, least := brief(400, 60), brief(20, 0)
	rnd := rand.New(rand.NewPCG(seed, seed))
	for _, base := range f.bases() {
		taken := 0
		for range packets {
			c := base.build(f, fastChanges[rnd.IntN(len(fastChanges))])
			for range 1 + rnd.IntN(4) {
				c.frame[rnd.IntN(len(c.frame))] = byte(rnd.Uint32())
			}
			if rnd.IntN(4) > 0 {
				fixSum(c.frame)
			}
			if f.both(t, c) {
				taken++
			}
		}
		if t.Logf("%s: %d of %d taken", base.name, taken, packets); taken < least || t.Failed() {
			t.Fatalf("%s: %d taken", base.name, taken)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// Return values of the programs.
const (
	actUnspec   = -1 // TC_ACT_UNSPEC: continue as if our program did not exist
	actShot     = 2  // TC_ACT_SHOT
	actRedirect = 7  // TC_ACT_REDIRECT
)

// rig is both programs with maps of their own, and a namespace with the devices and routes that
// they see. BPF_PROG_RUN passes packets to the programs and returns the results; redirects are not
// carried out.
//
//	clients 192.0.2.0/24 ── 192.0.2.1 in0 [node] out0 10.0.1.1 ── backends 10.0.1.0/24
//	     2001:db8:1::/64    2001:db8:1::1              2001:db8:2::1      2001:db8:2::/64
type rig struct {
	t  testing.TB
	ns *testnet.NS
	loaded
	enums   map[string]map[uint64]string // names by value
	in, out rigPort
	gso     uint32 // gso_size of the packets
}

type loaded struct {
	maps            map[string]*ebpf.Map
	tables          *kernel.Tables // of maps
	slow            *ebpf.Map      // of ingress; the kernel empties it without a handle
	ingress, egress *ebpf.Program
	types           *btf.Spec
}

type rigPort struct {
	name  string
	index uint32
	mac   [6]byte
	other [6]byte // MAC of the host behind it
}

// sharedRig is used by all rigs without tuning: otherwise the verifier would take most of the time
// of a test. It is never closed.
var sharedRig = sync.OnceValues(func() (loaded, error) { return loadRig(nil) })

// newRig returns a rig with empty tables; tune functions may change a specification before the
// programs are loaded.
func newRig(t testing.TB, tune ...func(*ebpf.CollectionSpec)) *rig {
	t.Helper()
	r := &rig{t: t, ns: testnet.New(t, "node"), enums: make(map[string]map[uint64]string)}
	far := testnet.New(t, "far")
	testnet.Veth(t,
		testnet.Port{NS: r.ns, Name: "in0", Addrs: []string{"192.0.2.1/24", "2001:db8:1::1/64"}, MAC: "02:00:5e:10:01:01"},
		testnet.Port{NS: far, Name: "in1", MAC: "02:00:5e:10:01:17"})
	testnet.Veth(t,
		testnet.Port{NS: r.ns, Name: "out0", Addrs: []string{"10.0.1.1/24", "2001:db8:2::1/64"}, MAC: "02:00:5e:10:02:01"},
		testnet.Port{NS: far, Name: "out1", MAC: "02:00:5e:10:02:34"})
	r.ns.Forward(t)
	r.ns.Route(t, "198.51.100.0/24", "192.0.2.17") // the frontends are on another host
	var err error
	if tune == nil {
		r.loaded, err = sharedRig()
		r.ok(err)
		r.wipe(math.MaxUint32)
	} else {
		r.loaded, err = loadRig(tune)
		t.Cleanup(r.loaded.close)
		r.ok(err)
	}
	r.devices()
	return r
}

// fresh returns the rig in its initial state for a subtest: loading the programs again each time
// would take most of the time.
func (r *rig) fresh(t testing.TB) *rig {
	t.Helper()
	f := *r
	f.t = t
	f.wipe(128) // no subtest uses higher indexes
	f.devices()
	return &f
}

// wipe empties the tables, arrays only up to an index.
func (r *rig) wipe(indexes uint32) {
	r.t.Helper()
	for name, m := range r.maps {
		if name == kernel.MapLlCt4 || name == kernel.MapLlCt6 {
			r.ok(wipe(m, math.MaxUint32)) // a connection may be anywhere
			continue
		}
		if err := wipe(m, indexes); err != nil {
			r.t.Fatalf("%s: %v", name, err)
		}
	}
}

// devices enters the devices and the assignable source ports into the tables.
func (r *rig) devices() {
	r.t.Helper()
	r.in = r.port("in0", "02:00:5e:10:01:17", "192.0.2.1", "2001:db8:1::1")
	r.out = r.port("out0", "02:00:5e:10:02:34", "10.0.1.1", "2001:db8:2::1")
	r.ports(61057)
}

func loadRig(tune []func(*ebpf.CollectionSpec)) (l loaded, err error) {
	l.maps = make(map[string]*ebpf.Map)
	specs := make(map[string]*ebpf.MapSpec)
	for _, program := range []struct {
		load func() (*ebpf.CollectionSpec, error)
		name string
		to   **ebpf.Program
	}{{kernel.LoadKernel, kernel.ProgLlTcIngress, &l.ingress}, {kernel.LoadEgress, kernel.EgressProgLlTcEgress, &l.egress}} {
		spec, err := program.load()
		if err != nil {
			return l, err
		}
		l.types = spec.Types
		for _, f := range tune {
			f(spec)
		}
		have := make(map[string]*ebpf.Map)
		for name, m := range spec.Maps {
			specs[name], m.Pinning = m, ebpf.PinNone
			if name == kernel.MapLlCtSize && l.maps[name] == nil {
				if l.maps[name], err = ebpf.NewMap(m); err != nil {
					return l, err
				}
			}
		}
		for name := range spec.Maps {
			if shared := kernel.SharedMap(l.maps, name); shared != nil {
				have[name] = shared
			}
		}
		c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: have})
		if err != nil {
			return l, fmt.Errorf("%+v", err) // with all lines of the verifier's log
		}
		*program.to = c.DetachProgram(program.name)
		if m := c.DetachMap(kernel.MapLlSlow); m != nil {
			l.slow = m
		}
		for name := range c.Maps {
			if strings.HasPrefix(name, "ll_") && l.maps[name] == nil {
				l.maps[name] = c.DetachMap(name)
			}
		}
		c.Close()
		var blocks [2]uint32
		if err := errors.Join(spec.Variables[kernel.VarConfigCtBlocks].Get(&blocks), kernel.CreateSegments(l.maps, blocks)); err != nil {
			return l, err
		}
	}
	l.tables = kernel.TablesOf(l.maps)
	return l, errors.Join(l.tables.MapConnections(l.maps), l.tables.MapBackends(l.maps, specs, 4096))
}

func (l loaded) close() {
	l.ingress.Close()
	l.egress.Close()
	l.slow.Close()
	l.tables.Close()
	for _, m := range l.maps {
		m.Close()
	}
}

// port enters a device of the namespace into the tables, and returns its data for building packets.
func (r *rig) port(name, other string, addr4, addr6 string) rigPort {
	r.t.Helper()
	p := rigPort{name: name, mac: r.ns.MAC(r.t, name), other: rigMAC(other)}
	r.ns.Do(r.t, func() error {
		dev, err := net.InterfaceByName(name)
		if err == nil {
			p.index = uint32(dev.Index)
		}
		return err
	})
	d := kernel.Device{MtuBytes: 1500, Mac: p.mac, Flags: 2} // DEVICE_F_PORT
	d.Addr4.Word, d.Addr6.Word = rigWords(addr4), rigWords(addr6)
	copy(d.Name[:], name)
	r.put(kernel.MapLlDevice, kernel.DeviceKey{Ifindex: p.index}, d)
	return p
}

// ports sets the source ports that may be assigned.
func (r *rig) ports(ports ...uint16) {
	r.t.Helper()
	r.put(kernel.MapLlSnatPorts, uint32(0), uint16(len(ports)))
	for i, port := range ports {
		r.put(kernel.MapLlSnatPorts, uint32(i+1), port)
	}
}

// nexthop enters a neighbour as the slow path would have learnt it, and makes the connection of
// tuple use it.
func (r *rig) nexthop(index uint32, to rigPort, flags uint32, tuple rigTuple) {
	r.t.Helper()
	r.put(kernel.MapLlNexthop, index, kernel.Nexthop{
		Ifindex: to.index, MtuBytes: 1500, Dmac: to.other, Smac: to.mac, Flags: flags, CheckedTick: rigTick(),
	})
	r.change(tuple, func(m *rigMeta) { m.Nexthop = uint16(index) })
}

// run passes a frame to a program, and returns its action and the resulting frame.
func (r *rig) run(p *ebpf.Program, dev rigPort, frame []byte) (int32, []byte) {
	r.t.Helper()
	var ctx [46]uint32 // struct __sk_buff
	ctx[10], ctx[44] = dev.index, r.gso
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: ctx[:]}
	var action uint32
	r.ns.Do(r.t, func() (err error) {
		action, err = p.Run(&opts)
		return err
	})
	return int32(action), opts.DataOut
}

// step passes a frame to the ingress hook of dev and compares the result.
func (r *rig) step(what string, dev rigPort, in []byte, action int32, want []byte) {
	r.t.Helper()
	r.compare(what, r.ingress, dev, in, action, want)
}

func (r *rig) compare(what string, p *ebpf.Program, dev rigPort, in []byte, action int32, want []byte) {
	r.t.Helper()
	got, out := r.run(p, dev, in)
	if got != action {
		r.t.Errorf("%s: action %d, want %d; counters %v", what, got, action, r.counters())
	}
	if d := testpkt.Diff(want, out); d != "" {
		r.t.Errorf("%s: packet out (- want, + got):\n%s", what, d)
	}
}

// counters returns all non-zero counters of drops and verdicts.
func (r *rig) counters() map[string]uint64 {
	r.t.Helper()
	all := make(map[string]uint64)
	for enum, name := range map[string]string{"drop_reason": kernel.MapLlDrops, "verdict_count": kernel.MapLlVerdicts} {
		m, cpus := r.maps[name], ebpf.MustPossibleCPU()
		keys, values := make([]uint32, m.MaxEntries()), make([]uint64, int(m.MaxEntries())*cpus)
		var cursor ebpf.MapBatchCursor
		if n, err := m.BatchLookup(&cursor, keys, values, nil); n != len(keys) || err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			r.t.Fatalf("%s: %d of %d counters, %v", name, n, len(keys), err)
		}
		for value, text := range r.namesOf(enum) {
			if text == "VERDICT_NONE" || value >= uint64(len(keys)) {
				continue // not a verdict, …_MAX
			}
			if text == "VERDICT_EVALUATED" {
				continue // packets in the tick of a change count, too: the test would depend on time
			}
			for _, n := range values[int(value)*cpus : int(value+1)*cpus] {
				if n > 0 {
					all[text] += n
				}
			}
		}
	}
	return all
}

// namesOf returns the names of an enum's values.
func (r *rig) namesOf(enum string) map[uint64]string {
	r.t.Helper()
	if r.enums[enum] == nil {
		var e *btf.Enum
		r.ok(r.types.TypeByName(enum, &e))
		names := make(map[uint64]string)
		for _, v := range e.Values {
			names[v.Value] = v.Name
		}
		r.enums[enum] = names
	}
	return r.enums[enum]
}

// counted fails the test unless the counters are exactly these; absent counters are 0.
func (r *rig) counted(want map[string]uint64) {
	r.t.Helper()
	if got := r.counters(); !maps.Equal(got, want) {
		r.t.Errorf("counters: got %v, want %v", got, want)
	}
}

func (r *rig) put(name string, key, value any) {
	r.t.Helper()
	r.ok(r.maps[name].Put(key, value))
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// arrives and leaves return the Ethernet headers of packets that arrive on p, and that leave
// through it.
func (p rigPort) arrives() testpkt.Ethernet {
	return testpkt.Ethernet{Source: p.other, Destination: p.mac}
}
func (p rigPort) leaves() testpkt.Ethernet {
	return testpkt.Ethernet{Source: p.mac, Destination: p.other}
}

func rigMAC(s string) [6]byte {
	mac, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return [6]byte(mac)
}

// rigWords encodes an address as struct addr; an IPv4 address becomes ::ffff:a.b.c.d.
func rigWords(addr string) (words [4]uint32) {
	b := netip.MustParseAddr(addr).As16()
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return words
}

func rigPortOnWire(port uint16) uint16 { return port<<8 | port>>8 }

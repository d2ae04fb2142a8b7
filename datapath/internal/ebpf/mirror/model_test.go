// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

var errFault = errors.New("fault")

// world is the kernel and the rest of the data plane: ports p1, p2, … with an ifindex each, and
// programs that stay attached when the daemon ends.
type world struct {
	t        *testing.T
	tables   *kernel.Tables
	faults   *testtables.Failing
	ports    map[datapath.PortName]uint32
	wires    map[Key]Key
	services map[datapath.ServiceName]uint32
	attached map[place]bool
	rerouted error // the result of Rerouted
	refused  place // where nothing can be attached
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{
		t: t, faults: &testtables.Failing{Random: rand.New(rand.NewPCG(seed, 0))},
		ports: map[datapath.PortName]uint32{"p1": 1, "p2": 2, "p3": 3}, wires: map[Key]Key{},
		services: map[datapath.ServiceName]uint32{"s1": 7, "s2": 8}, attached: map[place]bool{},
	}
	faults := &testmap.Faults{Fail: w.fault, Changed: w.check}
	w.tables, _ = testtables.New(t, testtables.Small, faults)
	return w
}

func (w *world) fault() error {
	if w.faults.Fails() {
		return errFault
	}
	return nil
}

// check fails the test if a packet could find a mirror without a definition, or a port without the
// programs that it needs.
func (w *world) check() {
	w.t.Helper()
	if w.tables == nil {
		return
	}
	var device Key
	var p kernel.MirrorPort
	for ports := w.tables.MirrorPort.Iterate(); ports.Next(&device, &p); {
		for slot := range uint32(datapath.MirrorMax) {
			d := directionsOf(p, slot)
			if d == (Directions{}) {
				continue
			}
			var m kernel.Mirror
			if ok, err := w.tables.Mirror.Find(slot, &m); !ok || err != nil {
				w.t.Fatalf("port %d refers to mirror %d, which has no definition (%v)", device.Ifindex, slot, err)
			}
			if (d.In || d.Conn) && !w.attached[place{device, hook.MirrorIn}] || (d.Out || d.Sent) && !w.attached[place{device, hook.MirrorOut}] {
				w.t.Fatalf("port %d takes copies %+v without programs", device.Ifindex, d)
			}
			if !w.attached[place{Key{Ifindex: m.Target[0]}, hook.MirrorSend}] {
				w.t.Fatalf("mirror %d sends to device %d, which has no program", slot, m.Target[0])
			}
		}
	}
}

// attachment is a program in the world.
type attachment struct {
	hook.Attachment
	w  *world
	at place
}

func (a *attachment) Name() string   { return hook.MirrorSides()[a.at.side].Name }
func (a *attachment) Attached() bool { return a.w.attached[a.at] }
func (a *attachment) Close()         {}
func (a *attachment) Detach() error {
	if err := a.w.fault(); err != nil {
		return err
	}
	delete(a.w.attached, a.at)
	a.w.check()
	return nil
}

func (w *world) Port(name datapath.PortName) (Device, error) {
	if index, ok := w.ports[name]; ok {
		return Device{Key: Key{Ifindex: index}, Name: string(name)}, nil
	}
	return Device{}, datapath.Absentf("port %q", name)
}

func (w *world) Ports() (all []Device) {
	for name, index := range w.ports {
		all = append(all, Device{Key: Key{Ifindex: index}, Name: string(name)})
	}
	return all
}

func (w *world) Target(name string, _ bool) (Device, error) {
	var index uint32
	if n, _ := fmt.Sscanf(name, "t%d", &index); n == 1 {
		return Device{Key: Key{Ifindex: 100 + index}, Name: name}, nil
	}
	return w.Port(datapath.PortName(name))
}

func (w *world) Peer(datapath.PeerName) (index uint32, entry kernel.Peer, by [2]Key, err error) {
	return 0, entry, by, datapath.ErrAbsent
}

func (w *world) Service(name datapath.ServiceName) (uint32, bool) {
	id, ok := w.services[name]
	return id, ok
}
func (w *world) Rule(datapath.RuleName) (uint32, bool) { return 0, false }
func (w *world) Name(device Key) string                { return fmt.Sprint(device.Ifindex) }
func (w *world) Wire(device Key) Key                   { return w.wires[device] }
func (w *world) Prepare(Key) error                     { return w.fault() }
func (w *world) Detached(Key) error                    { return w.fault() }
func (w *world) Rerouted() error                       { return errors.Join(w.rerouted, w.fault()) }

func (w *world) Attach(side int, device Key) (hook.Attachment, error) {
	if err := w.fault(); err != nil {
		return nil, err
	}
	at := place{device, side}
	if at == w.refused {
		return nil, errFault
	}
	if w.attached[at] {
		w.t.Fatalf("%s is attached to %d twice", hook.MirrorSides()[side].Name, device.Ifindex)
	}
	w.attached[at] = true
	return &attachment{w: w, at: at}, nil
}

// start starts a daemon.
func (w *world) start() *Table {
	w.t.Helper()
	w.faults.Killed = false
	t, err := Adopt(w.tables, w)
	if err != nil {
		w.t.Fatal(err)
	}
	for at := range w.attached {
		t.AdoptHooks(at.side, at.device, &attachment{w: w, at: at})
	}
	return t
}

// wantExactly fails the test unless the tables and programs contain these mirrors and nothing else.
func (w *world) wantExactly(t *Table, want map[datapath.MirrorName]datapath.Mirror) {
	w.t.Helper()
	var keys []datapath.MirrorName
	for name, err := range t.Keys(w.t.Context()) {
		if err != nil {
			w.t.Fatal(err)
		}
		keys = append(keys, name)
	}
	if !slices.Equal(keys, slices.Sorted(maps.Keys(want))) {
		w.t.Fatalf("mirrors %v, want %v", keys, slices.Sorted(maps.Keys(want)))
	}
	definitions, names, needed := 0, 0, map[place]bool{}
	var slot uint32
	for it, m := w.tables.Mirror.Iterate(), (kernel.Mirror{}); it.Next(&slot, &m); definitions++ {
		needed[place{Key{Ifindex: m.Target[0]}, hook.MirrorSend}] = true
	}
	for it, name := w.tables.MirrorName.Iterate(), (kernel.MirrorName{}); it.Next(&slot, &name); names++ {
		if _, ok := want[textOf(&name)]; !ok {
			w.t.Fatalf("slot %d has the name %q", slot, textOf(&name))
		}
	}
	if definitions != len(want) || names != len(want) {
		w.t.Fatalf("%d definitions and %d names of %d mirrors", definitions, names, len(want))
	}
	for name, m := range want {
		if ok, err := t.Verify(w.t.Context(), name); !ok || err != nil {
			w.t.Fatalf("%s %+v: %v, %v", name, m, ok, err)
		}
		for at := range t.byName[name].places() {
			needed[at] = true
		}
	}
	if !maps.Equal(needed, w.attached) {
		w.t.Fatalf("programs %v, want %v", w.attached, needed)
	}
}

// TestFaults: whatever fails, and whenever the daemon is killed, no packet finds a half-written
// mirror, and the next attempt makes everything as desired.
func TestFaults(t *testing.T) {
	for seed := range uint64(150) {
		w := newWorld(t, seed)
		random := w.faults.Random
		table := w.start()
		want := map[datapath.MirrorName]datapath.Mirror{}
		for range 40 {
			w.faults.Rate = 0.1
			name := datapath.MirrorName(fmt.Sprint("m", random.IntN(4)))
			if random.IntN(4) == 0 {
				_ = table.Delete(t.Context(), name) // a failure is repeated below
				delete(want, name)
			} else {
				m := datapath.Mirror{
					Direction: datapath.MirrorDirection(1 + random.IntN(3)), Length: 64 * random.IntN(3),
					To: datapath.MirrorTarget{Device: fmt.Sprint("t", random.IntN(3))},
				}
				if random.IntN(3) == 0 {
					m.Service = datapath.ServiceName(fmt.Sprint("s", 1+random.IntN(2)))
				} else {
					m.Port = datapath.PortName(fmt.Sprint("p", 1+random.IntN(3)))
				}
				want[name] = m
				_ = table.Update(t.Context(), name, m) // likewise
			}
			if w.faults.Killed || random.IntN(10) == 0 {
				w.faults.Rate = 0
				table = w.start()
			}
		}
		w.faults.Rate, w.faults.Killed = 0, false
		for name := range table.Keys(t.Context()) {
			if _, ok := want[name]; !ok {
				if err := table.Delete(t.Context(), name); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		}
		for name, m := range want {
			if err := table.Update(t.Context(), name, m); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		w.wantExactly(table, want)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestCounters: the counters of a mirror continue when it gets another slot, and begin at zero in a
// slot that another mirror had.
func TestCounters(t *testing.T) {
	w := newWorld(t, 1)
	table := w.start()
	m := datapath.Mirror{Port: "p1", Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Device: "t1"}}
	update := func(name datapath.MirrorName) {
		t.Helper()
		if err := table.Update(t.Context(), name, m); err != nil {
			t.Fatal(err)
		}
	}
	update("m")
	stats := make([]kernel.MirrorStats, ebpf.MustPossibleCPU())
	stats[0] = kernel.MirrorStats{PacketCount: 3, ByteCount: 300, DropCount: 1}
	if err := w.tables.MirrorStats.Put(table.byName["m"].slot, stats); err != nil {
		t.Fatal(err)
	}
	old := table.byName["m"].slot
	m.Port, m.Length = "p2", 64
	update("m")
	if s, _ := table.State("m"); s.Packets != 3 || s.Bytes != 300 || s.Drops != 1 || !slices.Equal(s.Ports, []string{"2"}) || table.byName["m"].slot == old {
		t.Errorf("state %+v in slot %d, which was %d", s, table.byName["m"].slot, old)
	}
	update("n")
	if s, _ := table.State("n"); s.Packets != 0 || table.byName["n"].slot != old {
		t.Errorf("state of a new mirror %+v in slot %d", s, table.byName["n"].slot)
	}
}

// TestCapacity: mirrors beyond the maximum are refused, and so are lists that are too long.
func TestCapacity(t *testing.T) {
	w := newWorld(t, 1)
	table := w.start()
	m := datapath.Mirror{Port: "p1", Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Device: "t1"}}
	for i := range datapath.MirrorMax {
		if err := table.Update(t.Context(), datapath.MirrorName(fmt.Sprint(i)), m); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.Update(t.Context(), "more", m); !errors.Is(err, datapath.ErrCapacity) {
		t.Errorf("one more: %v", err)
	}
	m.Match.Ports = make([]datapath.PortRange, datapath.MirrorMembersMax+1)
	if err := table.Update(t.Context(), "0", m); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("a list that is too long: %v", err)
	}
}

// TestLoops: circles through veths are refused.
func TestLoops(t *testing.T) {
	w := newWorld(t, 1)
	w.wires[Key{Ifindex: 101}] = Key{Ifindex: 2} // t1 leads to p2
	table := w.start()
	update := func(name datapath.MirrorName, port datapath.PortName, to string) error {
		return table.Update(t.Context(), name, datapath.Mirror{Port: port, Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Device: to}})
	}
	if err := update("a", "p1", "t1"); err != nil {
		t.Fatal(err)
	}
	if err := update("b", "p2", "t1"); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("p2 to its own wire: %v", err)
	}
	if err := update("b", "p2", "p1"); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("p1 to p2 to p1: %v", err)
	}
	if err := update("b", "p2", "t2"); err != nil {
		t.Error(err)
	}
	err := table.Update(t.Context(), "c", datapath.Mirror{Service: "s1", Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Device: "p3"}})
	if !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("a service to a port: %v", err)
	}
}

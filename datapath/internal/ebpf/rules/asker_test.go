// SPDX-License-Identifier: Apache-2.0

package rules

//go:generate go tool bpf2go -cc clang-19 -go-package rules -target bpfel -tags linux -no-global-types -type test_key -cflags "-O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" asker ../../../../ebpf-src/classify_test.bpf.c

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// asker evaluates rules in the kernel for many packets at once.
type asker struct {
	t       testing.TB
	maps    map[string]*ebpf.Map
	program *ebpf.Program
	images  *Images
	log     string // of the verifier
}

func newAsker(t testing.TB) *asker {
	t.Helper()
	testnet.RequireRoot(t)
	spec, err := loadAsker()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) {
		t.Fatalf("%+v", refused)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	a := &asker{t: t, maps: c.Maps, program: c.Programs["test_classify"]}
	a.log = a.program.VerifierLog
	if a.images, err = NewImages(kernel.TablesOf(c.Maps), c.Maps); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *asker) ok(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// devices adds devices by name; their indexes are their positions, starting at 1.
func (a *asker) devices(names []string) map[string]uint32 {
	a.t.Helper()
	indexes := make(map[string]uint32)
	for i, name := range names {
		d := kernel.Device{Name: kernel.DeviceName(name)}
		a.ok(a.maps[kernel.MapLlDevice].Put(kernel.DeviceKey{Ifindex: uint32(i + 1)}, d))
		indexes[name] = uint32(i + 1)
	}
	return indexes
}

// put adds packets to be evaluated.
func (a *asker) put(packets []classify.Packet, devices map[string]uint32) {
	a.t.Helper()
	ids, keys := make([]uint32, len(packets)), make([]askerTestKey, len(packets))
	for i := range packets {
		ids[i] = uint32(i)
		p, k := &packets[i], &keys[i].Key
		k.Saddr.Word, k.Daddr.Word = kernel.AddrOf(p.Source).Word, kernel.AddrOf(p.Destination).Word
		k.Sport, k.Dport, k.Proto, k.TcpFlags, k.Dscp, k.Hook, k.Vlan = kernel.Swap16(p.SourcePort), kernel.Swap16(p.DestinationPort), p.Protocol, p.TCPFlags, p.DSCP, uint8(p.Hook), p.VLAN
		k.InIfindex, k.OutIfindex = devices[p.In], devices[p.Out]
		k.Family = 4
		if p.Source.Is6() {
			k.Family = 6
		}
		if p.HasPorts {
			k.Known |= 1
			if slices.Contains([]datapath.Protocol{datapath.TCP, datapath.UDP, datapath.SCTP}, datapath.Protocol(p.Protocol)) {
				k.Known |= 2
			}
		}
		if p.HasTCPFlags {
			k.Known |= 4
		}
	}
	_, err := a.maps["test_keys"].BatchUpdate(ids, keys, nil)
	a.ok(err)
}

// ask evaluates the first n packets, and returns how many matched a rule, and the time taken.
func (a *asker) ask(set kernel.RuleSet, n int) (int, time.Duration) {
	a.t.Helper()
	var ctx [44]uint32 // struct __sk_buff
	ctx[2], ctx[8] = uint32(n), uint32(set)
	begin := time.Now()
	matched, err := a.program.Run(&ebpf.RunOptions{Data: make([]byte, 64), Context: ctx[:]})
	took := time.Since(begin)
	a.ok(err)
	return int(matched), took
}

// answers returns the results for the first n packets.
func (a *asker) answers(n int) []askerTestKey {
	a.t.Helper()
	ids, keys := make([]uint32, n), make([]askerTestKey, n)
	var cursor ebpf.MapBatchCursor
	_, err := a.maps["test_keys"].BatchLookup(&cursor, ids, keys, nil)
	if !errors.Is(err, ebpf.ErrKeyNotExist) {
		a.ok(err)
	}
	return keys
}

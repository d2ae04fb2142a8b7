// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// corpus returns frames of every kind, with services and connections that they match.
func corpus(r *rig) (frames [][]byte) {
	for i, f := range families {
		for name, proto := range protocols {
			vip := f.vip
			p := path{proto: proto, client: f.client, vip: vip, source: f.client, backend: f.far, clientPort: r.in, beport: r.out}
			r.service(rigService{id: uint32(20*i) + uint32(proto), proto: proto, frontend: vip,
				backends: []rigBackend{{id: uint32(20*i) + uint32(proto), addr: f.far}}})
			for s := stageOpen; s <= stageData; s++ {
				r.slow(name, p, s)
				frames = append(frames, packet(r.in.arrives(), proto, p.client, vip, s, 61),
					packet(r.in.arrives(), proto, p.backend, p.source, s, 61))
			}
			r.nexthop(uint32(20*i)+uint32(proto), r.out, 0, p.forth())
			asLeft := packet(testpkt.Ethernet{}, proto, p.source, p.backend, stageData, 58)
			for _, e := range icmpErrors[f.name] {
				frames = append(frames, about(r.in.arrives(), e, f.farRouter, p.source.Addr(), asLeft, 200))
			}
			frames = append(frames, testpkt.Fragments(big(r.in.arrives(), proto, p.client, vip, 61), 1280, 5)...)
			for _, frame := range strangers(r, f, p) {
				frames = append(frames, frame)
			}
		}
	}
	return frames
}

// shortest returns the minimum length for BPF_PROG_RUN: the Ethernet and IP headers.
func shortest(frame []byte) int {
	if len(frame) > 13 && frame[12] == 0x86 && frame[13] == 0xdd {
		return 14 + 40
	}
	return 14 + 20
}

// checkRun sends frame through both programs and fails the test on an invalid result: a valid
// packet must not become invalid, a packet that is passed on without being counted must not change,
// and a dropped packet must be counted.
func (r *rig) checkRun(frame []byte) {
	r.t.Helper()
	if len(frame) < shortest(frame) || len(frame) > 3000 {
		return
	}
	good := testpkt.Parse(frame).CheckOuter() == nil
	for name, p := range map[string]*ebpf.Program{"ingress": r.ingress, "egress": r.egress} {
		before := r.totals()
		action, out := r.run(p, r.in, frame)
		drops, verdicts := r.totals()[0]-before[0], r.totals()[1]-before[1]
		switch {
		case good && testpkt.Parse(out).CheckOuter() != nil:
			r.t.Errorf("%s made a good packet bad: %v\n%x\n%x", name, testpkt.Parse(out).CheckOuter(), frame, out)
		case action == actRedirect && drops == 1: // replaced by an answer
		case len(out) != len(frame) && len(out) != len(frame)-testpkt.Parse(frame).Padding:
			r.t.Errorf("%s changed the length of %x to %d", name, frame, len(out))
		case action == actShot && (drops != 1 || verdicts != 0):
			r.t.Errorf("%s dropped a packet and counted %d drops, %d verdicts: %x", name, drops, verdicts, frame)
		case action == actUnspec && verdicts == 0 && !bytes.Equal(frame, out):
			r.t.Errorf("%s changed a packet and did not count it:\n%s", name, testpkt.Diff(frame, out))
		case action != actShot && action != actUnspec && action != actRedirect:
			r.t.Errorf("%s: action %d for %x", name, action, frame)
		}
	}
}

// totals returns the numbers of counted drops and verdicts.
func (r *rig) totals() (sums [2]uint64) {
	r.t.Helper()
	for i, name := range []string{kernel.MapLlDrops, kernel.MapLlVerdicts} {
		for key := uint32(1); key < r.maps[name].MaxEntries(); key++ { // 0 is unused
			var each []uint64
			r.ok(r.maps[name].Lookup(key, &each))
			for _, n := range each {
				sums[i] += n
			}
		}
	}
	return sums
}

// TestMangledPackets: it sends randomly changed packets for a second.
func TestMangledPackets(t *testing.T) {
	r := newRig(t)
	frames := corpus(r)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for end := time.Now().Add(time.Second); time.Now().Before(end) && !t.Failed(); {
		r.checkRun(mangle(random, frames))
	}
}

// mangle changes, cuts or mixes frames; headers more often than data.
func mangle(random *rand.Rand, frames [][]byte) []byte {
	frame := bytes.Clone(frames[random.IntN(len(frames))])
	for range random.IntN(4) {
		switch random.IntN(6) {
		case 0:
			frame = frame[:14+random.IntN(len(frame)-13)]
		case 1:
			other := frames[random.IntN(len(frames))]
			at := 14 + random.IntN(min(len(frame), len(other))-13)
			frame = append(frame[:at], other[at:]...)
		case 2:
			frame = append(frame, make([]byte, random.IntN(64))...)
		default:
			at := 12 + random.IntN(min(len(frame), 90)-12)
			frame[at] = []byte{0, 1, 0x45, 0x60, 6, 17, 44, 60, 0xff, byte(random.Uint32())}[random.IntN(10)]
		}
	}
	return frame
}

// FuzzPrograms does the same for go test -fuzz.
func FuzzPrograms(f *testing.F) {
	r := newRig(f)
	for _, frame := range corpus(r) {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		r.t = t
		r.checkRun(frame)
	})
}

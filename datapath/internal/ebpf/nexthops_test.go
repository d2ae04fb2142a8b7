// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"testing"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestVoidWhileInUse: a next hop that becomes invalid while a packet is about to be
// sent by it: the packet goes by the next hop as it was, or by the slow path, and never
// to an address of zeros, where it would be lost.
func TestVoidWhileInUse(t *testing.T) {
	r := newRig(t)
	f := families[0]
	p := r.connect(f, testpkt.ProtoUDP, natModes[0])
	r.slow("opening", p, stageOpen)
	r.nexthop(5, r.out, 0, p.forth())
	var valid kernelNexthop
	r.ok(r.maps[kernelMapLlNexthop].Lookup(uint32(5), &valid))
	valid.CheckedTick += 1 << 20 // not to be confirmed while the test runs

	hops := nexthops{table: r.maps[kernelMapLlNexthop]}
	quit, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-quit:
				done <- nil
				return
			default:
			}
			err := hops.table.Put(uint32(5), valid)
			if err == nil {
				err = hops.void(5)
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	in := packet(r.in.arrives(), p.proto, p.client, p.vip, stageData, 61)
	sent := 0
	for range 200_000 {
		action, out := r.run(r.ingress, r.in, in)
		if action != actRedirect {
			continue
		}
		sent++
		if got := [6]byte(out[:6]); got != r.out.other {
			t.Errorf("after %d packets one went to %x, want %x", sent, got, r.out.other)
			break
		}
	}
	close(quit)
	r.ok(<-done)
	if sent < 1000 {
		t.Errorf("only %d packets took the short cut", sent)
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestPortsForOthers: a client that opens connections to a remote until it is refused leaves source
// ports towards that remote for other clients: with a NAT, with endpoint-independent mapping, and
// with a service. The client itself gets at least 14 in 16 ports.
func TestPortsForOthers(t *testing.T) {
	const size, first = 6000, 20000
	base := newRig(t, sized(16384))
	type opener func(r *rig, client netip.AddrPort) uint16
	nat := func(rule datapath.NAT) func(*rig, family) opener {
		return func(r *rig, f family) opener {
			r.translate(map[datapath.NATName]datapath.NAT{"away": rule})
			return func(r *rig, client netip.AddrPort) uint16 { return r.syn(client, f.far) }
		}
	}
	masquerading := masquerade("out0")
	masquerading.Ports = []datapath.PortRange{{First: first, Last: first + size - 1}}
	independent := masquerading
	independent.Mapping = datapath.EndpointIndependent
	for name, prepare := range map[string]func(*rig, family) opener{
		"nat":                  nat(masquerading),
		"endpoint-independent": nat(independent),
		"service": func(r *rig, f family) opener {
			p := r.connect(f, testpkt.ProtoTCP, natModes[3])
			var pool []uint16
			for i := range uint16(size) {
				pool = append(pool, first+(7*i)%size)
			}
			r.ports(pool...)
			return func(r *rig, client netip.AddrPort) uint16 {
				syn := packet(r.in.arrives(), testpkt.ProtoTCP, client, p.vip, stageOpen, 61)
				action, out := r.run(r.ingress, r.in, syn)
				if action == actShot {
					return 0
				}
				return sourcePort(out, testpkt.ProtoTCP)
			}
		},
	} {
		for _, f := range families {
			t.Run(name+"/"+f.name, func(t *testing.T) {
				r := base.fresh(t)
				open := prepare(r, f)
				taken := make(map[uint16]bool)
				opens := func(client netip.Addr, count int) (opened int) {
					for i := range count {
						port := open(r, netip.AddrPortFrom(client, uint16(1024+i)))
						if port == 0 {
							continue
						}
						if taken[port] || port < first || port >= first+size {
							t.Fatalf("%s got port %d, which is another's or not to be given out", client, port)
						}
						taken[port] = true
						opened++
					}
					return opened
				}
				client := f.client.Addr()
				if opened := opens(client, 2*size); opened < size*14/16 || opened > size*31/32 {
					t.Errorf("one client has %d of %d ports", opened, size)
				}
				other := 0
				for range 4 { // refused clients send again
					client = client.Next()
					other += opens(client, 25)
				}
				if other < 90 {
					t.Errorf("others were given %d ports when they asked for 100", other)
				}
			})
		}
	}
}

// TestOneMappingOnTwoProcessors: the first packets of one inner port to two remotes, processed
// concurrently on two CPUs, leave from the same outer port.
func TestOneMappingOnTwoProcessors(t *testing.T) {
	r := newRig(t, sized(16384))
	rule := masquerade("out0")
	rule.Mapping = datapath.EndpointIndependent
	r.translate(map[datapath.NATName]datapath.NAT{"away": rule})
	f := families[0]
	const count = 2000
	var ports [2][count]uint16
	var wg sync.WaitGroup
	var turn [count]sync.WaitGroup
	for i := range turn {
		turn[i].Add(2)
	}
	for n := range ports {
		server := netip.AddrPortFrom(f.far.Addr(), f.far.Port()+uint16(n))
		wg.Go(func() {
			for i := range count {
				client := netip.AddrPortFrom(f.client.Addr(), uint16(2000+i))
				frame := tcpSegment(r.out.leaves(), client, server, testpkt.SYN)
				turn[i].Done()
				turn[i].Wait()
				ports[n][i] = 0
				if action, out := r.leave(r.in, r.out, frame); action != actShot {
					ports[n][i] = sourcePort(out, testpkt.ProtoTCP)
				}
			}
		})
	}
	wg.Wait()
	differ := 0
	for i := range count {
		if ports[0][i] != ports[1][i] || ports[0][i] == 0 {
			differ++
		}
	}
	if differ != 0 {
		t.Errorf("%d of %d inner ports have two outer ports", differ, count)
	}
}

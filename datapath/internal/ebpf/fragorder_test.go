// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// wideDatagram builds a datagram with size bytes of payload, in which no two words are equal.
func wideDatagram(eth testpkt.Ethernet, from, to netip.AddrPort, ttl uint8, size int) []byte {
	ip := ipHeader(from.Addr(), to.Addr(), ttl)
	if four, ok := ip.(testpkt.IPv4); ok {
		four.DontFragment = false
		ip = four
	}
	var text bytes.Buffer
	for i := 0; text.Len() < size; i++ {
		fmt.Fprintf(&text, "%d,", i)
	}
	return testpkt.Build(eth, ip, testpkt.UDP{Source: from.Port(), Destination: to.Port()}, testpkt.Payload(text.String()[:size]))
}

// fragmentSizes are the datagram sizes of the tests of fragments.
var fragmentSizes = []int{4000, 60000}

// TestFragmentOrders: fragments that arrive after their first one are handled like it,
// including duplicates and fragments of other sizes. Fragments that arrive before it pass unchanged
// if there are no rules; otherwise they are dropped and counted.
func TestFragmentOrders(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, size := range fragmentSizes {
			for _, how := range []string{"service", "service, source translated", "rules"} {
				t.Run(fmt.Sprint(f.name, "/", size, "/", how), func(t *testing.T) {
					r := base.fresh(t)
					p := rigPlain(r, f, testpkt.ProtoUDP)
					switch how {
					case "rules":
						port := []datapath.PortRange{{First: f.far.Port(), Last: f.far.Port()}}
						r.rules(rigRule{id: 1, match: datapath.Match{Protocols: []datapath.Protocol{datapath.UDP}, Ports: port}},
							rigRule{id: 2, action: ruleDeny})
					case "service":
						p = r.connect(f, testpkt.ProtoUDP, natModes[0])
					default:
						p = r.connect(f, testpkt.ProtoUDP, natModes[3])
					}
					r.fragmentOrders(p, size, how == "rules")
				})
			}
		}
	}
}

func (r *rig) fragmentOrders(p path, size int, rules bool) {
	r.t.Helper()
	action, ttl := p.outcome(61)
	id := uint32(0x5152)
	in := wideDatagram(p.clientPort.arrives(), p.client, p.vip, 61, size)
	want := wideDatagram(p.clientPort.arrives(), p.source, p.backend, ttl, size)
	pieces := func(mtu int) (ins, wants [][]byte) {
		return testpkt.Fragments(in, mtu, id), testpkt.Fragments(want, mtu, id)
	}
	ins, wants := pieces(1400)
	for i := range ins {
		for range 2 {
			r.step(fmt.Sprint("in order, and twice: ", i), p.clientPort, ins[i], action, wants[i])
		}
	}
	ins, wants = pieces(1000)
	for i := range ins {
		r.step(fmt.Sprint("cut otherwise, over those before: ", i), p.clientPort, ins[i], action, wants[i])
	}
	id++
	ins, wants = pieces(1400)
	early := int32(actUnspec)
	if rules {
		early = actShot
	}
	for i := len(ins) - 1; i > 0; i-- {
		r.step(fmt.Sprint("last first: ", i), p.clientPort, ins[i], early, ins[i])
	}
	if n := r.counters()["DROP_FRAGMENT"]; n != uint64(len(ins)-1) && rules || n != 0 && !rules {
		r.t.Errorf("%d of %d fragments were counted as dropped", n, len(ins))
	}
	r.step("the first, last", p.clientPort, ins[0], action, wants[0])
	for i := len(ins) - 1; i > 0; i-- {
		r.step(fmt.Sprint("again, after the first: ", i), p.clientPort, ins[i], action, wants[i])
	}
}

// TestManyFragmentedDatagrams: if there are more concurrent datagrams than the table has
// room for, about as many of the oldest as necessary are evicted, and their lost fragments are
// counted. The table is small, so that an emulated CPU finishes before first fragments expire,
// after 30 s.
func TestManyFragmentedDatagrams(t *testing.T) {
	r := newRig(t, func(spec *ebpf.CollectionSpec) { spec.Maps[kernel.MapLlFragment].MaxEntries = 2048 })
	f := families[0]
	r.rules(rigRule{id: 1, match: datapath.Match{Protocols: []datapath.Protocol{datapath.UDP}}})
	p := rigPlain(r, f, testpkt.ProtoUDP)
	room := int(r.maps[kernel.MapLlFragment].MaxEntries())
	count := brief(5000, room+500)
	piece := func(n, which int) []byte {
		from := netip.AddrPortFrom(p.client.Addr(), uint16(1024+n%4)) // few connections
		return testpkt.Fragments(wideDatagram(r.in.arrives(), from, p.vip, 61, 2000), 1400, uint32(n+1))[which]
	}
	for n := range count {
		if action, _ := r.run(r.ingress, r.in, piece(n, 0)); action != actUnspec {
			t.Fatalf("first fragment of %d: action %d", n, action)
		}
	}
	lost, recent := 0, 0
	for n := range count {
		action, _ := r.run(r.ingress, r.in, piece(n, 1))
		if action == actShot {
			lost++
			if n >= count-room/2 {
				recent++
			}
		}
	}
	t.Logf("%d of %d lost, of which %d are among the last %d", lost, count, recent, room/2)
	// The map evicts entries in batches.
	if slack := room / 8; lost < count-room || lost > count-room+slack || recent > 0 {
		t.Errorf("%d of %d were lost, want %d to %d; %d of the last %d", lost, count, count-room, count-room+slack, recent, room/2)
	}
	r.counted(map[string]uint64{"DROP_FRAGMENT": uint64(lost), "VERDICT_SLOW": uint64(2*count - lost)})
}

// TestFragmentsArrive sends fragments between real sockets: the kernels behind the node must be
// able to reassemble the fragments.
func TestFragmentsArrive(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	tap := n.client.Tap(t, "eth0")
	eth := testpkt.Ethernet{Source: n.client.MAC(t, "eth0"), Destination: n.node.MAC(t, "in0")}
	id := uint32(0x6001)
	for _, f := range []struct{ client, vip, backend string }{
		{"192.0.2.10:4660", "198.51.100.10:9000", "10.0.1.11:9000"}, {"[2001:db8:1::10]:4660", "[2001:db8:9::10]:9000", "[2001:db8:2::11]:9000"},
	} {
		client, vip, backend := netip.MustParseAddrPort(f.client), netip.MustParseAddrPort(f.vip), netip.MustParseAddrPort(f.backend)
		n.ok(n.d.Services().Update(t.Context(), "fragments", datapath.Service{Frontends: []datapath.Frontend{frontend(f.vip, datapath.UDP)},
			Backends: backendAddrs(9000, backend.Addr().String()), IdleTimeout: datapath.DefaultIdleTimeout()}))
		server := n.backends.ListenUDP(t, f.backend)
		arrives := func(what string, to netip.AddrPort, size int, order func([][]byte) [][]byte, want bool) {
			t.Helper()
			id++
			frame := wideDatagram(eth, client, to, 61, size)
			for _, piece := range order(testpkt.Fragments(frame, 1400, id)) {
				n.ok(tap.Send(piece))
			}
			wait := 200 * time.Millisecond
			if want {
				wait = 5 * time.Second
			}
			_ = server.SetReadDeadline(time.Now().Add(wait)) // the next read reports an error
			got := make([]byte, 1<<16)
			read, _, err := server.ReadFrom(got)
			if (err == nil) != want || want && !bytes.HasSuffix(frame, got[:read]) || want && read != size {
				t.Errorf("%s to %s, %d bytes: %d bytes came, %v", what, to, size, read, err)
			}
		}
		for _, size := range fragmentSizes {
			arrives("in order", backend, size, inOrder, true)
			arrives("last first", backend, size, lastFirst, true)
			arrives("each twice", backend, size, eachTwice, true)
			arrives("in order", vip, size, inOrder, true)
			arrives("each twice", vip, size, eachTwice, true)
			arrives("last first", vip, size, lastFirst, false) // later fragments lack ports
		}
		n.putRules(datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{"one": ruleFor(10, "10.0.1.99", datapath.ActionDeny)}})
		for _, size := range fragmentSizes {
			for _, to := range []netip.AddrPort{backend, vip} {
				arrives("in order, with rules", to, size, inOrder, true)
				arrives("last first, with rules", to, size, lastFirst, false)
			}
		}
		n.ok(n.d.Firewall().Delete(t.Context(), datapath.NodeSet))
		server.Close()
	}
	testnet.Eventually(t, 3*time.Second, "the drops are counted", func() bool {
		c, err := n.d.Telemetry().NodeCounters(t.Context())
		n.ok(err)
		const later = 2 * 2 * (2 + 42) // families, directions, fragments of both sizes except the first
		return c.Drops["fragment"] >= later
	})
}

func inOrder(pieces [][]byte) [][]byte { return pieces }

func lastFirst(pieces [][]byte) [][]byte {
	slices.Reverse(pieces)
	return pieces
}

func eachTwice(pieces [][]byte) (all [][]byte) {
	for _, p := range pieces {
		all = append(all, p, p)
	}
	return all
}

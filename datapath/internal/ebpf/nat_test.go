// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/nat"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/rules"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/snat"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// translate puts rules in force.
func (r *rig) translate(set map[datapath.NATName]datapath.NAT) *nat.Table {
	r.t.Helper()
	n := r.adoptNAT(slog.DiscardHandler, datapath.PortRange{First: 61000, Last: 65535})
	r.ok(n.Update(context.Background(), datapath.NodeSet, datapath.NATSet{Rules: set}))
	return n
}

// adoptNAT takes over the rules in force. Rules that name no ports use the ports in free.
func (r *rig) adoptNAT(log slog.Handler, free ...datapath.PortRange) *nat.Table {
	r.t.Helper()
	d := &DataPlane{maps: r.maps, tables: r.tables, namespaces: namespace.New(namespace.Options{})}
	images, err := rules.NewImages(r.tables, r.maps)
	r.ok(err)
	d.announcer, err = newAnnouncer(d)
	r.ok(err)
	d.targets, err = snat.AdoptTargets(r.tables)
	r.ok(err)
	n, err := nat.Adopt(r.tables, images, rigNATHost{natHost{d}, free}, slog.New(log))
	r.ok(err)
	return n
}

// rigNATHost is the [nat.Host] of a rig.
type rigNATHost struct {
	natHost
	free []datapath.PortRange
}

// DefaultPorts implements [nat.Host].
func (h rigNATHost) DefaultPorts() ([]datapath.PortRange, error) { return h.free, nil }

// leave sends a frame that arrived on in, which is treated as a device without our programs,
// through the egress hook of out.
func (r *rig) leave(in, out rigPort, frame []byte) (int32, []byte) {
	r.t.Helper()
	var ctx [44]uint32
	ctx[9], ctx[10] = in.index, out.index
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: ctx[:]}
	var action uint32
	r.ns.Do(r.t, func() (err error) {
		action, err = r.egress.Run(&opts)
		return err
	})
	return int32(action), opts.DataOut
}

// leaving compares the result of leave for a frame.
func (r *rig) leaving(what string, frame, want []byte) {
	r.t.Helper()
	action, out := r.leave(r.in, r.out, frame)
	if action != actUnspec {
		r.t.Errorf("%s: action %d, want %d; counters %v", what, action, actUnspec, r.counters())
	}
	if d := testpkt.Diff(want, out); d != "" {
		r.t.Errorf("%s: packet out (- want, + got):\n%s", what, d)
	}
}

// sourcePort returns the source port, or the ICMP identifier, of a frame without options.
func sourcePort(frame []byte, proto uint8) uint16 {
	off := 14 + 20
	if frame[14]>>4 == 6 {
		off = 14 + 40
	}
	if proto == testpkt.ProtoICMP || proto == testpkt.ProtoICMPv6 {
		off += 4
	}
	return binary.BigEndian.Uint16(frame[off:])
}

func prefixes(s ...string) (p []netip.Prefix) {
	for _, s := range s {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

// ping builds an echo message.
func ping(eth testpkt.Ethernet, from, to netip.Addr, request bool, id uint16, ttl uint8) []byte {
	echo := testpkt.ICMP{Type: testpkt.EchoReply, ID: id, Seq: 3}
	if request {
		echo.Type = testpkt.EchoRequest
	}
	if from.Is6() {
		echo.V6, echo.Type = true, testpkt.V6EchoReply
		if request {
			echo.Type = testpkt.V6EchoRequest
		}
	}
	return testpkt.Build(eth, ipHeader(from, to, ttl), echo, testpkt.Payload("ping"))
}

// message builds a packet of any protocol; the client's echo messages are requests.
func message(eth testpkt.Ethernet, proto uint8, from, to netip.AddrPort, s stage, ttl uint8) []byte {
	if proto == testpkt.ProtoICMP || proto == testpkt.ProtoICMPv6 {
		return ping(eth, from.Addr(), to.Addr(), s != stageAnswer, from.Port(), ttl)
	}
	return packet(eth, proto, from, to, s, ttl)
}

// sourceTypes are the kinds of source translation, with the resulting addresses.
var sourceTypes = map[string]struct {
	nat  func(out string) datapath.NAT
	want [2]netip.Prefix // the new source, by family
	keep bool            // the port stays
}{
	"masquerade": {
		func(out string) datapath.NAT {
			return datapath.NAT{Type: datapath.Masquerade, Match: datapath.Match{Out: []string{out}}}
		},
		[2]netip.Prefix{netip.MustParsePrefix("10.0.1.1/32"), netip.MustParsePrefix("2001:db8:2::1/128")}, false,
	},
	"pool": {
		func(string) datapath.NAT {
			return datapath.NAT{Addresses: prefixes("203.0.113.64/28", "2001:db8:cb00:71::/64")}
		},
		[2]netip.Prefix{netip.MustParsePrefix("203.0.113.64/28"), netip.MustParsePrefix("2001:db8:cb00:71::/64")}, false,
	},
	"endpoint-independent": {
		func(out string) datapath.NAT {
			return datapath.NAT{Type: datapath.Masquerade, Match: datapath.Match{Out: []string{out}}, Mapping: datapath.EndpointIndependent}
		},
		[2]netip.Prefix{netip.MustParsePrefix("10.0.1.1/32"), netip.MustParsePrefix("2001:db8:2::1/128")}, false,
	},
	"blocks": {
		func(out string) datapath.NAT {
			return datapath.NAT{Type: datapath.Masquerade, Match: datapath.Match{Out: []string{out}}, BlockSize: 128}
		},
		[2]netip.Prefix{netip.MustParsePrefix("10.0.1.1/32"), netip.MustParsePrefix("2001:db8:2::1/128")}, false,
	},
	"one-to-one": {
		func(string) datapath.NAT {
			return datapath.NAT{
				OneToOne: true, Match: datapath.Match{Source: prefixes("192.0.2.0/24", "2001:db8:1::/64")},
				Addresses: prefixes("203.0.113.0/24", "2001:db8:cb00:71::/64"),
			}
		},
		[2]netip.Prefix{netip.MustParsePrefix("203.0.113.17/32"), netip.MustParsePrefix("2001:db8:cb00:71::17/128")}, true,
	},
}

func protocolsOf(f family) map[string]uint8 {
	all := map[string]uint8{"ICMP": testpkt.ProtoICMP}
	if f.name == "IPv6" {
		all["ICMP"] = testpkt.ProtoICMPv6
	}
	for name, proto := range protocols {
		all[name] = proto
	}
	return all
}

// TestSourceTranslated follows connections with SNAT at egress. For each type, family and protocol
// it checks every byte of each packet, the replies and the ICMP errors, and that a second
// connection gets another port.
func TestSourceTranslated(t *testing.T) {
	base := newRig(t)
	for typeName, st := range sourceTypes {
		for i, f := range families {
			for protoName, proto := range protocolsOf(f) {
				t.Run(typeName+"/"+f.name+"/"+protoName, func(t *testing.T) {
					r := base.fresh(t)
					r.translate(map[datapath.NATName]datapath.NAT{"away": st.nat("out0")})
					r.followSource(f, proto, st.want[i], st.keep)
				})
			}
		}
	}
}

func (r *rig) followSource(f family, proto uint8, want netip.Prefix, keep bool) {
	r.t.Helper()
	server := f.far
	echo := proto == testpkt.ProtoICMP || proto == testpkt.ProtoICMPv6
	if echo {
		server = netip.AddrPortFrom(server.Addr(), f.client.Port())
	}
	_, out := r.leave(r.in, r.out, message(r.out.leaves(), proto, f.client, server, stageOpen, 60))
	port := sourcePort(out, proto)
	if (port == f.client.Port()) != keep || port < 1024 {
		r.t.Errorf("port %d for %d", port, f.client.Port())
	}
	outer := netip.AddrPortFrom(addressOf(out), port)
	if !want.Contains(outer.Addr()) {
		r.t.Errorf("source %s, want one of %s", outer, want)
	}
	far := server
	if echo {
		far = netip.AddrPortFrom(server.Addr(), port)
	}
	if d := testpkt.Diff(message(r.out.leaves(), proto, outer, far, stageOpen, 60), out); d != "" {
		r.t.Errorf("first packet (- want, + got):\n%s", d)
	}
	r.step("answer", r.out, message(r.out.arrives(), proto, far, outer, stageAnswer, 61),
		actUnspec, message(r.out.arrives(), proto, server, f.client, stageAnswer, 61))
	r.leaving("confirmation", message(r.out.leaves(), proto, f.client, server, stageConfirm, 60),
		message(r.out.leaves(), proto, outer, far, stageConfirm, 60))
	forth := rigTuple{proto, f.client, server}
	if c, ok := r.conn(forth); !ok || c.leaves != (rigTuple{proto, outer, far}) || c.NatId == 0 {
		r.t.Errorf("the client's entry is %+v, %t", c, ok)
	}
	back := rigTuple{proto, far, outer}
	if c, ok := r.conn(back); !ok || c.leaves != forth.turned() {
		r.t.Errorf("the server's entry is %+v, %t", c, ok)
	}
	// One direction's entry is lost; the next packet of the other direction restores it.
	r.forget(back)
	r.leaving("after a loss", message(r.out.leaves(), proto, f.client, server, stageConfirm, 60),
		message(r.out.leaves(), proto, outer, far, stageConfirm, 60))
	if c, ok := r.conn(back); !ok || c.leaves != forth.turned() {
		r.t.Errorf("the server's entry is not back: %+v, %t", c, ok)
	}
	for _, e := range icmpErrors[f.name] {
		asSent := message(testpkt.Ethernet{}, proto, f.client, server, stageData, 58)
		asLeft := message(testpkt.Ethernet{}, proto, outer, far, stageData, 58)
		if echo {
			header := len(asSent) - len("ping") - 8
			copy(asSent[header+2:header+4], asLeft[header+2:]) // the embedded checksum
		} else {
			asSent = seen(proto, asLeft, asSent)
		}
		r.step(fmt.Sprintf("error %d %d", e.Type, e.Code), r.out, about(r.out.arrives(), e, f.farRouter, outer.Addr(), asLeft, 8),
			actUnspec, about(r.out.arrives(), e, f.farRouter, f.client.Addr(), asSent, 8))
	}
	r.innerError(f, proto, rigTuple{proto, server, f.client}, rigTuple{proto, far, outer})
	other := netip.AddrPortFrom(f.client.Addr(), f.client.Port()+1)
	if echo {
		server = netip.AddrPortFrom(server.Addr(), other.Port())
	}
	_, out = r.leave(r.in, r.out, message(r.out.leaves(), proto, other, server, stageOpen, 60))
	if again := sourcePort(out, proto); again == port || addressOf(out) != outer.Addr() {
		r.t.Errorf("the second connection has %s port %d, the first %s", addressOf(out), again, outer)
	}
	if c := r.counters(); c["VERDICT_SLOW"]+c["VERDICT_LOCAL"]+c["VERDICT_ICMP_ERROR"] != uint64(6+len(icmpErrors[f.name])) {
		r.t.Errorf("counters %v", c)
	}
}

// innerError sends an error from a router beside the client about a reply that arrived with tuple
// outside and left with tuple inside. The server does not see the router's address (RFC 5508,
// REQ-5). An error that gets the node's own IPv4 address as source bypasses the stack, and its TTL
// is decremented as for a forwarded packet.
func (r *rig) innerError(f family, proto uint8, inside, outside rigTuple) {
	r.t.Helper()
	e := icmpErrors[f.name][1]
	quoted := message(testpkt.Ethernet{}, proto, inside.src, inside.dst, stageAnswer, 58)
	sent := message(testpkt.Ethernet{}, proto, outside.src, outside.dst, stageAnswer, 58)
	l4 := 34
	if e.V6 {
		l4 = 54
	}
	if proto == testpkt.ProtoICMP || proto == testpkt.ProtoICMPv6 {
		copy(sent[l4+2:l4+4], quoted[l4+2:])
	} else {
		sent = seen(proto, quoted, sent)
	}
	r.put(kernel.MapLlLocal, kernel.LocalKey{Addr: kernel.AddrOf(f.outAddr)}, uint8(1))
	action, ttl := int32(actUnspec), uint8(61)
	if outside.dst.Addr() == f.outAddr && !e.V6 {
		action, ttl = actRedirect, 60
	}
	r.step("error of an inner router", r.in,
		about(r.in.arrives(), e, f.client.Addr().Next(), inside.src.Addr(), quoted, 8), action,
		testpkt.Build(r.in.arrives(), ipHeader(outside.dst.Addr(), outside.src.Addr(), ttl), e, testpkt.Raw(sent[14:l4+8])))
}

// addressOf returns the source address of a frame.
func addressOf(frame []byte) netip.Addr {
	at := frame[14+12 : 14+16]
	if frame[14]>>4 == 6 {
		at = frame[14+8 : 14+24]
	}
	a, _ := netip.AddrFromSlice(slices.Clone(at))
	return a
}

// destinationTypes are the kinds of destination translation.
func destinationTypes(f family) map[string]struct {
	nat datapath.NAT
	to  netip.AddrPort // new destination of packets to f.vip
} {
	vip := netip.PrefixFrom(f.vip.Addr(), f.vip.Addr().BitLen())
	far := netip.PrefixFrom(f.far.Addr(), f.far.Addr().BitLen())
	wide, wideFar := netip.PrefixFrom(f.vip.Addr(), f.vip.Addr().BitLen()-8).Masked(), netip.PrefixFrom(f.far.Addr(), f.far.Addr().BitLen()-8).Masked()
	last := f.vip.Addr().As16()[15]
	inside := f.far.Addr().AsSlice()
	inside[len(inside)-1] = last
	paired, _ := netip.AddrFromSlice(inside)
	return map[string]struct {
		nat datapath.NAT
		to  netip.AddrPort
	}{
		"address": {
			datapath.NAT{Type: datapath.DNAT, Match: datapath.Match{Destination: []netip.Prefix{vip}}, Addresses: []netip.Prefix{far}},
			netip.AddrPortFrom(f.far.Addr(), f.vip.Port()),
		},
		"port": {
			datapath.NAT{
				Type: datapath.DNAT, Match: datapath.Match{Destination: []netip.Prefix{vip}}, Addresses: []netip.Prefix{far},
				Ports: []datapath.PortRange{{First: 9029, Last: 9029}},
			},
			netip.AddrPortFrom(f.far.Addr(), 9029),
		},
		"range": {
			datapath.NAT{
				Type:      datapath.DNAT,
				Match:     datapath.Match{Destination: []netip.Prefix{vip}, Protocols: []datapath.Protocol{datapath.TCP, datapath.UDP, datapath.SCTP}, Ports: []datapath.PortRange{{First: 4600, Last: 4699}}},
				Addresses: []netip.Prefix{far}, Ports: []datapath.PortRange{{First: 9600, Last: 9699}},
			},
			netip.AddrPortFrom(f.far.Addr(), 9660),
		},
		"one-to-one": {
			datapath.NAT{Type: datapath.DNAT, OneToOne: true, Match: datapath.Match{Destination: []netip.Prefix{wide}}, Addresses: []netip.Prefix{wideFar}},
			netip.AddrPortFrom(paired, f.vip.Port()),
		},
	}
}

// TestDestinationTranslated follows connections with DNAT, and checks every byte of each packet and
// reply.
func TestDestinationTranslated(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for typeName, dt := range destinationTypes(f) {
			for protoName, proto := range protocols {
				t.Run(typeName+"/"+f.name+"/"+protoName, func(t *testing.T) {
					r := base.fresh(t)
					r.translate(map[datapath.NATName]datapath.NAT{"in": dt.nat})
					p := path{proto: proto, client: f.client, vip: f.vip, source: f.client, backend: dt.to, clientPort: r.in, beport: r.out}
					r.slow("opening", p, stageOpen)
					r.slow("answer", p, stageAnswer)
					r.slow("confirmation", p, stageConfirm)
					if c, ok := r.conn(p.forth()); !ok || c.leaves != p.back().turned() || c.half || c.NatId == 0 {
						t.Errorf("entry %+v, %t", c, ok)
					}
					r.nexthop(5, p.beport, 0, p.forth())
					r.step("data", r.in, packet(r.in.arrives(), proto, p.client, p.vip, stageData, 61),
						actRedirect, packet(r.out.leaves(), proto, p.source, p.backend, stageData, 60))
					r.counted(map[string]uint64{"VERDICT_SLOW": 3, "VERDICT_FAST": 1})
					other := f.vip
					other = netip.AddrPortFrom(netip.MustParseAddr(map[string]string{"IPv4": "203.0.113.44", "IPv6": "2001:db8:cb00::44"}[f.name]), other.Port())
					plain := packet(r.in.arrives(), proto, p.client, other, stageOpen, 61)
					r.step("to another host", r.in, plain, actUnspec, plain)
				})
			}
		}
	}
}

// TestHairpinTranslated: client and new destination are behind the same device, so replies return
// through the node only if the node replaces the source by its own address.
func TestHairpinTranslated(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			nat := destinationTypes(f)["port"].nat
			nat.Addresses = []netip.Prefix{netip.PrefixFrom(f.near.Addr(), f.near.Addr().BitLen())}
			r.translate(map[datapath.NATName]datapath.NAT{"in": nat})
			p := path{
				proto: testpkt.ProtoTCP, client: f.client, vip: f.vip, source: netip.AddrPortFrom(f.inAddr, 61057),
				backend: netip.AddrPortFrom(f.near.Addr(), 9029), clientPort: r.in, beport: r.in,
			}
			r.slow("opening", p, stageOpen)
			r.slow("answer", p, stageAnswer)
			r.slow("confirmation", p, stageConfirm)
			proto := protocolsOf(f)["ICMP"]
			action, ttl := p.outcome(61)
			id := netip.AddrPortFrom(f.inAddr, 61057)
			r.step("echo", r.in, ping(r.in.arrives(), f.client.Addr(), f.vip.Addr(), true, 7, 61),
				action, ping(r.in.arrives(), f.inAddr, f.near.Addr(), true, 61057, ttl))
			r.step("echo reply", r.in, message(r.in.arrives(), proto, netip.AddrPortFrom(f.near.Addr(), 61057), id, stageAnswer, 61),
				actUnspec, ping(r.in.arrives(), f.vip.Addr(), f.client.Addr(), false, 7, 61))
		})
	}
}

// TestBothTranslated: a DNAT rule and an SNAT rule apply to the same connection, each matching the
// original packet.
func TestBothTranslated(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for protoName, proto := range protocols {
			t.Run(f.name+"/"+protoName, func(t *testing.T) {
				r := base.fresh(t)
				rules := map[datapath.NATName]datapath.NAT{"in": destinationTypes(f)["port"].nat, "away": masquerade("out0")}
				away := rules["away"]
				away.Match.Destination = rules["in"].Match.Destination
				away.Ports = []datapath.PortRange{{First: 5555, Last: 5555}}
				rules["away"] = away
				n := r.translate(rules)
				p := path{
					proto: proto, client: f.client, vip: f.vip, source: netip.AddrPortFrom(f.outAddr, 5555),
					backend: netip.AddrPortFrom(f.far.Addr(), 9029), clientPort: r.in, beport: r.out,
				}
				r.slow("opening", p, stageOpen)
				r.slow("answer", p, stageAnswer)
				r.slow("confirmation", p, stageConfirm)
				forth, _ := r.conn(p.forth())
				back, _ := r.conn(p.back())
				if n.Name(forth.NatId) != "in" || n.Name(back.NatId) != "away" {
					t.Errorf("translated by %q and %q, want in and away", n.Name(forth.NatId), n.Name(back.NatId))
				}
			})
		}
	}
}

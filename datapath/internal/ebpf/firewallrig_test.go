// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/rules"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// Actions of rules, as in types_rules.h.
const (
	ruleAllow, ruleDeny, ruleReject = 0, 1, 2
)

// rigRule is a rule with the id of its counter.
type rigRule struct {
	id     uint32
	hooks  datapath.FirewallHook
	match  datapath.Match
	action uint8
	flags  uint8
}

// rules puts rules in force, and records the current tick as the time of the change.
func (r *rig) rules(list ...rigRule) {
	r.t.Helper()
	compiled := make([]classify.Rule, len(list))
	for i := range list {
		rule := &list[i]
		if rule.hooks == 0 {
			rule.hooks = datapath.HookAll
		}
		compiled[i] = classify.Rule{ID: rule.id, Hooks: rule.hooks, Match: &rule.match, Action: rule.action, Flags: rule.flags}
		r.put(kernel.MapLlRuleHits, rule.id, make([]kernel.RuleHits, 2))
	}
	image, err := classify.Compile(compiled, nil)
	r.ok(err)
	published, err := rules.NewImages(r.tables, r.maps)
	r.ok(err)
	_, err = published.Publish(kernel.RulesFirewall, image)
	r.ok(err)
	r.put(kernel.MapLlEpoch, uint32(0), kernel.Epoch{Count: 1, ChangedTick: rigTick()})
}

// hits returns the number of packets that a rule matched.
func (r *rig) hits(id uint32) (n uint64) {
	r.t.Helper()
	var each []kernel.RuleHits
	r.ok(r.maps[kernel.MapLlRuleHits].Lookup(id, &each))
	for _, h := range each {
		n += h.PacketCount
	}
	return n
}

// rigPlain returns an untranslated connection through the node.
func rigPlain(r *rig, f family, proto uint8) path {
	return path{proto: proto, client: f.client, vip: f.far, source: f.client, backend: f.far, clientPort: r.in, beport: r.out}
}

// TestRulesOfConnections: the first packet is evaluated, later packets of its connection are not,
// and after a change of rules existing connections are evaluated again.
func TestRulesOfConnections(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				p := rigPlain(r, f, proto)
				port := datapath.Match{Protocols: []datapath.Protocol{datapath.Protocol(proto)},
					Ports: []datapath.PortRange{{First: f.far.Port(), Last: f.far.Port()}}}
				allow, deny := rigRule{id: 1, match: port}, rigRule{id: 2, action: ruleDeny}
				way := func(s stage, there bool, action int32) {
					t.Helper()
					dev, from, to := r.in, p.client, p.vip
					if !there {
						dev, from, to = r.out, p.vip, p.client
					}
					frame := packet(dev.arrives(), proto, from, to, s, 61)
					r.step("packet", dev, frame, action, frame)
				}
				r.rules(allow, deny)
				way(stageAnswer, false, actShot) // no request was sent
				way(stageOpen, true, actUnspec)
				way(stageAnswer, false, actUnspec)
				way(stageConfirm, true, actUnspec)
				way(stageData, true, actUnspec)
				way(stageData, false, actUnspec)
				if a, d := r.hits(1), r.hits(2); a != 1 || d != 1 {
					t.Errorf("the rules decided %d and %d times, want once each", a, d)
				}
				time.Sleep(2 << 27 * time.Nanosecond) // so that the last packet was before the rules change
				r.rules(allow, deny)                  // the same
				way(stageData, false, actUnspec)
				way(stageData, true, actUnspec)
				way(stageData, true, actUnspec)
				time.Sleep(2 << 27 * time.Nanosecond)
				r.rules(deny)
				way(stageData, false, actShot)
				way(stageData, true, actShot)
				// The rule allows only the forward direction: further packets of the server do not
				// open another connection.
				time.Sleep(2 << 27 * time.Nanosecond)
				r.rules(allow)
				way(stageData, true, actUnspec)
				way(stageData, false, actUnspec)
				time.Sleep(2 << 27 * time.Nanosecond)
				r.rules(rigRule{id: 3, action: ruleDeny, match: port})
				for range 2 {
					way(stageData, true, actShot)
					way(stageData, false, actShot)
				}
				if c, found := r.conn(p.back()); !found || c.State != 2 {
					t.Errorf("the connection is %+v, %v", c, found)
				}
				r.rules(allow)
				way(stageData, true, actUnspec)
				way(stageData, false, actUnspec)
			})
		}
	}
}

// withClass returns a frame with another traffic class.
func withClass(frame []byte, class uint8) []byte {
	b := slices.Clone(frame)
	if b[14]>>4 == 6 {
		b[14], b[15] = 0x60|class>>4, class<<4|b[15]&0xf
		return b
	}
	b[15] = class
	fixSum(b)
	return b
}

// TestAnswersAreNotAskedAbout: replies need not match per-packet criteria of rules, such as DSCP or
// VLAN. After a change of rules the next packet from the client's side is evaluated; until then
// nothing changes.
func TestAnswersAreNotAskedAbout(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			p := rigPlain(r, f, testpkt.ProtoTCP)
			way := func(what string, s stage, there bool, action int32) {
				t.Helper()
				dev, from, to, class := r.in, p.client, p.vip, uint8(46<<2)
				if !there {
					dev, from, to, class = r.out, p.vip, p.client, 0
				}
				frame := withClass(packet(dev.arrives(), testpkt.ProtoTCP, from, to, s, 61), class)
				r.step(what, dev, frame, action, frame)
			}
			marked := datapath.Match{DSCP: []uint8{46}}
			allow, deny := rigRule{id: 1, match: marked}, rigRule{id: 2, action: ruleDeny}
			change := func(rules ...rigRule) {
				time.Sleep(2 << 27 * time.Nanosecond) // so that the last packet was before the rules change
				r.rules(rules...)
			}
			change(allow, deny)
			way("open", stageOpen, true, actUnspec)
			way("answer", stageAnswer, false, actUnspec)
			way("confirm", stageConfirm, true, actUnspec)
			way("data", stageData, true, actUnspec)
			change(allow, deny)
			way("an answer, by rules that allow the client's", stageData, false, actUnspec)
			way("the client's", stageData, true, actUnspec)
			change(rigRule{id: 3, action: ruleDeny, match: marked})
			way("an answer, before the client's is asked about", stageData, false, actUnspec)
			for range 2 {
				way("the client's, by rules that deny it", stageData, true, actShot)
				way("an answer", stageData, false, actShot)
			}
			change(allow, deny)
			way("an answer, before the client's is asked about again", stageData, false, actShot)
			way("the client's, by rules that allow it again", stageData, true, actUnspec)
			way("an answer", stageData, false, actUnspec)
		})
	}
}

// TestAnswersToTheNode: a rule that allows the node's own connections by their output device allows
// their replies as well, which have no output device.
func TestAnswersToTheNode(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			r.put(kernel.MapLlLocal, kernel.LocalKey{Addr: kernel.AddrOf(f.inAddr)}, uint8(1))
			node := netip.AddrPortFrom(f.inAddr, 40000)
			out := func(s stage) {
				t.Helper()
				frame := packet(r.in.leaves(), testpkt.ProtoTCP, node, f.client, s, 64)
				r.compare("out", r.egress, r.in, frame, actUnspec, frame)
			}
			in := func(s stage) {
				t.Helper()
				frame := packet(r.in.arrives(), testpkt.ProtoTCP, f.client, node, s, 61)
				r.step("in", r.in, frame, actUnspec, frame)
			}
			rules := []rigRule{{id: 1, hooks: datapath.HookOutput, match: datapath.Match{Out: []string{r.in.name}}}, {id: 2, action: ruleDeny}}
			r.rules(rules...)
			out(stageOpen)
			in(stageAnswer)
			out(stageConfirm)
			time.Sleep(2 << 27 * time.Nanosecond)
			r.rules(rules...)
			in(stageData)
			out(stageData)
			in(stageData)
		})
	}
}

// TestRulesOfTheNode: packets to the node and packets from the node have rule hooks of their own.
func TestRulesOfTheNode(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			node := netip.AddrPortFrom(f.inAddr, 22)
			r.put(kernel.MapLlLocal, kernel.LocalKey{Addr: kernel.AddrOf(f.inAddr)}, uint8(1))
			r.rules(rigRule{id: 1, hooks: datapath.HookInput, action: ruleDeny, match: datapath.Match{Ports: []datapath.PortRange{{First: 23, Last: 23}}, Protocols: []datapath.Protocol{datapath.TCP}}},
				rigRule{id: 2, hooks: datapath.HookOutput, action: ruleDeny})
			in := func(to uint16, s stage, action int32) {
				t.Helper()
				frame := packet(r.in.arrives(), testpkt.ProtoTCP, f.client, netip.AddrPortFrom(f.inAddr, to), s, 61)
				r.step("in", r.in, frame, action, frame)
			}
			out := func(from, to netip.AddrPort, s stage, action int32) {
				t.Helper()
				frame := packet(r.in.leaves(), testpkt.ProtoTCP, from, to, s, 64)
				r.compare("out", r.egress, r.in, frame, action, frame)
			}
			in(22, stageOpen, actUnspec)
			out(node, f.client, stageAnswer, actUnspec) // answers to packets that arrived
			in(22, stageConfirm, actUnspec)
			in(23, stageOpen, actShot)
			out(netip.AddrPortFrom(f.inAddr, 40000), f.client, stageOpen, actShot)
			out(netip.AddrPortFrom(f.inAddr, 40000), f.client, stageAnswer, actShot)
			if a, d := r.hits(1), r.hits(2); a != 1 || d != 2 {
				t.Errorf("the rules decided %d and %d times, want 1 and 2", a, d)
			}
		})
	}
}

// TestRulesOfTheRest: packets of no connection are evaluated one by one, and packets that
// cannot be evaluated are dropped.
func TestRulesOfTheRest(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			eth := r.in.arrives()
			ip := ipHeader(f.client.Addr(), f.far.Addr(), 61)
			build := func(layers ...testpkt.Layer) []byte {
				return testpkt.Build(append([]testpkt.Layer{eth, ip}, layers...)...)
			}
			esp := testpkt.Build(eth, withProtocol(ip, 50), testpkt.Raw("\x00\x00\x10\x01\x00\x00\x00\x01secret"))
			parts := testpkt.Fragments(build(testpkt.UDP{Source: f.client.Port(), Destination: f.far.Port()},
				testpkt.Payload(strings.Repeat("long enough for two. ", 20))), 300, 77)
			first, later := parts[0], parts[1]
			shot, passed := map[string][]byte{"later fragment": later}, map[string][]byte{}
			if f.name == "IPv6" {
				var nine []testpkt.Extension
				for range 9 {
					nine = append(nine, hops(testpkt.Destination, 8))
				}
				passed["eight extension headers"] = testpkt.Build(eth, testpkt.IPv6{Source: f.client.Addr(), Destination: f.far.Addr(), Extensions: nine[1:]},
					testpkt.UDP{Source: f.client.Port(), Destination: f.far.Port()}, testpkt.Payload("eight"))
				shot["nine extension headers"] = testpkt.Build(eth, testpkt.IPv6{Source: f.client.Addr(), Destination: f.far.Addr(),
					Extensions: nine, Protocol: 17}, testpkt.Raw("12345678"))
				r.put(kernel.MapLlLocal, kernel.LocalKey{Addr: kernel.AddrOf(f.inAddr)}, uint8(1))
				for _, kind := range []uint8{133, 135, 136} {
					discovery := func(to netip.Addr, hops uint8) []byte {
						return testpkt.Build(eth, testpkt.IPv6{Source: f.client.Addr(), Destination: to, HopLimit: hops},
							testpkt.ICMP{V6: true, Type: kind}, testpkt.Payload("neighbour discovery"))
					}
					nd, routed, far := discovery(f.inAddr, 255), discovery(f.far.Addr(), 255), discovery(f.inAddr, 254)
					defer func() {
						r.rules(rigRule{id: 1, action: ruleDeny})
						r.step("neighbour discovery", r.in, nd, actUnspec, nd)
						r.step("to another network", r.in, routed, actShot, routed)
						r.step("from another network", r.in, far, actShot, far)
					}()
				}
			} else {
				shot["cut in the UDP header"] = packet(eth, testpkt.ProtoUDP, f.client, f.far, stageData, 61)[:14+20+5]
			}
			for _, frame := range shot {
				r.step("without rules", r.in, frame, actUnspec, frame)
			}
			r.rules(rigRule{id: 1, action: ruleDeny, match: datapath.Match{Protocols: []datapath.Protocol{50}}})
			r.step("ESP", r.in, esp, actShot, esp)
			for what, frame := range shot {
				r.step(what, r.in, frame, actShot, frame)
			}
			for what, frame := range passed {
				r.step(what, r.in, frame, actUnspec, frame)
			}
			r.step("first fragment", r.in, first, actUnspec, first)
			r.step("the later one, after it", r.in, later, actUnspec, later)
			r.rules(rigRule{id: 1, flags: kernel.RuleStateless, match: datapath.Match{Protocols: []datapath.Protocol{datapath.UDP}, Source: []netip.Prefix{netip.PrefixFrom(f.client.Addr(), f.client.Addr().BitLen())}}},
				rigRule{id: 2, action: ruleDeny})
			there := packet(eth, testpkt.ProtoUDP, netip.AddrPortFrom(f.client.Addr(), 7), f.far, stageData, 61)
			back := packet(r.out.arrives(), testpkt.ProtoUDP, f.far, netip.AddrPortFrom(f.client.Addr(), 7), stageData, 61)
			for range 2 {
				r.step("stateless", r.in, there, actUnspec, there)
			}
			r.step("its answer", r.out, back, actShot, back)
			if n := r.hits(1); n != 2 {
				t.Errorf("the stateless rule decided %d times, want 2", n)
			}
			group := packet(testpkt.Ethernet{Source: eth.Source, Destination: [6]byte{255, 255, 255, 255, 255, 255}}, testpkt.ProtoUDP, f.far, f.client, stageData, 61)
			r.step("to a group", r.in, group, actShot, group)
		})
	}
}

// withProtocol sets the protocol of an IP header, for protocols that testpkt does not build.
func withProtocol(l testpkt.Layer, protocol uint8) testpkt.Layer {
	switch h := l.(type) {
	case testpkt.IPv4:
		h.Protocol = protocol
		return h
	case testpkt.IPv6:
		h.Protocol = protocol
		return h
	}
	return l
}

// TestRulesReject: the sender gets a rejection, and the drop reason is counted.
func TestRulesReject(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			r.rules(rigRule{id: 1, action: ruleReject})
			frame := packet(r.in.arrives(), testpkt.ProtoTCP, f.client, f.far, stageOpen, 61)
			action, out := r.run(r.ingress, r.in, frame)
			p := testpkt.Parse(out)
			if action != actRedirect || p.Check() != nil || p.Source() != f.far || p.Destination() != f.client || p.TCP == nil || p.TCP.Flags != testpkt.RST|testpkt.ACK {
				t.Errorf("action %d, answer %v (%v), want a reset from %s", action, p, p.Check(), f.far)
			}
			r.counted(map[string]uint64{"DROP_FIREWALL": 1, "VERDICT_ANSWERED": 1})
		})
	}
}

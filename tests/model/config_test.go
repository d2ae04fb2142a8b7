// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
)

// kinds are the kinds that the model knows.
var kinds = []string{api.KindAddressGroup, api.KindNAT, api.KindFirewallRule, api.KindService, api.KindMirror}

// config is the daemon's configuration, as the model sees it.
type config struct {
	services []*service
	groups   []*group
	rules    []*rule
	nats     []*nat
	mirrors  []*mirror
}

type frontend struct {
	addr  netip.AddrPort
	proto uint8
}

type backend struct {
	addr   netip.AddrPort
	weight int
	state  string
}

type service struct {
	name      string
	frontends []frontend
	backends  []backend
	algorithm string
	source    string
	ranges    []netip.Prefix
	affinity  bool
}

type group struct {
	name    string
	members []netip.Prefix
}

type portRange struct{ first, last uint16 }

func (r portRange) has(p uint16) bool { return p >= r.first && p <= r.last }

// match selects packets; an empty field matches everything.
type match struct {
	src, dst             []netip.Prefix
	srcGroups, dstGroups []string
	protos               []uint8
	ports, sourcePorts   []portRange
	flagMask, flagSet    uint8
	in, out              []int
	dscp                 []uint8
}

type rule struct {
	name      string
	priority  int32
	hooks     []string
	match     match
	action    string
	stateless bool
}

type nat struct {
	name      string
	kind      string
	priority  int32
	match     match
	addresses []netip.Prefix
	ports     []portRange
	oneToOne  bool
	mapping   bool // endpoint-independent
	filtering bool // likewise
	block     int
}

// objects returns the configuration as objects of the control channel, in the order of kinds.
func (c *config) objects() (all []api.Object) {
	for _, g := range c.groups {
		var members []api.Member
		for _, m := range g.members {
			members = append(members, api.Member{Text: m.String()})
		}
		all = append(all, object(api.KindAddressGroup, g.name, api.AddressGroupSpec{Members: members}))
	}
	for _, n := range c.nats {
		all = append(all, object(api.KindNAT, n.name, n.spec()))
	}
	for _, r := range c.rules {
		stateful := !r.stateless
		all = append(all, object(api.KindFirewallRule, r.name, api.FirewallRuleSpec{
			Priority: &r.priority, Hooks: words(r.hooks), Match: r.match.spec(), Action: r.action, Stateful: &stateful,
		}))
	}
	for _, s := range c.services {
		all = append(all, object(api.KindService, s.name, s.spec()))
	}
	for _, m := range c.mirrors {
		all = append(all, object(api.KindMirror, m.name, m.spec()))
	}
	return all
}

func object(kind, name string, spec any) api.Object {
	raw, err := json.Marshal(spec)
	if err != nil {
		panic(err)
	}
	return api.Object{Kind: kind, Name: name, Owner: owner, Spec: raw}
}

func (s *service) spec() api.ServiceSpec {
	spec := api.ServiceSpec{Algorithm: s.algorithm, Source: s.source}
	for _, f := range s.frontends {
		spec.Frontends = append(spec.Frontends, f.addr.String()+"/"+protoName(f.proto))
	}
	for _, b := range s.backends {
		spec.Backends = append(spec.Backends, api.Backend{Address: b.addr.String(), Weight: &b.weight, State: b.state})
	}
	for _, r := range s.ranges {
		spec.SourceRanges = append(spec.SourceRanges, r.String())
	}
	if s.affinity {
		spec.Affinity = &api.Affinity{Timeout: api.Duration(3600e9)}
	}
	return spec
}

func (n *nat) spec() api.NATSpec {
	spec := api.NATSpec{Type: n.kind, Priority: &n.priority, Match: n.match.spec(), OneToOne: n.oneToOne, PortBlock: n.block}
	if len(n.addresses)+len(n.ports) > 0 {
		spec.To = &api.NATTarget{Addresses: words(n.addresses), Ports: words(n.ports)}
	}
	if n.mapping {
		spec.Mapping = "endpoint-independent"
	}
	if n.filtering {
		spec.Filtering = "endpoint-independent"
	}
	return spec
}

func (m *match) spec() *api.Match {
	spec := &api.Match{
		Source: words(m.src), Destination: words(m.dst), Ports: words(m.ports), SourcePorts: words(m.sourcePorts),
	}
	for _, g := range m.srcGroups {
		spec.Source = append(spec.Source, api.Word("group:"+g))
	}
	for _, g := range m.dstGroups {
		spec.Destination = append(spec.Destination, api.Word("group:"+g))
	}
	for _, p := range m.protos {
		spec.Protocol = append(spec.Protocol, api.Word(protoName(p)))
	}
	for _, p := range m.in {
		spec.In = append(spec.In, api.Word(device(p)))
	}
	for _, p := range m.out {
		spec.Out = append(spec.Out, api.Word(device(p)))
	}
	for _, d := range m.dscp {
		spec.DSCP = append(spec.DSCP, api.Word(fmt.Sprint(d)))
	}
	var flags []string
	for i, name := range []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"} {
		switch bit := uint8(1) << i; {
		case m.flagMask&m.flagSet&bit != 0:
			flags = append(flags, name)
		case m.flagMask&bit != 0:
			flags = append(flags, "!"+name)
		}
	}
	spec.TCPFlags = strings.Join(flags, ",")
	return spec
}

func (r portRange) String() string {
	if r.first == r.last {
		return fmt.Sprint(r.first)
	}
	return fmt.Sprintf("%d-%d", r.first, r.last)
}

func words[V any](values []V) (all api.Words) {
	for _, v := range values {
		all = append(all, api.Word(fmt.Sprint(v)))
	}
	return all
}

// String returns the configuration as an operator would write it, one object per line.
func (c *config) String() string {
	var b strings.Builder
	for _, o := range c.objects() {
		fmt.Fprintf(&b, "    %s %s %s\n", o.Kind, o.Name, o.Spec)
	}
	if b.Len() == 0 {
		return "    nothing\n"
	}
	return b.String()
}

// asksPackets reports whether a rule matches fields in which packets of one connection differ.
func (c *config) asksPackets() bool {
	return slices.ContainsFunc(c.rules, func(r *rule) bool { return r.match.flagMask != 0 || len(r.match.dscp) > 0 })
}

// without returns the configuration without its i-th object; nil: no such object exists.
func (c *config) without(i int) *config {
	d := &config{services: c.services, groups: c.groups, rules: c.rules, nats: c.nats, mirrors: c.mirrors}
	switch {
	case i < len(c.mirrors):
		d.mirrors = cut(c.mirrors, i)
		return d
	default:
		i -= len(c.mirrors)
	}
	switch {
	case i < len(c.services):
		d.services = cut(c.services, i)
	case i-len(c.services) < len(c.rules):
		d.rules = cut(c.rules, i-len(c.services))
	case i-len(c.services)-len(c.rules) < len(c.nats):
		d.nats = cut(c.nats, i-len(c.services)-len(c.rules))
	default:
		return nil
	}
	return d.withoutLostMirrors()
}

func cut[V any](all []V, i int) []V {
	return append(append([]V(nil), all[:i]...), all[i+1:]...)
}

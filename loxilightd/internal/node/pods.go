// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Devices are the names of the ends of the link between host and switch.
type Devices struct {
	Host, Switch string // empty if host and switch are the same namespace, without such a link
	Namespace    string // name of the switch's network namespace; empty: the host's
}

// Rows that all pod networks share.
const (
	podBridge   = "pods" + derivedMark + "bridge"
	podHost     = "pods" + derivedMark + "host"
	podSwitch   = "pods" + derivedMark + "switch"
	podHere     = "pods" + derivedMark + "here"
	podDefault4 = "pods" + derivedMark + "default4"
	podDefault6 = "pods" + derivedMark + "default6"
)

// podNetworks combines the pod networks of the node.
type podNetworks struct {
	n       *Node
	s       *state.Snapshot
	v       *derivation
	objects []*state.Object
	peers   map[string]datapath.Peer // without single addresses that belong to this node
	mtu     podMTU
}

// derivePods makes the rows of the pod networks, given the Peers without single addresses that
// belong to this node.
//
//	host: HostDevice (second address) ══ SwitchDevice ─ bridge (first address), tunnels :switch
func (n *Node) derivePods(s *state.Snapshot, v *derivation, peers map[string]datapath.Peer, mtu podMTU) {
	p := &podNetworks{n: n, s: s, v: v, objects: s.PodNetworks(), peers: peers, mtu: mtu}
	if len(p.objects) == 0 {
		return
	}
	p.bridge()
	p.here()
	if n.opts.Devices.Host != "" && n.opts.Devices.Switch != "" {
		p.link()
		ports := state.PodPorts(n.opts.Devices.Host, n.opts.Devices.Switch)
		p.port(state.PodPortSwitch, ports[state.PodPortSwitch])
		p.port(state.PodPortHost, ports[state.PodPortHost])
		p.route(podDefault4, true)
		p.route(podDefault6, false)
		p.routeTable()
	} else {
		p.tunnels()
	}
}

// addresses returns one address in each subnet, with the subnet's prefix length.
func (p *podNetworks) addresses(of func(netip.Prefix) netip.Addr) (list []netip.Prefix) {
	for _, o := range p.objects {
		for _, subnet := range o.Value.(*state.PodNetwork).Subnets {
			list = append(list, netip.PrefixFrom(of(subnet), subnet.Bits()))
		}
	}
	return list
}

func (p *podNetworks) device() string { return p.objects[0].Value.(*state.PodNetwork).Bridge }

func (p *podNetworks) bridge() {
	b := datapath.Bridge{Device: p.device(), Addresses: p.addresses(ipam.Gateway), MTU: p.mtu.device}
	if port := p.n.opts.Devices.Switch; port != "" {
		b.Ports = []datapath.BridgePort{{Device: port}}
	}
	p.v.bridges.add(podBridge, b)
}

// here makes the pods' subnets known to the data plane: a packet with such a source address that
// arrives on an uplink is forged.
func (p *podNetworks) here() {
	subnets := p.addresses(netip.Prefix.Addr)
	p.v.peers.add(podHere, datapath.Peer{Prefixes: subnets, Here: true})
}

// link sets the host's addresses, and the MTU of both ends of the link.
func (p *podNetworks) link() {
	d := p.n.opts.Devices
	p.v.links.add(podHost, datapath.Link{Device: d.Host, Addresses: p.addresses(ipam.Host), MTU: p.mtu.device})
	p.v.links.add(podSwitch, datapath.Link{Device: d.Switch, Switch: true, MTU: p.mtu.device})
}

// port attaches our programs to a device, unless an Interface already does so.
func (p *podNetworks) port(name datapath.PortName, port datapath.Port) {
	for o := range p.s.After(state.KindInterface, "") {
		if i := o.Value.(*state.Interface); i.Device == port.Device && i.Switch == port.Switch {
			p.v.ports.needed = append(p.v.ports.needed, datapath.PortName(o.Name))
			return
		}
	}
	p.v.ports.add(name, port)
}

// route adds the switch's default route to the host, unless a Route replaces it.
func (p *podNetworks) route(name datapath.RouteName, is4 bool) {
	r := datapath.Route{Prefix: everything(is4), Switch: true}
	host := podAddress(p.s, ipam.Host, is4)
	if !host.IsValid() || isConfigured(p.s, r.Prefix, true) {
		return
	}
	r.NextHops = []datapath.NextHop{{Via: host, Device: p.device(), Weight: 1}}
	p.v.routes.add(name, r)
}

// podAddress returns the first address of a family that the host or the switch has in the pod networks,
// as of selects it; the zero Addr: there is none.
func podAddress(s *state.Snapshot, of func(netip.Prefix) netip.Addr, is4 bool) netip.Addr {
	for o := range s.After(state.KindPodNetwork, "") {
		for _, subnet := range o.Value.(*state.PodNetwork).Subnets {
			if subnet.Addr().Is4() == is4 {
				return of(subnet)
			}
		}
	}
	return netip.Addr{}
}

// routeTable routes packets for pods on other nodes from the host to the switch, which has the
// tunnels, unless a Route replaces the route.
func (p *podNetworks) routeTable() {
	configured := map[netip.Prefix]bool{}
	for o := range p.s.After(state.KindRoute, "") {
		if r := o.Value.(*state.Route); decides(r, false) {
			configured[r.Prefix] = true
		}
	}
	for o := range p.s.After(state.KindPeer, "") {
		peer := p.peers[o.Name]
		for _, prefix := range peer.Prefixes {
			via := podAddress(p.s, ipam.Gateway, prefix.Addr().Is4())
			if peer.Tunnel == "" {
				p.aside(o.Key, prefix)
				continue
			}
			if !via.IsValid() || configured[prefix] {
				continue
			}
			p.v.routes.add(datapath.RouteName(rowOf(o.Key, prefix.String())), datapath.Route{
				Prefix: prefix, NextHops: []datapath.NextHop{{Via: via, Device: p.n.opts.Devices.Host, Weight: 1}}, MTU: p.mtu.route(prefix),
			})
		}
	}
}

// aside adds a route from the switch to the host for an address that is in a local pod subnet but
// behind a Peer without a tunnel: the address of a pod that has moved to that Peer.
func (p *podNetworks) aside(peer state.Key, prefix netip.Prefix) {
	host := podAddress(p.s, ipam.Host, prefix.Addr().Is4())
	if !host.IsValid() || !prefix.IsSingleIP() || !isPods(p.s, prefix.Addr()) || isConfigured(p.s, prefix, true) {
		return
	}
	p.v.routes.add(datapath.RouteName(rowOf(peer, "switch "+prefix.String())), datapath.Route{
		Prefix: prefix, Switch: true, NextHops: []datapath.NextHop{{Via: host, Device: p.device(), Weight: 1}},
	})
}

// tunnels adds the gateways' addresses to tunnel devices, so that packets which the switch itself
// sends through tunnels have a source address in the pod network, as peers expect.
func (p *podNetworks) tunnels() {
	var own []netip.Prefix
	for _, g := range p.addresses(ipam.Gateway) {
		own = append(own, netip.PrefixFrom(g.Addr(), g.Addr().BitLen()))
	}
	for o := range p.s.After(state.KindTunnel, "") {
		p.v.links.add(datapath.LinkName(rowOf(o.Key, "addresses")), datapath.Link{Device: o.Value.(*state.Tunnel).Device, Switch: true, Addresses: own})
	}
}

// isConfigured reports whether a configured Route replaces the route to a prefix that we would add.
func isConfigured(s *state.Snapshot, p netip.Prefix, inSwitch bool) bool {
	for o := range s.After(state.KindRoute, "") {
		if r := o.Value.(*state.Route); r.Prefix == p && decides(r, inSwitch) {
			return true
		}
	}
	return false
}

// decides reports whether a Route replaces the route to its prefix that we would add in the switch
// or on the host: it does if it has the kernel's default metric.
func decides(r *state.Route, inSwitch bool) bool {
	return r.Switch == inSwitch && r.Peer == "" && (r.Metric == 0 || r.Metric == defaultMetric6 && r.Prefix.Addr().Is6())
}

// defaultMetric6 is the metric that the kernel gives an IPv6 route without a configured metric.
const defaultMetric6 = 1024

// uplinksOf returns the devices through which packets leave the node: the devices of Interfaces
// with the role uplink, except the link between host and switch. It includes the names by which
// rules still match these devices: no packet may leave untranslated while a device is being
// renamed.
func (n *Node) uplinksOf(s *state.Snapshot) (devices []string) {
	d, telemetry := n.opts.Devices, n.opts.Plane.Telemetry()
	for o := range s.After(state.KindInterface, "") {
		i := o.Value.(*state.Interface)
		if i.Role != datapath.RoleUplink {
			continue
		}
		is, _ := telemetry.PortState(datapath.PortName(o.Name))
		names := []string{i.Device, is.RuleName}
		if i.Address.IsValid() {
			// Include both the device that has the programs, even if the address no longer exists,
			// and the device that will get them.
			names = []string{is.RuleName, is.Device, telemetry.DeviceOf(i.Address, i.Switch)}
		}
		for _, device := range names {
			if device != "" && device != d.Host && device != d.Switch && !slices.Contains(devices, device) {
				devices = append(devices, device)
			}
		}
	}
	return devices
}

// uplinksChanged reports whether addresses that select uplinks have moved to other devices.
func (n *Node) uplinksChanged(s *state.Snapshot) bool {
	if len(s.PodNetworks()) == 0 {
		return false
	}
	before := n.uplinks.Load()
	return before == nil || !slices.Equal(n.uplinksOf(s), *before)
}

// masquerade is the priority of pod networks' masquerade rules: all other NAT rules come first.
const masquerade = math.MaxInt32

// hasPodRules reports whether these changes require new NAT rules for pod networks.
func hasPodRules(s *state.Snapshot, changed []state.Key) bool {
	networks, others := false, false
	for _, k := range changed {
		networks = networks || k.Kind == state.KindPodNetwork
		others = others || k.Kind == state.KindInterface || k.Kind == state.KindPeer || k.Kind == state.KindRoute
	}
	return networks || others && len(s.PodNetworks()) > 0
}

// podNAT returns, for each PodNetwork, the rules that translate its pods' connections to the node's
// address: connections that leave through an uplink, except connections to local or remote pods and
// to excepted prefixes.
func podNAT(s *state.Snapshot, uplinks []string) map[state.Key]map[datapath.NATName]datapath.NAT {
	derived, networks := map[state.Key]map[datapath.NATName]datapath.NAT{}, s.PodNetworks()
	if len(uplinks) == 0 {
		return derived
	}
	var pods []netip.Prefix
	for _, o := range networks {
		pods = append(pods, o.Value.(*state.PodNetwork).Subnets...)
	}
	peers, _ := s.Peers()
	for o := range s.After(state.KindPeer, "") {
		pods = append(pods, peers[o.Name].Prefixes...)
	}
	for _, o := range networks {
		v := o.Value.(*state.PodNetwork)
		if !v.Masquerade {
			continue
		}
		rules := map[datapath.NATName]datapath.NAT{}
		for _, subnet := range v.Subnets {
			is4, what := subnet.Addr().Is4(), "ipv6"
			if is4 {
				what = "ipv4"
			}
			others := without(everything(is4), slices.Concat(pods, v.Except))
			if len(others) == 0 {
				continue // the whole subnet is excepted
			}
			rules[datapath.NATName(rowOf(o.Key, what))] = datapath.NAT{
				Type: datapath.Masquerade, Priority: masquerade,
				Match: datapath.Match{Source: append([]netip.Prefix{subnet}, roamingPrefixes(s, o.Name, is4)...), Destination: others, Out: uplinks},
			}
		}
		derived[o.Key] = rules
	}
	return derived
}

// everything returns the prefix that contains all addresses of a family.
func everything(is4 bool) netip.Prefix {
	if is4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// without returns, in order, the prefixes that together cover p except for the prefixes in out.
func without(p netip.Prefix, out []netip.Prefix) []netip.Prefix {
	overlaps := false
	for _, o := range out {
		if !o.Overlaps(p) {
			continue
		}
		if o.Bits() <= p.Bits() {
			return nil
		}
		overlaps = true
	}
	if !overlaps {
		return []netip.Prefix{p}
	}
	low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	b := p.Addr().AsSlice()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	high, _ := netip.AddrFromSlice(b)
	return append(without(low, out), without(netip.PrefixFrom(high, p.Bits()+1), out)...)
}

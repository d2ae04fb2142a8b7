// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// world is the state of the node with which conditions compare objects.
type world struct {
	opts     *Options
	revision uint64                  // revision of the snapshot from which the indexes below are made
	devices  map[string][]attachment // attachments by device name
	renamed  map[string]attachment   // by the current names of devices that match rules by a different name
	bridges  map[string]state.Key    // Bridges and PodNetworks, by the names of their devices
	routers  [2]int                  // number of attached host devices with an address, by family

	forwarding [2]datapath.Forwarding        // forwarding settings of the host and of the switch
	found      [2]map[string]datapath.Device // devices of the host and of the switch; nil: unknown
	networks   [2]map[string][]netip.Prefix  // connected networks; read only if there are PodNetworks
	// unattached returns the Endpoints whose ports are not attached.
	unattached func() map[datapath.EndpointName]reconcile.Status
	ways       *hopCache
	reach      reach
}

// attachment is a reason why the programs are attached to a device.
type attachment struct {
	object   state.Key
	port     datapath.PortName
	inSwitch bool
	status   func() (reconcile.Status, bool)
	// matches is the name by which rules match the device, and now is the device's current name;
	// empty: both are the name under which the attachment is listed.
	matches, now string
}

// readWorld reads the state of the node; before is the previous state, nil at first.
func readWorld(opts *Options, before *world) *world {
	s := opts.Store.Snapshot()
	w := &world{opts: opts, ways: newHopCache(opts.Telemetry)}
	telemetry := opts.Telemetry
	for netns, inSwitch := range []bool{false, true} {
		w.forwarding[netns], w.found[netns] = telemetry.Forwarding(inSwitch), telemetry.Devices(inSwitch)
		if len(s.PodNetworks()) > 0 && (!inSwitch || opts.HostDevice != "") {
			w.networks[netns] = telemetry.Networks(inSwitch)
		}
	}
	w.index(s)
	var last reach
	if before != nil {
		last = before.reach
	}
	w.reach = readReach(opts, s, last)
	w.readTargets(s, &last)
	return w
}

// equal reports whether those parts that can only be read from the node are unchanged.
func (w *world) equal(before *world) bool {
	return before != nil && reflect.DeepEqual(w.forwarding, before.forwarding) && w.routers == before.routers && reflect.DeepEqual(w.found, before.found) &&
		reflect.DeepEqual(w.networks, before.networks) &&
		reflect.DeepEqual(w.reach.problems, before.reach.problems)
}

// index records which objects attach the programs to which devices.
func (w *world) index(s *state.Snapshot) {
	w.revision = s.Revision
	w.unattached = sync.OnceValue(func() map[datapath.EndpointName]reconcile.Status { return w.endpointsUnattached(s) })
	w.devices, w.renamed, w.bridges = map[string][]attachment{}, map[string]attachment{}, map[string]state.Key{}
	w.routers = [2]int{}
	add := func(device string, a attachment) {
		if device != "" {
			w.devices[device] = append(w.devices[device], a)
		}
	}
	for o := range s.After(state.KindInterface, "") {
		w.addInterface(o, add)
	}
	for o := range s.After(state.KindEndpoint, "") {
		name := datapath.EndpointName(o.Name)
		add(o.Value.(*state.Endpoint).Device, attachment{object: o.Key, port: name.Port(), inSwitch: true,
			status: func() (reconcile.Status, bool) { return w.opts.EndpointStatus(name) }})
	}
	for o := range s.After(state.KindTunnel, "") {
		name := datapath.TunnelName(o.Name)
		add(o.Value.(*state.Tunnel).Device, attachment{object: o.Key, inSwitch: true,
			status: func() (reconcile.Status, bool) { return w.opts.TunnelStatus(name) }})
	}
	for o := range s.After(state.KindBridge, "") {
		b := o.Value.(*state.Bridge)
		w.bridges[b.Device] = o.Key
		for name, port := range state.BridgePorts(o.Name, b, w.opts.SwitchDevice) {
			add(port.Device, w.ofPort(o.Key, name, true))
		}
	}
	for _, o := range s.PodNetworks() {
		w.bridges[o.Value.(*state.PodNetwork).Bridge] = o.Key
		if w.isSplit() {
			add(w.opts.HostDevice, w.ofPort(o.Key, state.PodPortHost, false))
			add(w.opts.SwitchDevice, w.ofPort(o.Key, state.PodPortSwitch, true))
		}
	}
}

func (w *world) ofPort(object state.Key, name datapath.PortName, inSwitch bool) attachment {
	return attachment{object: object, port: name, inSwitch: inSwitch, status: func() (reconcile.Status, bool) { return w.opts.PortStatus(name) }}
}

func (w *world) addInterface(o *state.Object, add func(string, attachment)) {
	v, name := o.Value.(*state.Interface), datapath.PortName(o.Name)
	is, known := w.opts.Telemetry.PortState(name)
	device := v.Device
	if v.Address.IsValid() {
		device = is.Device
	}
	a := w.ofPort(o.Key, name, v.Switch)
	if is.RuleName != "" && (is.Renamed != "" || is.RuleName != device) {
		a.matches, a.now = is.RuleName, cmp.Or(is.Renamed, is.Device)
		w.renamed[a.now] = a
		if a.matches != device {
			add(a.matches, a)
		}
	}
	add(device, a)
	if !known || v.Switch && w.opts.HostDevice != "" {
		return
	}
	for family, is4 := range []bool{true, false} {
		if addressed(is.Addresses, is4) {
			w.routers[family]++
		}
	}
}

// isBridged reports whether packets that match m may be bridged, so that they need no forwarding.
func (w *world) isBridged(m *datapath.Match) bool {
	if len(m.In)+len(m.Out) == 0 {
		return len(w.bridges) > 0
	}
	return slices.ContainsFunc(slices.Concat(m.In, m.Out), func(device string) bool {
		return slices.ContainsFunc(w.devices[device], func(a attachment) bool { return a.inSwitch })
	})
}

func devicesOf(m *datapath.Match) []string { return slices.Concat(m.In, m.Out) }

// isOwn reports whether a prefix is one address of the node.
func (w *world) isOwn(p netip.Prefix) bool { return p.IsSingleIP() && w.isLocal(p.Addr()) }

func (w *world) isLocal(a netip.Addr) bool {
	telemetry := w.opts.Telemetry
	return telemetry.DeviceOf(a, false) != "" || telemetry.DeviceOf(a, true) != ""
}

// families returns the address families of a match: the families of its addresses or, without
// addresses, the families in which the node has addresses on two attached devices.
func (w *world) families(m *datapath.Match, to []netip.Prefix) (needed [2]bool) {
	for _, p := range slices.Concat(m.Source, m.Destination, to) {
		needed[familyOf(p.Addr())] = true
	}
	if needed == [2]bool{} {
		needed = w.gateway()
	}
	if needed == [2]bool{} && !w.forwarding[0].IPv6 {
		needed[0] = true // then either family would be sufficient
	}
	return needed
}

// gateway returns the families in which the host may forward from device to device.
func (w *world) gateway() [2]bool { return [2]bool{w.routers[0] >= 2, w.routers[1] >= 2} }

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

var forwardingKeys = [2]struct{ all, device string }{
	{"net.ipv4.ip_forward", "net.ipv4.conf.%s.forwarding"},
	{"net.ipv6.conf.all.forwarding", "net.ipv6.conf.%s.forwarding"},
}

// notForwarded returns which kernel parameter keeps the host from forwarding packets of the
// families, including the parameters of the given devices.
func (w *world) notForwarded(families [2]bool, devices []string) condition {
	return w.forwardingOff(0, families, devices)
}

// inSwitchOff is like notForwarded, for the switch.
func (w *world) inSwitchOff(families [2]bool, devices ...string) condition {
	return w.forwardingOff(1, families, devices)
}

// netnsOf returns the index in world.forwarding, either the switch's or the host's.
func netnsOf(inSwitch bool) int {
	if inSwitch {
		return 1
	}
	return 0
}

func (w *world) forwardingOff(netns int, families [2]bool, devices []string) condition {
	f, who, command := &w.forwarding[netns], "the host", "sysctl"
	if netns == 1 && w.opts.SwitchNamespace != "" {
		who, command = "the switch", "ip netns exec "+w.opts.SwitchNamespace+" sysctl"
	}
	for family, on := range [2]bool{f.IPv4, f.IPv6} {
		if !families[family] {
			continue
		}
		key, what := forwardingKeys[family], [2]string{"IPv4", "IPv6"}[family]
		if !on {
			return condition{message: fmt.Sprintf("%s is 0, so %s forwards no %s packet: run %s -w %s=1", key.all, who, what, command, key.all)}
		}
		off := [2][]string{f.Off4, f.Off6}[family]
		for _, device := range devices {
			if slices.Contains(off, device) {
				name := fmt.Sprintf(key.device, strings.ReplaceAll(device, ".", "/"))
				return condition{message: fmt.Sprintf("%s is 0, so %s forwards no %s packet that arrives on %s: run %s -w %s=1",
					name, who, what, device, command, name)}
			}
		}
	}
	return condition{}
}

func (w *world) ofPodNetwork(v *state.PodNetwork) condition {
	var families [2]bool
	for _, subnet := range v.Subnets {
		families[familyOf(subnet.Addr())] = true
	}
	overlap := w.overlaps(v)
	if !overlap.isMet() {
		return overlap
	}
	devices := []string{v.Bridge}
	if w.isSplit() {
		if is := w.inSwitchOff(families, v.Bridge, w.opts.SwitchDevice); is.message != "" {
			return is
		}
		devices = []string{w.opts.HostDevice}
	}
	if is := w.notForwarded(families, devices); is.message != "" {
		return is
	}
	return overlap
}

// overlaps returns a condition if a subnet overlaps the network of a device other than the pods'
// devices. If that network is within the subnet, packets to its addresses leave through that device
// instead of reaching pods. If the network is larger, pods are reached, but other hosts with
// addresses in the subnet are not.
func (w *world) overlaps(v *state.PodNetwork) (is condition) {
	own := [2]string{w.opts.HostDevice, w.opts.SwitchDevice}
	for netns, networks := range w.networks {
		for _, device := range slices.Sorted(maps.Keys(networks)) {
			if device == v.Bridge && (netns == 1 || !w.isSplit()) || device == own[netns] {
				continue
			}
			for _, network := range networks[device] {
				i := slices.IndexFunc(v.Subnets, network.Overlaps)
				if i < 0 || w.isTunnel(device) {
					continue
				}
				message := fmt.Sprintf("subnet %s overlaps %s, the network of device %q", v.Subnets[i], network, device)
				if network.Bits() >= v.Subnets[i].Bits() {
					return condition{message: message + ", so packets to pods leave through that device: choose another subnet, or remove the address from the device"}
				}
				is = condition{ready: true, quiet: true, message: message + ": hosts on that network with addresses in the subnet are unreachable"}
			}
		}
	}
	return is
}

// isTunnel reports whether a device belongs to a Tunnel. Such a device has addresses in pod
// networks.
func (w *world) isTunnel(device string) bool {
	return slices.ContainsFunc(w.devices[device], func(a attachment) bool { return a.object.Kind == state.KindTunnel })
}

func (w *world) ofInterface(name string, v *state.Interface) condition {
	is, ok := w.opts.Telemetry.PortState(datapath.PortName(name))
	if !ok {
		return condition{}
	}
	quiet := v.Role != datapath.RoleUplink
	switch is.Link {
	case datapath.LinkDown:
		return condition{message: w.opts.linkIsDown(is.Device, v.Switch), quiet: quiet}
	case datapath.LinkNoCarrier:
		return condition{message: noCarrier(is.Device), quiet: quiet}
	}
	// Spanning tree blocks a port by design, but never disables a port that has a link.
	device := cmp.Or(is.RuleName, is.Device)
	blocked := w.notBridged(device, v.Switch)
	blocked.quiet = true
	blocked.ready = w.found[netnsOf(v.Switch && w.isSplit())][device].Bridging != datapath.BridgingDisabled
	return blocked
}

// ofBridge checks that the programs are attached to all ports, because rules must see bridged
// packets, and checks the links of the ports.
func (w *world) ofBridge(k state.Key, v *state.Bridge) condition {
	ports := state.BridgePorts(k.Name, v, w.opts.SwitchDevice)
	for name, port := range ports {
		is := w.unseen(port.Device, false)
		if is.isMet() {
			continue
		}
		if s, ok := w.opts.PortStatus(name); ok && s.State != reconcile.Done {
			return condition{message: "rules do not see packets of port " + port.Device + ": " + s.Message, untried: s.IsUntried()}
		}
		return condition{message: "rules do not see packets of port " + port.Device + " yet", untried: true}
	}
	return w.ofBridgeLinks(ports)
}

func (w *world) ofRoute(v *state.Route) condition {
	reach := w.reach.ofRoute(v)
	if v.Peer != "" {
		if s, ok := w.opts.PeerStatus(datapath.PeerName(v.Peer)); ok && s.State != reconcile.Done {
			return condition{message: fmt.Sprintf("the Peer %s is not Ready, see llcli get peer %[1]s", v.Peer), untried: s.IsUntried()}
		}
		if reach = w.reach.problems["Peer/"+v.Peer]; reach.message != "" {
			reach.message = "Peer/" + v.Peer + ": " + reach.message
		}
	}
	if !reach.isMet() {
		return reach
	}
	family := familyOf(v.Prefix.Addr())
	var families [2]bool
	families[family] = true
	inSwitch := v.Switch && w.opts.HostDevice != ""
	if v.Type == datapath.RouteUnicast && (inSwitch || w.gateway()[family]) {
		if is := w.forwardingOff(netnsOf(inSwitch), families, nil); is.message != "" {
			return is
		}
	}
	if is := w.notRouted(v, family, inSwitch); !is.isMet() || reach.message == "" {
		return is
	}
	return reach
}

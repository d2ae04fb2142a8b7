// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// add creates an interface. The caller may give up at any moment; in that case, or after an error,
// everything created so far is removed.
func (s *Server) add(ctx context.Context, p *api.CNIParams, c *conf) (_ json.RawMessage, err *api.Error) {
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	network, ok := s.Network(c.Network)
	if !ok {
		return nil, unavailable("PodNetwork/%s (network) does not exist", c.Network)
	}
	if err := c.checkLengths(&network); err != nil {
		return nil, err
	}
	release, err := s.hold(ctx, ownerOf(p))
	if err != nil {
		return nil, err
	}
	defer release()
	if err := s.clear(ctx, p); err != nil {
		return nil, err
	}
	if err := s.checkNodePorts(ctx, c.RuntimeConfig.PortMappings); err != nil {
		return nil, err
	}
	if err := s.checkMAC(ctx, c); err != nil {
		return nil, err
	}
	r, err := s.begin(ctx, p, c, &network)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	defer func() {
		if err == nil {
			return
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if uerr := s.remove(undo, r); uerr != nil {
			s.Log.Error("a partly added pod could not be removed; its DEL will try again",
				slog.String("container", r.ContainerID), slog.String("interface", r.IfName), slog.Any("error", uerr))
		}
	}()
	if err := s.address(ctx, p, c, &network, r); err != nil {
		return nil, err
	}
	addressed := time.Since(begin)
	if err := s.connect(ctx, r); err != nil {
		return nil, c.blame(err)
	}
	s.Log.Debug("pod attached", slog.String("object", r.Object), slog.String("device", r.Device),
		slog.Duration("addressed", addressed), slog.Duration("took", time.Since(begin)))
	return r.result(c).encode(c.CNIVersion), nil
}

// clear prepares an ADD: it carries out a queued DEL of the interface, and removes the remains of
// an unfinished ADD.
func (s *Server) clear(ctx context.Context, p *api.CNIParams) *api.Error {
	o := ownerOf(p)
	if err := s.drainOne(ctx, o); err != nil {
		return err
	}
	s.mu.Lock()
	old := s.pods[o]
	s.mu.Unlock()
	if old == nil {
		return nil
	}
	if old.Done {
		return coded(api.ReasonConflict, api.CNIEnvironmentInvalid, "CNI_CONTAINERID, CNI_IFNAME: %s of container %s already exists, as %s: run DEL first", o.IfName, o.ContainerID, old.Device)
	}
	return s.remove(ctx, old)
}

// begin reserves a device name and host ports for an interface. If a pod with a queued DEL still
// holds one of the ports, that DEL is carried out first.
func (s *Server) begin(ctx context.Context, p *api.CNIParams, c *conf, n *Network) (*record, *api.Error) {
	r := s.newRecord(p, c, n)
	for {
		holder, port := s.register(r)
		if holder == nil {
			return r, nil
		}
		if !s.queued(holder.owner()) {
			return nil, portTaken(holder, port)
		}
		if err := s.lockAndDrain(ctx, holder.owner()); err != nil {
			return nil, err
		}
	}
}

// newRecord returns the initial record of an interface, without its device.
func (s *Server) newRecord(p *api.CNIParams, c *conf, n *Network) *record {
	o := ownerOf(p)
	r := &record{
		ContainerID: p.ContainerID, IfName: p.IfName, Name: c.Name, Network: c.Network, Netns: p.Netns, Boot: s.Addresses.Boot(),
		Pod: c.podName, Namespace: c.podSpace, UID: c.podUID, Object: objectName(o, c.podSpace, c.podName), Bridge: n.Bridge, MTU: c.MTU,
		DNS: c.DNS, Ports: c.RuntimeConfig.PortMappings,
	}
	if r.MTU == 0 {
		r.MTU = n.MTU
	}
	r.RouteMTU = n.RouteMTU
	if b := c.RuntimeConfig.Bandwidth; b != nil {
		r.Ingress = datapath.PodRate{Rate: b.IngressRate, Burst: b.IngressBurst}
		r.Egress = datapath.PodRate{Rate: b.EgressRate, Burst: b.EgressBurst}
	}
	return r
}

// register reserves the lowest free device name, unless another interface already has a host port
// that r needs: in that case, it returns that interface and the port.
func (s *Server) register(r *record) (holder *record, port string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if holder, port = s.portHolder(r); holder != nil {
		return holder, port
	}
	if len(s.pods) == 0 {
		s.Wake()
		select {
		case s.opened <- struct{}{}:
		default:
		}
	}
	s.pods[r.owner()] = r
	s.name(r, 1)
	return nil, ""
}

// name gives a link the lowest free number; least is the minimum. The caller holds s.mu.
func (s *Server) name(r *record, least int) {
	for i := least; ; i++ {
		r.Device = datapath.PodDevicePrefix + strconv.Itoa(i)
		if _, taken := s.names[r.Device]; !taken && !s.Named(r.Device) {
			s.names[r.Device] = r.owner()
			return
		}
	}
}

// rename gives a link the next number, because an external device has the link's name.
func (s *Server) rename(r *record) error {
	number, err := strconv.Atoi(strings.TrimPrefix(r.Device, datapath.PodDevicePrefix))
	if err != nil {
		return err // the device was not named by name
	}
	s.mu.Lock()
	delete(s.names, r.Device)
	s.name(r, number+1)
	s.mu.Unlock()
	return s.save(r)
}

// address assigns the pod's IP addresses, routes and MAC address.
func (s *Server) address(ctx context.Context, p *api.CNIParams, c *conf, n *Network, r *record) *api.Error {
	if c.ipam.Type != "" {
		if err := s.addressByPlugin(ctx, p, c, n, r); err != nil {
			return err
		}
	} else {
		lease, err := s.Addresses.Allocate(ctx, ipam.Request{
			Network: c.Network, Owner: r.owner(), Addresses: c.ips, Netns: r.Netns, Pod: podOf(r),
		})
		if err != nil {
			return addressError(err, c.ipsFrom)
		}
		for _, a := range lease.Addresses {
			r.Addresses, r.Gateways = append(r.Addresses, a), append(r.Gateways, ipam.Gateway(a))
		}
		r.Routes = c.ipam.Routes
	}
	if len(r.Routes) == 0 {
		r.Routes = defaults(n, r)
	}
	for i := range r.Routes {
		if r.Routes[i].GW == nil {
			r.Routes[i].GW = gatewayFor(n, r, r.Routes[i].Dst)
		}
	}
	mac := c.mac
	if mac == nil {
		mac = macOf(r)
	}
	r.MAC = mac.String()
	if err := s.save(r); err != nil {
		return failed("%v", err)
	}
	return nil
}

func podOf(r *record) string {
	if r.Pod == "" {
		return ""
	}
	return r.Namespace + "/" + r.Pod
}

// defaults are the routes of a pod without configured routes: one default route for each family. A
// route is omitted if the pod has that route through another interface.
func defaults(n *Network, r *record) (list []route) {
	for _, all := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		if gw := gatewayFor(n, r, all); gw != nil {
			list = append(list, route{Dst: all, GW: gw, spare: true})
		}
	}
	return list
}

// gatewayFor returns the gateway for a route to dst for which no gateway is configured: the gateway
// of an address of the same family, or else the switch's address. It returns nil if there is no
// gateway.
func gatewayFor(n *Network, r *record, dst netip.Prefix) *netip.Addr {
	for i, a := range r.Addresses {
		if gw := r.Gateways[i]; gw.IsValid() && a.Addr().Is4() == dst.Addr().Is4() {
			return &gw
		}
	}
	for _, a := range r.Addresses {
		for _, subnet := range n.Subnets {
			if a.Addr().Is4() == dst.Addr().Is4() && subnet.Contains(a.Addr()) {
				gw := ipam.Gateway(subnet)
				return &gw
			}
		}
	}
	return nil
}

// macOf returns the MAC address of a pod. It is derived from an IP address, so that neighbours that
// have an entry for the previous user of the address reach this pod. If there is no suitable
// address, it is derived from the container.
func macOf(r *record) net.HardwareAddr {
	if len(r.Addresses) > 0 && r.Addresses[0].Addr().Is4() {
		a := r.Addresses[0].Addr().As4()
		return net.HardwareAddr{0x0a, 0x4c, a[0], a[1], a[2], a[3]}
	}
	text := r.owner().String()
	if len(r.Addresses) > 0 {
		text = r.Addresses[0].Addr().String()
	}
	sum := sha256.Sum256([]byte(text))
	mac := slices.Clone(net.HardwareAddr(sum[:6]))
	mac[0] = mac[0]&^0x01 | 0x02 // unicast, and locally administered
	return mac
}

// connect creates the link of the pod, and opens it for packets once its source guard is in force.
func (s *Server) connect(ctx context.Context, r *record) *api.Error {
	step := time.Now()
	note := func(what string) {
		s.Log.Debug("step", slog.String("what", what), slog.Duration("took", time.Since(step)))
		step = time.Now()
	}
	defer s.opens(r)()
	link, err := s.makeLink(ctx, r)
	if err != nil {
		return err
	}
	note("made")
	r.MTU = link.MTU
	r.keepRoutes(link)
	objects, err := s.withGroups(ctx, r.hostPorts())
	if err != nil {
		return err
	}
	objects = append(objects, r.endpoint())
	refs := refsOf(objects)
	revision, err := s.changes.do(ctx, objects, nil)
	if err != nil {
		return objectError(err)
	}
	note("committed")
	if err := s.stillWithin(r); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := s.Objects.Ready(bounded, revision, refs); err != nil {
		return objectError(err)
	}
	note("ready")
	if err := s.Links.Open(ctx, link); err != nil {
		return linkError(err)
	}
	note("open")
	if err := context.Cause(ctx); err != nil {
		return unavailable("the caller no longer waits: %v", err)
	}
	r.Done = true
	if err := s.save(r); err != nil {
		r.Done = false
		return failed("%v", err)
	}
	return nil
}

// stillWithin rejects an interface whose network has changed since the interface got its addresses.
// From this point, the network keeps these subnets, because an Endpoint uses them.
func (s *Server) stillWithin(r *record) *api.Error {
	n, _ := s.Network(r.Network)
	for _, a := range r.Addresses {
		in := func(subnet netip.Prefix) bool { return subnet.Contains(a.Addr()) }
		if r.Plugin == nil && !slices.ContainsFunc(n.Subnets, in) {
			return unavailable("PodNetwork/%s no longer has a subnet that contains %s", r.Network, a.Addr())
		}
	}
	return nil
}

// makeLink creates the link of the pod.
func (s *Server) makeLink(ctx context.Context, r *record) (*datapath.PodLink, *api.Error) {
	for {
		link := r.link()
		err := s.Links.Make(ctx, link)
		if err == nil {
			return link, nil
		}
		if !errors.Is(err, datapath.ErrNameTaken) || ctx.Err() != nil {
			return nil, linkError(err)
		}
		s.Log.Debug("the next name of a device is tried", slog.String("container", r.ContainerID), slog.Any("error", err))
		if err := s.rename(r); err != nil {
			return nil, failed("%v", err)
		}
	}
}

func refsOf(objects []api.Object) []api.ObjectRef {
	refs := make([]api.ObjectRef, len(objects))
	for i, o := range objects {
		refs[i] = api.ObjectRef{Kind: o.Kind, Name: o.Name}
	}
	return refs
}

// objectError converts an error about the desired state, or in an object's status, to an error for
// the runtime.
func objectError(err *api.Error) *api.Error {
	e := *err
	d := api.ErrorData{Reason: err.Reason()}
	if e.Data != nil {
		d = *e.Data
	}
	switch d.Reason {
	case api.ReasonUnavailable, api.ReasonTimeout, api.ReasonCapacity:
		d.CNICode = api.CNITryAgain
	default:
		d.CNICode = api.CNIFailed
	}
	e.Data = &d
	return &e
}

// joined combines errors, which may be nil.
func joined(errs ...error) *api.Error {
	if err := errors.Join(errs...); err != nil {
		return failed("%v", err)
	}
	return nil
}

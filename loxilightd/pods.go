// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
	"github.com/loxilight/loxilight/loxilightd/internal/pods"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// openPods opens the stores of pods' addresses and links, but does not apply anything yet.
func (d *loxilightd) openPods() error {
	log := d.log.With(slog.String("part", "pods"))
	var err error
	d.addresses, err = ipam.Open(ipam.Options{
		Path: filepath.Join(d.cfg.StateDir, "addresses"), Networks: d.podSubnets,
		Used: d.addressUsed, Elsewhere: d.addressElsewhere,
		Live: func() []ipam.Lease { return pods.Leases(d.cfg.StateDir) }, Log: log,
	})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, d.addresses.Close)
	d.podLinks, err = backends.OpenPods(d.cfg.Backend, planeConfig(d.cfg), log)
	return err
}

// newPods returns the server for container runtimes' commands.
func (d *loxilightd) newPods() *pods.Server {
	return pods.New(pods.Options{
		Links: d.podLinks, Objects: d.control.ObjectsOf(api.OwnerCNI), Addresses: d.addresses, Network: d.podNetwork,
		Named:          func(device string) bool { return d.store.NamesDevice(device, api.OwnerCNI) },
		VerifyEndpoint: d.node.VerifyEndpoint,
		ExpectRemoval:  d.node.ExpectRemoval,
		Reserved:       d.cfg.ReservedHostPorts, TunnelPort: d.isTunnelPort, Plugins: d.cfg.IPAMPlugins,
		StateDir: d.cfg.StateDir, Log: d.log.With(slog.String("part", "pods")),
	})
}

// isTunnelPort reports whether port is the UDP port of a Tunnel.
func (d *loxilightd) isTunnelPort(port uint16) bool {
	for o := range d.store.Snapshot().After(state.KindTunnel, "") {
		if t := o.Value.(*state.Tunnel); port != 0 && t.Port == port {
			return true
		}
	}
	return false
}

// podSubnets returns the subnets of the desired pod networks.
func (d *loxilightd) podSubnets() map[string][]netip.Prefix {
	subnets := map[string][]netip.Prefix{}
	for _, o := range d.store.Snapshot().PodNetworks() {
		subnets[o.Name] = o.Value.(*state.PodNetwork).Subnets
	}
	return subnets
}

// addressElsewhere reports whether a is a single-address prefix of a Peer: the pod with that
// address has moved there.
func (d *loxilightd) addressElsewhere(a netip.Addr) bool {
	peers, _ := d.store.Snapshot().Peers()
	for _, peer := range peers {
		if slices.Contains(peer.Prefixes, netip.PrefixFrom(a, a.BitLen())) {
			return true
		}
	}
	return false
}

// addressUsed returns the object that has an address, or that will have it again after a rollback
// of the pending change: a configured Endpoint, the Endpoint of a pod whose address comes from
// another source, or a Bridge.
func (d *loxilightd) addressUsed(a netip.Addr) (string, bool) {
	holder, used := d.store.AddressHolder(a)
	return holder.String(), used
}

// podNetwork returns the pod network with the given name.
func (d *loxilightd) podNetwork(name string) (pods.Network, bool) {
	o, ok := d.store.Snapshot().Get(state.Key{Kind: state.KindPodNetwork, Name: name})
	if !ok {
		return pods.Network{}, false
	}
	v := o.Value.(*state.PodNetwork)
	device, way := d.node.PodMTUs()
	return pods.Network{Bridge: v.Bridge, Subnets: v.Subnets, MTU: device, RouteMTU: way}, true
}

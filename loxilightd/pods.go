// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
	"github.com/loxilight/loxilight/loxilightd/internal/pods"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// openPods opens what pods have: their addresses and their links. It carries out nothing
// yet.
func (d *loxilightd) openPods() error {
	log := d.log.With(slog.String("part", "pods"))
	var err error
	d.addresses, err = ipam.Open(ipam.Options{
		Path: filepath.Join(d.cfg.StateDir, "addresses"), Networks: d.podSubnets,
		Live: func() []ipam.Lease { return pods.Leases(d.cfg.StateDir) }, Log: log,
	})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, d.addresses.Close)
	d.podLinks, err = backends.OpenPods(d.cfg.Backend, planeConfig(d.cfg), log)
	return err
}

// newPods returns what carries out the commands of container runtimes.
func (d *loxilightd) newPods() *pods.Server {
	return pods.New(pods.Options{
		Links: d.podLinks, Objects: d.control.ObjectsOf(api.OwnerCNI), Addresses: d.addresses, Network: d.podNetwork,
		StateDir: d.cfg.StateDir, Log: d.log.With(slog.String("part", "pods")),
	})
}

// podSubnets returns the subnets of the pod networks as they are wanted now.
func (d *loxilightd) podSubnets() map[string][]netip.Prefix {
	subnets := map[string][]netip.Prefix{}
	for _, o := range d.store.Snapshot().PodNetworks() {
		subnets[o.Name] = o.Value.(*state.PodNetwork).Subnets
	}
	return subnets
}

// podNetwork returns the network of a name that pods can be in.
func (d *loxilightd) podNetwork(name string) (pods.Network, bool) {
	o, ok := d.store.Snapshot().Get(state.Key{Kind: state.KindPodNetwork, Name: name})
	if !ok {
		return pods.Network{}, false
	}
	v := o.Value.(*state.PodNetwork)
	device, way := d.node.PodMTUs()
	return pods.Network{Bridge: v.Bridge, Subnets: v.Subnets, MTU: device, RouteMTU: way}, true
}

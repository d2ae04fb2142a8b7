// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
)

// checkNodePorts rejects host ports that the node cannot give to a pod: ports on an address that is
// not the node's, reserved ports, and ports on which the node itself listens.
func (s *Server) checkNodePorts(ctx context.Context, list []portMapping) *api.Error {
	for i := range list {
		for _, p := range list[i].places() {
			err := s.checkReserved(p)
			if err == nil {
				err = s.checkHostIP(ctx, p)
			}
			if err == nil {
				err = s.checkListeners(ctx, p)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// checkMAC rejects the switch's own MAC address: the pod would receive other pods' frames.
func (s *Server) checkMAC(ctx context.Context, c *conf) *api.Error {
	if c.mac == nil {
		return nil
	}
	err := s.Links.CheckMAC(ctx, c.mac)
	switch {
	case errors.Is(err, datapath.ErrMACTaken):
		return badConfig(c.macFrom, "%v; request another one, or none", err)
	case err != nil:
		return failed("%v", err)
	}
	return nil
}

// checkHostIP rejects a hostIP that belongs neither to the node nor to its loopback device: the
// node would receive packets for another host.
func (s *Server) checkHostIP(ctx context.Context, p place) *api.Error {
	if p.address.IsUnspecified() {
		return nil
	}
	local, err := s.Links.IsLocal(ctx, p.address)
	if err != nil {
		return failed("addresses of the node: %v", err)
	}
	if !local {
		return badConfig("runtimeConfig.portMappings",
			"hostPort %s: hostIP %s is not an address of this node; use an address of the node, or none for all of its addresses", p, p.address)
	}
	return nil
}

func (s *Server) checkReserved(p place) *api.Error {
	for _, r := range s.Reserved {
		if int(r.First) <= p.port && p.port <= int(r.Last) {
			return badConfig("runtimeConfig.portMappings",
				"hostPort %s is reserved for the node (cni.reservedHostPorts of loxilightd.yaml); use another port", p)
		}
	}
	if s.TunnelPort != nil && p.protocol == "udp" && s.TunnelPort(uint16(p.port)) {
		return badConfig("runtimeConfig.portMappings", "hostPort %s is the port of a Tunnel; use another port", p)
	}
	return nil
}

// checkListeners rejects a port on which the node itself receives packets.
func (s *Server) checkListeners(ctx context.Context, p place) *api.Error {
	protocol, _ := datapath.ParseProtocol(p.protocol) // check accepts only valid protocols
	all, err := s.Links.Listeners(ctx, protocol, uint16(p.port))
	if err != nil {
		return failed("%v", err)
	}
	at := slices.IndexFunc(all, func(a netip.Addr) bool { return p.takes(a) })
	if at < 0 {
		return nil
	}
	return coded(api.ReasonConflict, api.CNITryAgain,
		"hostPort %s: a process on the node uses the port at %s; use another port, or stop that process", p, all[at]).
		At("", "runtimeConfig.portMappings")
}

// takes reports whether a host port would take packets from a socket that listens on an address. A
// host port on all of the node's addresses does not include loopback addresses.
func (p place) takes(a netip.Addr) bool {
	switch {
	case p.address.Is4() != a.Is4():
		return false
	case p.address.IsUnspecified():
		return !a.IsLoopback() && !a.IsMulticast()
	}
	return a.IsUnspecified() || a == p.address
}

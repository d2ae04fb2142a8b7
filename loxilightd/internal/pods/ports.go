// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
)

// portMapping maps a port of the node to a port of a pod.
type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"` // empty, 0.0.0.0 or ::: all of the node's addresses
}

func (m *portMapping) check() *api.Error {
	if m.Protocol = strings.ToLower(m.Protocol); m.Protocol == "" {
		m.Protocol = "tcp"
	}
	switch {
	case m.HostPort < 0 || m.HostPort > 65535:
		return badConfig("runtimeConfig.portMappings", "hostPort %d is not a valid port", m.HostPort)
	case m.ContainerPort < 1 || m.ContainerPort > 65535:
		return badConfig("runtimeConfig.portMappings", "containerPort %d is not a valid port", m.ContainerPort)
	case !slices.Contains([]string{"tcp", "udp", "sctp"}, m.Protocol):
		return badConfig("runtimeConfig.portMappings", "protocol %q is not one of tcp, udp, sctp", m.Protocol)
	}
	if m.HostIP != "" {
		if a, err := netip.ParseAddr(m.HostIP); err != nil || a.Zone() != "" {
			return badConfig("runtimeConfig.portMappings", "hostIP %q is not an address", m.HostIP)
		}
	}
	return nil
}

// place is a host port, with its address, that a mapping uses.
type place struct {
	port     int
	protocol string
	address  netip.Addr // unspecified: all addresses of the same family
}

// places returns the places of a mapping: none, one, or one for each family.
func (m *portMapping) places() []place {
	if m.HostPort == 0 {
		return nil
	}
	at := func(a netip.Addr) place { return place{m.HostPort, m.Protocol, a} }
	if ip, err := netip.ParseAddr(m.HostIP); err == nil { // otherwise, HostIP is empty
		return []place{at(ip.Unmap())}
	}
	return []place{at(netip.IPv4Unspecified()), at(netip.IPv6Unspecified())}
}

// overlaps reports whether a packet can match both places.
func (p place) overlaps(q place) bool {
	return p.port == q.port && p.protocol == q.protocol && p.address.Is4() == q.address.Is4() &&
		(p.address == q.address || p.address.IsUnspecified() || q.address.IsUnspecified())
}

// String returns the port in the usual notation, with its address if it has one.
func (p place) String() string {
	port := strconv.Itoa(p.port)
	if !p.address.IsUnspecified() {
		port = net.JoinHostPort(p.address.String(), port)
	}
	return port + "/" + p.protocol
}

// checkApart rejects several mappings for the same host port.
func checkApart(list []portMapping) *api.Error {
	seen := map[place]bool{}
	for _, m := range list {
		for _, p := range m.places() {
			if seen[p] {
				return badConfig("runtimeConfig.portMappings", "hostPort %d/%s is mapped twice; map it once, to a single port of the pod", m.HostPort, m.Protocol)
			}
			seen[p] = true
		}
	}
	return nil
}

// portHolder returns another interface that already has a host port that r needs, and that port.
// The caller holds s.mu.
func (s *Server) portHolder(r *record) (*record, string) {
	for _, m := range r.Ports {
		for _, wanted := range m.places() {
			for _, other := range s.pods {
				if p, ok := other.has(wanted); ok && other.owner() != r.owner() {
					return other, p.String()
				}
			}
		}
	}
	return nil, ""
}

// has returns a host port of r that overlaps wanted, if there is one.
func (r *record) has(wanted place) (place, bool) {
	for _, m := range r.Ports {
		for _, p := range m.places() {
			if p.overlaps(wanted) {
				return p, true
			}
		}
	}
	return place{}, false
}

// portTaken returns the error for an interface that needs a host port which holder already has.
func portTaken(holder *record, port string) *api.Error {
	who := "container " + holder.ContainerID
	if pod := podOf(holder); pod != "" {
		who = "pod " + pod + " (" + who + ")"
	}
	return coded(api.ReasonConflict, api.CNITryAgain, "hostPort %s belongs to %s of %s: a host port maps to one pod only; use another port, or delete that pod first",
		port, holder.IfName, who).At("", "runtimeConfig.portMappings")
}

// nodeGroups are the names of the groups that contain the node's addresses, IPv4 and IPv6.
var nodeGroups = [2]string{"cni/node-ipv4", "cni/node-ipv6"}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// ofAddress is the priority of rules for a single address of the node: they come before rules for
// all of its addresses, which have the default priority.
const ofAddress int32 = 999

// hostPorts returns the objects that map host ports to the pod: one for each port and family.
// Mappings without a host port need none. If a port occurs twice, the first mapping applies:
// checkApart prevents this, but records from older versions may contain it.
func (r *record) hostPorts() (list []api.Object) {
	seen := map[string]bool{}
	for _, m := range r.Ports {
		if m.HostPort == 0 {
			continue
		}
		for _, a := range r.Addresses {
			destination, priority := "group:"+nodeGroups[familyOf(a.Addr())], (*int32)(nil)
			name := fmt.Sprintf("%s/%s-%d-%d", r.Object, m.Protocol, m.HostPort, 4+2*familyOf(a.Addr()))
			if ip, err := netip.ParseAddr(m.HostIP); err == nil { // otherwise, HostIP is empty
				if ip = ip.Unmap(); ip.Is4() != a.Addr().Is4() {
					continue
				}
				if !ip.IsUnspecified() {
					destination, priority = ip.String(), new(ofAddress)
					name += "-" + strings.ReplaceAll(destination, ":", "-") + "-ip"
				}
			}
			if seen[name] {
				continue
			}
			seen[name] = true
			list = append(list, object(api.KindNAT, name, api.NATSpec{
				Type: "dnat", Priority: priority,
				Match: &api.Match{
					Destination: words(destination), Protocol: words(m.Protocol), Ports: words(strconv.Itoa(m.HostPort)),
				},
				To: &api.NATTarget{Addresses: words(a.Addr().String()), Ports: words(strconv.Itoa(m.ContainerPort))},
			}))
		}
	}
	return list
}

func words(w string) api.Words { return api.Words{api.Word(w)} }

// withGroups adds the groups to which the objects of an interface refer.
func (s *Server) withGroups(ctx context.Context, objects []api.Object) ([]api.Object, *api.Error) {
	if len(objects) == 0 {
		return nil, nil
	}
	groups, err := s.groups(ctx)
	if err != nil {
		return nil, failed("addresses of the node: %v", err)
	}
	return append(groups, objects...), nil
}

// groups returns the groups that contain the node's current addresses.
func (s *Server) groups(ctx context.Context) ([]api.Object, error) {
	addresses, err := s.Links.NodeAddresses(ctx)
	if err != nil {
		return nil, err
	}
	members := [2][]api.Member{{}, {}}
	slices.SortFunc(addresses, netip.Addr.Compare)
	for _, a := range addresses {
		f := familyOf(a)
		members[f] = append(members[f], api.Member{Text: a.String()})
	}
	var list []api.Object
	for f, name := range nodeGroups {
		list = append(list, object(api.KindAddressGroup, name, api.AddressGroupSpec{Members: members[f]}))
	}
	return list, nil
}

// followAddresses updates the groups that contain the node's addresses if the addresses have
// changed.
func (s *Server) followAddresses(ctx context.Context) {
	if !s.hasPorts() {
		return
	}
	now, err := s.Links.NodeAddresses(ctx)
	if slices.SortFunc(now, netip.Addr.Compare); err == nil && !slices.Equal(now, s.addresses) {
		s.refreshGroups(ctx)
		s.addresses = now
	}
}

// hasPorts reports whether a pod has host ports.
func (s *Server) hasPorts() bool {
	return slices.ContainsFunc(s.all(), func(r *record) bool { return len(r.Ports) > 0 })
}

// refreshGroups updates the groups that contain the node's addresses.
func (s *Server) refreshGroups(ctx context.Context) {
	if !s.hasPorts() {
		return
	}
	groups, err := s.groups(ctx)
	if err == nil {
		if _, refused := s.changes.do(ctx, groups, nil); refused != nil {
			err = refused
		}
	}
	if err != nil {
		s.Log.Warn("ports of the node do not follow its addresses", slog.Any("error", err))
	}
}

// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
)

// portMapping is a port of the node that leads to a port of a pod.
type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"` // empty, 0.0.0.0 or ::: every address of the node
}

func (m *portMapping) check() *api.Error {
	if m.Protocol = strings.ToLower(m.Protocol); m.Protocol == "" {
		m.Protocol = "tcp"
	}
	switch {
	case m.HostPort < 0 || m.HostPort > 65535:
		return badConfig("runtimeConfig.portMappings", "hostPort %d is no port", m.HostPort)
	case m.ContainerPort < 1 || m.ContainerPort > 65535:
		return badConfig("runtimeConfig.portMappings", "containerPort %d is no port", m.ContainerPort)
	case !slices.Contains([]string{"tcp", "udp", "sctp"}, m.Protocol):
		return badConfig("runtimeConfig.portMappings", "protocol %q is none of tcp, udp, sctp", m.Protocol)
	}
	if m.HostIP != "" {
		if _, err := netip.ParseAddr(m.HostIP); err != nil {
			return badConfig("runtimeConfig.portMappings", "hostIP %q is no address", m.HostIP)
		}
	}
	return nil
}

// nodeGroups are the names of the groups of the node's addresses, IPv4 and IPv6.
var nodeGroups = [2]string{"cni/node-ipv4", "cni/node-ipv6"}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// hostPorts are the objects that lead ports of the node to the pod: one for each port
// and family. Mappings without a port of the node ask for nothing.
func (r *record) hostPorts() (list []api.Object) {
	for _, m := range r.Ports {
		if m.HostPort == 0 {
			continue
		}
		for _, a := range r.Addresses {
			destination := "group:" + nodeGroups[familyOf(a.Addr())]
			name := fmt.Sprintf("%s/%s-%d-%d", r.Object, m.Protocol, m.HostPort, 4+2*familyOf(a.Addr()))
			if ip, err := netip.ParseAddr(m.HostIP); err == nil { // else it names none
				if ip = ip.Unmap(); ip.Is4() != a.Addr().Is4() {
					continue
				}
				if !ip.IsUnspecified() {
					destination = ip.String()
					name += "-" + strings.ReplaceAll(destination, ":", "-") + "-ip"
				}
			}
			list = append(list, object(api.KindNAT, name, api.NATSpec{
				Type: "dnat",
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

// withGroups adds the groups that the objects of an interface refer to.
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

// groups are the groups of the node's addresses as they are now.
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

// refreshGroups has ports of the node follow its addresses.
func (s *Server) refreshGroups(ctx context.Context) {
	if !slices.ContainsFunc(s.all(), func(r *record) bool { return len(r.Ports) > 0 }) {
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

// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
)

// resolversMax is how many resolvers a PodNetwork can have.
const resolversMax = 64

// Resolvers returns the DNS servers from whose responses names are learnt: the cluster IPs of DNS
// Services, from which pods see responses, then the configured addresses, then the Services'
// endpoints, from which pods see responses if they do not use the Service. left is how many
// endpoints do not fit.
func Resolvers(cfg *config.Config, dns []*corev1.Service, endpoints []*discoveryv1.EndpointSlice) (list []string, left int) {
	seen := map[netip.Addr]bool{}
	add := func(texts ...string) {
		for _, text := range texts {
			a, err := netip.ParseAddr(text)
			if a = a.Unmap(); err != nil || !config.IsHost(a) || seen[a] {
				continue // such as None, the cluster IP of a headless Service
			}
			seen[a] = true
			if len(list) == resolversMax {
				left++
				continue
			}
			list = append(list, a.String())
		}
	}
	for _, s := range dns {
		add(s.Spec.ClusterIPs...)
		add(s.Spec.ClusterIP)
	}
	add(cfg.Resolvers.Addresses...)
	var behind []string
	for _, slice := range endpoints {
		for i := range slice.Endpoints {
			behind = append(behind, slice.Endpoints[i].Addresses...)
		}
	}
	slices.Sort(behind)
	add(behind...)
	return list, left
}

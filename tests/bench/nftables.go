// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
)

// nftables writes the same rules as kube-proxy in nftables mode (Kubernetes 1.33,
// pkg/proxy/nftables): base chains, sets, a verdict map from address, protocol and port to a chain
// for each service, and from there by a random number to a chain for each endpoint. Comments, node
// ports and firewall ranges are left out, because there are none here; the lookups that all packets
// pay for are kept.

const nftablesBase = `
table ip kube-proxy
delete table ip kube-proxy
table ip kube-proxy {
	set cluster-ips { type ipv4_addr; }
	set nodeport-ips { type ipv4_addr; }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map service-nodeports { type inet_proto . inet_service : verdict; }
	chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
	chain cluster-ips-check { ip daddr @cluster-ips reject; }
	chain filter-prerouting { type filter hook prerouting priority -110; ct state new jump firewall-check; }
	chain filter-input {
		type filter hook input priority -110;
		ct state new jump nodeport-endpoints-check
		ct state new jump service-endpoints-check
	}
	chain filter-forward {
		type filter hook forward priority -110;
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
	chain filter-output {
		type filter hook output priority -110;
		ct state new jump service-endpoints-check
		ct state new jump firewall-check
	}
	chain filter-output-post-dnat { type filter hook output priority -90; ct state new jump cluster-ips-check; }
	chain mark-for-masquerade { meta mark set meta mark | 0x4000; }
	chain masquerading {
		meta mark & 0x4000 == 0 return
		meta mark set meta mark ^ 0x4000
		masquerade fully-random
	}
	chain services {
		ip daddr . meta l4proto . th dport vmap @service-ips
		ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
}
`

// nftablesServices returns the part of the ruleset that belongs to services.
func nftablesServices(services []service) string {
	var chains, clusterIPs, serviceIPs strings.Builder
	for _, s := range services {
		fmt.Fprintf(&clusterIPs, "%s, ", s.address)
		for _, protocol := range s.protocols {
			name := fmt.Sprintf("service-%s-%s", s.name, protocol)
			fmt.Fprintf(&serviceIPs, "%s . %s . %d : goto %s, ", s.address, protocol, frontendPort, name)
			var endpoints strings.Builder
			for i, b := range s.backends {
				endpoint := fmt.Sprintf("endpoint-%s-%s-%d", s.name, protocol, i)
				fmt.Fprintf(&chains, "\tchain %s {\n\t\tip saddr %s jump mark-for-masquerade\n\t\tmeta l4proto %s dnat to %s:%d\n\t}\n",
					endpoint, b, protocol, b, s.port)
				fmt.Fprintf(&endpoints, "%d : goto %s, ", i, endpoint)
			}
			fmt.Fprintf(&chains, "\tchain %s {\n\t\tip daddr %s %s dport %d ip saddr != 10.0.0.0/8 jump mark-for-masquerade\n"+
				"\t\tnumgen random mod %d vmap { %s }\n\t}\n",
				name, s.address, protocol, frontendPort, len(s.backends), strings.TrimSuffix(endpoints.String(), ", "))
		}
	}
	return fmt.Sprintf("table ip kube-proxy {\n%s}\nadd element ip kube-proxy cluster-ips { %s }\nadd element ip kube-proxy service-ips { %s }\n",
		chains.String(), strings.TrimSuffix(clusterIPs.String(), ", "), strings.TrimSuffix(serviceIPs.String(), ", "))
}

// nftablesChange returns the update that kube-proxy writes when the backends of a service change:
// new endpoint chains, and new contents for the service's chain.
func nftablesChange(s service, protocol string, generation int) string {
	var b, endpoints strings.Builder
	b.WriteString("table ip kube-proxy {\n")
	for i, address := range s.backends {
		endpoint := fmt.Sprintf("endpoint-%s-%s-%d-%d", s.name, protocol, generation, i)
		fmt.Fprintf(&b, "\tchain %s {\n\t\tip saddr %s jump mark-for-masquerade\n\t\tmeta l4proto %s dnat to %s:%d\n\t}\n",
			endpoint, address, protocol, address, s.port)
		fmt.Fprintf(&endpoints, "%d : goto %s, ", i, endpoint)
	}
	name := fmt.Sprintf("service-%s-%s", s.name, protocol)
	fmt.Fprintf(&b, "}\nflush chain ip kube-proxy %s\ntable ip kube-proxy {\n\tchain %s {\n"+
		"\t\tip daddr %s %s dport %d ip saddr != 10.0.0.0/8 jump mark-for-masquerade\n\t\tnumgen random mod %d vmap { %s }\n\t}\n}\n",
		name, name, s.address, protocol, frontendPort, len(s.backends), strings.TrimSuffix(endpoints.String(), ", "))
	return b.String()
}

// nftables is a node with the rules of kube-proxy.
type nftables struct {
	rig        *rig
	generation int // of the endpoint chains that a change makes
}

func (n *nftables) set(_ context.Context, services []service) error {
	if err := n.keepUDP(); err != nil {
		return err
	}
	return n.rig.node.run(nftablesBase+nftablesServices(services), "nft", "-f", "-")
}

// keepUDP makes the kernel keep UDP connections for longer than a measurement takes.
func (n *nftables) keepUDP() error {
	for _, sysctl := range []string{"nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"} {
		if err := n.rig.node.sysctl("netfilter/"+sysctl, "3600"); err != nil {
			return err
		}
	}
	return nil
}

func (n *nftables) alter(_ context.Context, s service) error {
	n.generation++
	for _, protocol := range s.protocols {
		if err := n.rig.node.run(nftablesChange(s, protocol, n.generation), "nft", "-f", "-"); err != nil {
			return err
		}
	}
	return nil
}

func (n *nftables) close() error { return nil } // the rules end with the namespace

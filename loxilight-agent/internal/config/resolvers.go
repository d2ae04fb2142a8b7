// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"strings"
)

// resolversMax leaves room in a PodNetwork for the cluster IPs and endpoints of the Services.
const resolversMax = 16

func (r *Resolvers) check() error {
	for i, text := range r.Services {
		if namespace, name, ok := strings.Cut(text, "/"); !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return fmt.Errorf("services[%d]: %q is not of the form namespace/name, such as kube-system/kube-dns", i, text)
		}
	}
	if len(r.Services) > resolversMax {
		return fmt.Errorf("services: has %d Services, at most %d are possible", len(r.Services), resolversMax)
	}
	for i, text := range r.Addresses {
		if a, err := netip.ParseAddr(text); err != nil || !IsHost(a.Unmap()) {
			return fmt.Errorf("addresses[%d]: %q is not the address of a DNS server, such as 169.254.20.10", i, text)
		}
	}
	if len(r.Addresses) > resolversMax {
		return fmt.Errorf("addresses: has %d addresses, at most %d are possible", len(r.Addresses), resolversMax)
	}
	return nil
}

// IsHost reports whether an address is the address of one host, without a zone.
func IsHost(a netip.Addr) bool {
	return a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

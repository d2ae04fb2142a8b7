// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/api"
)

// result is the result of a plugin, in the format of version 1.1.0 of the specification. Results of
// versions 0.3.1 and 0.4.0 also contain the IP version of each address.
type result struct {
	CNIVersion string          `json:"cniVersion,omitempty"`
	Interfaces []resultLink    `json:"interfaces,omitempty"`
	IPs        []resultIP      `json:"ips,omitempty"`
	Routes     []route         `json:"routes,omitempty"`
	DNS        json.RawMessage `json:"dns,omitempty"`
}

type resultLink struct {
	Name       string `json:"name"`
	MAC        string `json:"mac,omitempty"`
	MTU        int    `json:"mtu,omitempty"` // since 1.1.0
	Sandbox    string `json:"sandbox,omitempty"`
	SocketPath string `json:"socketPath,omitempty"` // since 1.1.0
	PciID      string `json:"pciID,omitempty"`      // since 1.1.0
}

type resultIP struct {
	Version   string       `json:"version,omitempty"` // 4 or 6; before 1.0.0
	Interface *int         `json:"interface,omitempty"`
	Address   netip.Prefix `json:"address"`
	Gateway   *netip.Addr  `json:"gateway,omitempty"`
}

// route is a route of a pod, as it appears in configurations and results.
type route struct {
	Dst      netip.Prefix `json:"dst"`
	GW       *netip.Addr  `json:"gw,omitempty"`
	MTU      int          `json:"mtu,omitempty"` // this field and the following ones: since 1.1.0
	AdvMSS   int          `json:"advmss,omitempty"`
	Priority int          `json:"priority,omitempty"`
	Table    *int         `json:"table,omitempty"`
	Scope    *int         `json:"scope,omitempty"`

	spare bool // add the route only if the pod has no route to Dst yet
}

// before reports whether version is older than other; both are in [api.CNIVersions].
func before(version, other string) bool {
	return slices.Index(api.CNIVersions, version) < slices.Index(api.CNIVersions, other)
}

// encode returns r in the format of the given version.
func (r *result) encode(version string) json.RawMessage {
	out := *r
	out.CNIVersion = version
	if before(version, "1.1.0") {
		out.Interfaces, out.Routes = slices.Clone(r.Interfaces), slices.Clone(r.Routes)
		for i := range out.Interfaces {
			l := &out.Interfaces[i]
			*l = resultLink{Name: l.Name, MAC: l.MAC, Sandbox: l.Sandbox}
		}
		for i := range out.Routes {
			out.Routes[i] = route{Dst: out.Routes[i].Dst, GW: out.Routes[i].GW}
		}
	}
	out.IPs = slices.Clone(r.IPs)
	for i := range out.IPs {
		ip := &out.IPs[i]
		ip.Version = ""
		if before(version, "1.0.0") {
			if ip.Version = "4"; ip.Address.Addr().Is6() {
				ip.Version = "6"
			}
		}
	}
	if len(out.DNS) == 0 {
		out.DNS = json.RawMessage("{}")
	}
	text, err := json.Marshal(&out)
	if err != nil {
		panic(err) // r was decoded from JSON, or contains only strings and numbers
	}
	return text
}

// result returns the previous plugins' result with the interface added.
func (r *record) result(c *conf) *result {
	out := &result{}
	if c.prev != nil {
		*out = *c.prev
	}
	out.Interfaces = append(slices.Clone(out.Interfaces),
		resultLink{Name: r.Device, MTU: r.MTU},
		resultLink{Name: r.IfName, MAC: r.MAC, MTU: r.MTU, Sandbox: r.Netns})
	inner := len(out.Interfaces) - 1
	out.IPs = slices.Clone(out.IPs)
	for i, a := range r.Addresses {
		ip := resultIP{Interface: &inner, Address: a}
		if gw := r.Gateways[i]; gw.IsValid() {
			ip.Gateway = &gw
		}
		out.IPs = append(out.IPs, ip)
	}
	out.Routes = append(slices.Clone(out.Routes), r.Routes...)
	if len(r.DNS) > 0 {
		out.DNS = r.DNS
	}
	return out
}

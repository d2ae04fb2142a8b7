// SPDX-License-Identifier: Apache-2.0

package route

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// defaultMetric6 is the metric that IPv6 uses if none is configured.
const defaultMetric6 = 1024

// Key identifies an entry of a table.
type Key struct {
	Prefix netip.Prefix `json:"prefix"`
	Metric uint32       `json:"metric,omitempty"`
}

// KeyOf returns the key of the entry for a Route.
func KeyOf(r *datapath.Route) Key {
	k := Key{r.Prefix.Masked(), r.Metric}
	if k.Metric == 0 && r.Prefix.Addr().Is6() {
		k.Metric = defaultMetric6
	}
	return k
}

// KeyOfEntry returns the key of an entry from a dump.
func KeyOfEntry(x *netlink.Route) (Key, bool) {
	if x.Dst == nil {
		p := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if x.Family == unix.AF_INET6 {
			p = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		return Key{p, uint32(x.Priority)}, x.Tos == 0
	}
	ip, ok := netip.AddrFromSlice(x.Dst.IP)
	bits, _ := x.Dst.Mask.Size()
	if x.Family == unix.AF_INET {
		ip = ip.Unmap()
	}
	k := Key{netip.PrefixFrom(ip, bits), uint32(x.Priority)}
	if k.Metric == 0 && ip.Is6() { // built by us, not read from the kernel
		k.Metric = defaultMetric6
	}
	return k, ok && x.Tos == 0
}

// KeyOfMessage is like KeyOfEntry, but for a raw message.
func KeyOfMessage(x *nl.RtMsg, attrs []syscall.NetlinkRouteAttr) (k Key, ok bool) {
	for _, a := range attrs {
		if a.Attr.Type == unix.RTA_PRIORITY && len(a.Value) == 4 {
			k.Metric = binary.NativeEndian.Uint32(a.Value)
		}
	}
	k.Prefix, ok = namespace.Destination(x, attrs)
	return k, ok
}

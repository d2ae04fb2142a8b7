// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
)

// TestNoSourcePorts: while connections are dropped because no source port is free, the health is
// degraded and names the destination, and the source with the most connections to that destination.
func TestNoSourcePorts(t *testing.T) {
	for _, host := range []string{"203.0.113.53", "2001:db8:53::53"} {
		h := newHarness(t)
		to := netip.AddrPortFrom(netip.MustParseAddr(host), 53)
		connect := func(source string, count int, destination netip.AddrPort) {
			for i := range count {
				from := netip.AddrPortFrom(netip.MustParseAddr(source), uint16(1000+i))
				h.plane.connections = append(h.plane.connections, datapath.Connection{
					Protocol: datapath.UDP,
					Original: datapath.Tuple{Source: from, Destination: destination},
				})
			}
		}
		connect("10.1.0.1", 10, to)
		connect("10.1.0.2", 3000, to)
		connect("10.1.0.3", 5000, netip.AddrPortFrom(to.Addr(), 54))
		health := func() string {
			return strings.Join(result[api.StatusResult](h, "status", "{}").Health.Messages, "\n")
		}
		if m := health(); m != "" {
			t.Errorf("before: %s", m)
		}
		h.publishSample(datapath.Sample{Drop: &datapath.Drop{
			Reason: "no_port", NAT: "away", Packet: datapath.Packet{Protocol: datapath.UDP, Tuple: datapath.Tuple{
				Source: netip.MustParseAddrPort("10.1.0.1:5"), Destination: to,
			}},
		}})
		for _, want := range []string{to.String() + " (udp) of NAT away", "10.1.0.2 has the most of them, 3000", "llcli connections --destination " + to.String()} {
			if m := health(); !strings.Contains(m, want) {
				t.Errorf("health %q, want %q", m, want)
			}
		}
		connect("10.1.0.1", 20_000, to)
		h.noPorts.counted = time.Time{}
		if m := health(); !strings.Contains(m, "10.1.0.1 has the most of them, at least ") {
			t.Errorf("health %q, want the other client", m)
		}
		h.noPorts.at = time.Now().Add(-portlessReportTime)
		if m := health(); m != "" {
			t.Errorf("after ten seconds without such drops: %s", m)
		}
	}
}

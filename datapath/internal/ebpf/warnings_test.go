// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// TestNoForwardingNeeded: disabled forwarding is not a fault while all backends are on the node.
// Otherwise the status of the Service reports it.
func TestNoForwardingNeeded(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.ok(n.d.Services().Update(context.Background(), "web", datapath.Service{
		Frontends:   []datapath.Frontend{frontend("198.51.100.10:80", datapath.TCP), frontend("[2001:db8:5::10]:80", datapath.TCP)},
		Backends:    backendAddrs(8080, "192.0.2.1", "2001:db8:1::1"),
		IdleTimeout: datapath.DefaultIdleTimeout(),
	}))
	n.node.Sysctl(t, "net.ipv4.ip_forward", "0")
	n.node.Sysctl(t, "net.ipv6.conf.all.forwarding", "0")
	f, err := n.d.Telemetry().Features(context.Background())
	n.ok(err)
	if len(f.Warnings) > 0 {
		t.Errorf("warnings %q", f.Warnings)
	}
}

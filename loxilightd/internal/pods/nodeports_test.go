// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
)

// TestNodePorts: ADD rejects host ports on addresses that do not belong to the node, reserved
// ports, and ports on which the node listens.
func TestNodePorts(t *testing.T) {
	n := newNode(t)
	n.Reserved = []datapath.PortRange{{First: 22, Last: 22}, {First: 10248, Last: 10259}}
	n.TunnelPort = func(port uint16) bool { return port == 4790 }
	all4, all6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	n.links.Listen(datapath.TCP, 7001, all4, all6)
	n.links.Listen(datapath.UDP, 7002, all6)
	n.links.Listen(datapath.SCTP, 7003, netip.MustParseAddr("192.0.2.17"))
	n.links.Listen(datapath.TCP, 7004, netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback())
	n.links.Listen(datapath.UDP, 7005, netip.MustParseAddr("224.0.0.251"))
	n.links.Listen(datapath.TCP, 7006, netip.MustParseAddr("2001:db8::18"))
	for i, tt := range []struct {
		ip, protocol string
		port         int
		code         int
		want         string
	}{
		{"192.0.2.17", "tcp", 8080, 0, ""}, {"2001:db8::17", "sctp", 8080, 0, ""}, {"127.0.0.9", "udp", 8080, 0, ""}, {"::1", "tcp", 8080, 0, ""},
		{"", "tcp", 8080, 0, ""}, {"0.0.0.0", "tcp", 8080, 0, ""}, {"::", "udp", 8080, 0, ""}, {"::ffff:192.0.2.17", "tcp", 8080, 0, ""},
		{"192.0.2.18", "tcp", 8080, 7, "hostPort 192.0.2.18:8080/tcp: hostIP 192.0.2.18 is not an address of this node"},
		{"::ffff:192.0.2.18", "tcp", 8080, 7, "hostPort 192.0.2.18:8080/tcp"}, {"2001:db8::18", "udp", 8080, 7, "hostPort [2001:db8::18]:8080/udp"},
		{"ff02::1", "udp", 8080, 7, "is not an address of this node"}, {"fe80::1%eth0", "udp", 8080, 7, "is not an address"},
		{"", "udp", 22, 7, "hostPort 22/udp is reserved"}, {"127.0.0.1", "tcp", 10248, 7, "cni.reservedHostPorts"}, {"", "tcp", 10259, 7, "reserved"},
		{"", "tcp", 10260, 0, ""}, {"", "udp", 4790, 7, "is the port of a Tunnel"}, {"", "tcp", 4790, 0, ""},
		{"", "tcp", 7001, 11, "a process on the node uses the port at 0.0.0.0"}, {"2001:db8::17", "tcp", 7001, 11, "at ::"}, {"127.0.0.1", "tcp", 7001, 11, ""},
		{"", "udp", 7002, 11, ""}, {"192.0.2.17", "udp", 7002, 0, ""}, {"", "tcp", 7002, 0, ""},
		{"", "sctp", 7003, 11, "at 192.0.2.17"}, {"::", "sctp", 7003, 0, ""}, {"127.0.0.1", "sctp", 7003, 0, ""},
		{"", "tcp", 7004, 0, ""}, {"127.0.0.1", "tcp", 7004, 11, ""}, {"::1", "tcp", 7004, 11, ""},
		{"", "udp", 7005, 0, ""}, {"2001:db8::17", "tcp", 7006, 0, ""},
	} {
		container := fmt.Sprint("c", i)
		mapping := map[string]any{"hostIP": tt.ip, "hostPort": tt.port, "containerPort": 80, "protocol": tt.protocol}
		err := n.command(api.CNIAdd, container, map[string]any{"runtimeConfig": map[string]any{"portMappings": []any{mapping}}})
		switch {
		case tt.code == 0 && err != nil:
			t.Errorf("%v: %v", mapping, err)
		case tt.code != 0 && (err == nil || err.Data.CNICode != tt.code || err.Data.Field != "runtimeConfig.portMappings" || !strings.Contains(err.Message, tt.want)):
			t.Errorf("%v: %v, want code %d and %q", mapping, err, tt.code, tt.want)
		}
		if err := n.command(api.CNIDel, container, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestPortsStayPorts: throughout a start devices keep DevicePort, the flag that a program at their
// ingress hook has evaluated the packets. A device without a program is not a port.
func TestPortsStayPorts(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	pins := n.d.dir
	flags := func(device string) (got uint32) {
		table, err := ebpf.LoadPinnedMap(pins+"/"+kernel.MapLlDevice, nil)
		n.ok(err)
		defer table.Close()
		var key kernel.DeviceKey
		var value kernel.Device
		for it := table.Iterate(); it.Next(&key, &value); {
			if name := value.Text(); name == device {
				got = value.Flags
			}
		}
		return got
	}
	old := kernel.AtStep
	t.Cleanup(func() { kernel.AtStep = old })
	steps := 0
	kernel.AtStep = func(step string) error {
		steps++
		for _, device := range []string{"in0", "out0"} {
			if flags(device)&kernel.DevicePort == 0 {
				t.Errorf("at step %q %s is no port", step, device)
			}
		}
		return nil
	}
	n.restart("")
	if steps == 0 {
		t.Error("no step was looked at")
	}
	kernel.AtStep = old
	n.d.Close()
	n.ok(os.RemoveAll(n.d.ports.Folder(netnsHost, "out0"))) // as if it had never been a port
	n.open()
	if flags("in0")&kernel.DevicePort == 0 || flags("out0")&kernel.DevicePort != 0 {
		t.Errorf("after a start in0 has flags %#x and out0 %#x, want that only in0 is a port", flags("in0"), flags("out0"))
	}
}

// TestUplinkKeepsItsName: after an uplink was renamed, rules match it by the old name until the NAT
// rules in force contain the new name, so that no packet leaves untranslated.
func TestUplinkKeepsItsName(t *testing.T) {
	ctx := context.Background()
	for _, address := range []string{"10.0.1.1", "2001:db8:2::1"} {
		t.Run(address, func(t *testing.T) {
			n := newNetwork(t)
			attach := func() {
				t.Helper()
				n.ok(n.d.Ports().Update(ctx, "uplink", datapath.Port{Address: netip.MustParseAddr(address), Role: datapath.RoleUplink}))
			}
			translate := func(uplinks ...string) {
				t.Helper()
				n.ok(n.d.NAT().Update(ctx, datapath.NodeSet, datapath.NATSet{
					Rules:   map[datapath.NATName]datapath.NAT{"pods": {Type: datapath.Masquerade, Match: datapath.Match{Out: uplinks}}},
					Uplinks: uplinks,
				}))
			}
			want := func(when, device, rule string) {
				t.Helper()
				if s, ok := n.d.Telemetry().PortState("uplink"); !ok || s.Device != device || s.RuleName != rule {
					t.Errorf("%s: rules match %q by %q, want %q by %q", when, s.Device, s.RuleName, device, rule)
				}
			}
			attach()
			translate("out0")
			want("at first", "out0", "out0")
			n.node.Run(t, "ip", "link", "set", "out0", "down")
			n.node.Run(t, "ip", "link", "set", "out0", "name", "wan7", "up")
			if address == "2001:db8:2::1" {
				n.node.Addr(t, "wan7", address+"/64") // which the kernel removed when the link went down
			}
			n.ok(n.host().Devices.Scan())
			attach()
			want("renamed", "wan7", "out0")
			n.restart("")
			attach()
			want("after a restart", "wan7", "out0")
			translate("out0", "wan7")
			want("with a translation that has both names", "wan7", "wan7")
			translate("wan7")
			want("with the last translation", "wan7", "wan7")
		})
	}
}

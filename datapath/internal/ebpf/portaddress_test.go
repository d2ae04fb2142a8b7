// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestPortByAddress: a port that is selected by an address is on the device with that address, and
// moves with the address; while no device has the address, the port stays where it was.
func TestPortByAddress(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	addr := netip.MustParseAddr("2001:db8:1::77")
	port := datapath.Port{Address: addr}
	if err := n.d.Ports().Update(ctx, "uplink", port); !errors.Is(err, datapath.ErrAbsent) {
		t.Fatalf("no device has the address: %v", err)
	}
	move := func(verb, device string) {
		n.node.Run(t, "ip", "addr", verb, addr.String()+"/64", "dev", device, "nodad")
	}
	wantOn := func(what, device string) {
		t.Helper()
		testnet.Eventually(t, 5*time.Second, what, func() bool {
			ok, err := n.d.Ports().Verify(ctx, "uplink")
			n.ok(err)
			if !ok {
				n.ok(n.d.Ports().Update(ctx, "uplink", port))
			}
			is, _ := n.d.Telemetry().PortState("uplink")
			return is.Device == device && len(is.Hooks) == 2 && n.d.Telemetry().DeviceOf(addr, false) == device
		})
	}
	move("add", "in0")
	testnet.Eventually(t, 5*time.Second, "it is found", func() bool { return n.d.Ports().Update(ctx, "uplink", port) == nil })
	wantOn("on the device that has it", "in0")
	move("del", "in0")
	testnet.Eventually(t, 5*time.Second, "it is missed", func() bool {
		ok, err := n.d.Ports().Verify(ctx, "uplink")
		return !ok && err == nil
	})
	if err := n.d.Ports().Update(ctx, "uplink", port); !errors.Is(err, datapath.ErrAbsent) {
		t.Errorf("no device has the address any more: %v", err)
	}
	if hooks := n.hooked("in0"); len(hooks) == 0 {
		t.Error("its programs are detached while no device has the address")
	}
	move("add", "out0")
	testnet.Eventually(t, 5*time.Second, "it is found again", func() bool { return n.d.Ports().Update(ctx, "uplink", port) == nil })
	wantOn("on the other device", "out0")
	if hooks := n.hooked("in0"); len(hooks) != 0 {
		t.Errorf("in0 has %v still", hooks)
	}
}

// TestPortsShareADevice: two addresses of a node may be on one device or on two.
func TestPortsShareADevice(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	four, six := netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8:1::77")
	move := func(verb string, addr netip.Addr, device string) {
		prefix := netip.PrefixFrom(addr, addr.BitLen()).String()
		args := []string{"addr", verb, prefix, "dev", device}
		if addr.Is6() {
			args = append(args, "nodad")
		}
		n.node.Run(t, "ip", args...)
	}
	ports := map[datapath.PortName]datapath.Port{"uplink": {Address: four}, "uplink6": {Address: six}}
	want := func(what string, devices map[datapath.PortName]string) {
		t.Helper()
		testnet.Eventually(t, 5*time.Second, what, func() bool {
			all := true
			for name, device := range devices {
				if ok, err := n.d.Ports().Verify(ctx, name); err != nil || !ok {
					all = n.d.Ports().Update(ctx, name, ports[name]) == nil && all
				}
				is, _ := n.d.Telemetry().PortState(name)
				all = all && is.Device == device && len(is.Hooks) == 2 && len(n.hooked(device)) > 0
			}
			return all
		})
	}
	move("add", four, "in0")
	move("add", six, "in0")
	want("one is on its device", map[datapath.PortName]string{"uplink": "in0"})
	want("both are on one device", map[datapath.PortName]string{"uplink": "in0", "uplink6": "in0"})
	if err := n.d.Ports().Update(ctx, "uplink6", datapath.Port{Address: six, Role: datapath.RolePort}); err == nil {
		t.Error("an Interface with another role for the device was accepted")
	}

	before := fmt.Sprint(n.hooked("in0"))
	n.ok(n.d.Ports().Delete(ctx, "uplink"))
	if after := fmt.Sprint(n.hooked("in0")); after != before {
		t.Errorf("the Interface that had the device is gone, and %s are attached, before %s", after, before)
	}
	want("the other one has it", map[datapath.PortName]string{"uplink6": "in0"})
	n.ok(n.d.Close())
	n.open()
	want("after a restart too, in any order", map[datapath.PortName]string{"uplink": "in0", "uplink6": "in0"})

	move("del", six, "in0")
	move("add", six, "out0")
	want("one has moved", map[datapath.PortName]string{"uplink": "in0", "uplink6": "out0"})
	move("del", six, "out0")
	move("add", six, "in0")
	want("it is back", map[datapath.PortName]string{"uplink": "in0", "uplink6": "in0"})
	if hooks := n.hooked("out0"); len(hooks) != 0 {
		t.Errorf("out0 has %v still", hooks)
	}
	n.ok(n.d.Ports().Delete(ctx, "uplink6"))
	n.ok(n.d.Ports().Delete(ctx, "uplink"))
	if hooks := n.hooked("in0"); len(hooks) != 0 {
		t.Errorf("without both in0 has %v", hooks)
	}
}

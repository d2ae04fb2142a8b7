// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

// TestPortsStayPorts: during a start the programs still know which devices have a program on the
// ingress hook, which has evaluated their packets. A device without a program is no port.
func TestPortsStayPorts(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	pins := n.d.dir
	flags := func(device string) (got uint32) {
		table, err := ebpf.LoadPinnedMap(pins+"/"+kernelMapLlDevice, nil)
		n.ok(err)
		defer table.Close()
		var key kernelDeviceKey
		var value kernelDevice
		for it := table.Iterate(); it.Next(&key, &value); {
			if name := value.name(); name == device {
				got = value.Flags
			}
		}
		return got
	}
	old := atStep
	t.Cleanup(func() { atStep = old })
	steps := 0
	atStep = func(step string) error {
		steps++
		for _, device := range []string{"in0", "out0"} {
			if flags(device)&devicePort == 0 {
				t.Errorf("at step %q %s is no port", step, device)
			}
		}
		return nil
	}
	n.restart("")
	if steps == 0 {
		t.Error("no step was looked at")
	}
	atStep = old
	n.d.Close()
	n.ok(os.RemoveAll(n.d.ports.folder(zoneHost, "out0"))) // as if it had never been a port
	n.open()
	if flags("in0")&devicePort == 0 || flags("out0")&devicePort != 0 {
		t.Errorf("after a start in0 has flags %#x and out0 %#x, want that only in0 is a port", flags("in0"), flags("out0"))
	}
}

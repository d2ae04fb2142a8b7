// SPDX-License-Identifier: Apache-2.0

package pkg

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
)

const switchObjects = `
kind: Bridge
name: lan
spec: {device: br0, addresses: [10.71.0.1/24], ports: [{device: hs_host}]}
---
kind: Route
name: far
spec: {prefix: 203.0.113.0/24, netns: switch, type: blackhole}
`

// TestSwitchNamespace: although the daemon's sandbox forbids mounts, all processes see the switch's
// netns by its name once an object needs it, and again after an external deletion. A purge deletes
// it.
func TestSwitchNamespace(t *testing.T) {
	const namespace = "/run/netns/loxilight"
	fresh(t)
	before := network(t)
	install(t, deb)
	start(t)
	ready(t)
	if _, err := os.Stat(namespace); err == nil {
		t.Error("a namespace was created although no object needs it")
	}
	write(t, "/root/switch.yaml", switchObjects)
	t.Cleanup(func() { _ = os.Remove("/root/switch.yaml") })
	for range 2 {
		run(t, "llcli", "apply", "-f", "/root/switch.yaml")
		for range 2 {
			testnet.Eventually(t, patience(), "the switch exists, with what is in it", func() bool {
				out, err := exec.Command("ip", "-n", "loxilight", "route", "show", "203.0.113.0/24").CombinedOutput()
				return err == nil && strings.Contains(string(out), "blackhole 203.0.113.0/24 proto 76")
			})
			testnet.Eventually(t, patience(), "the link to it exists", func() bool {
				return exec.Command("ip", "link", "show", "loxi_host").Run() == nil
			})
			run(t, "ip", "netns", "del", "loxilight")
		}
		testnet.Eventually(t, patience(), "the switch exists again", func() bool {
			return exec.Command("ip", "-n", "loxilight", "link", "show", "br0").Run() == nil
		})
		run(t, "systemctl", "restart", unit)
		ready(t)
		run(t, "ip", "-n", "loxilight", "link", "show", "br0")
		run(t, "systemctl", "stop", unit)
		run(t, "ip", "-n", "loxilight", "link", "show", "br0")
		run(t, "llcli", "detach")
		expectSame(t, "detached", before, network(t))
		start(t)
		ready(t)
	}
	run(t, "dpkg", "--purge", "loxilight")
	expectSame(t, "after the purge", before, network(t))
}

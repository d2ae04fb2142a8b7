// SPDX-License-Identifier: Apache-2.0

package llcli

import (
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestDeviceInOtherNamespace: a device that exists in the other network namespace is not reported
// as absent; the message names its namespace and the command that helps.
func TestDeviceInOtherNamespace(t *testing.T) {
	testnet.RequireRoot(t)
	name := testnet.UniqueName("switch")
	s := &site{t: t, node: testnet.New(t, "node"), client: testnet.New(t, "vm")}
	s.Daemon = testdaemon.New(t, s.node, programs, "switch: {namespace: "+name+"}",
		"tables: {connections: 4096, services: 64, backends: 256}")
	defer s.Detach()
	testnet.Veth(t, testnet.Port{NS: s.node, Name: "vm1"}, testnet.Port{NS: s.client, Name: "eth0"})
	s.Start()
	defer s.Stop()
	move := "ip link set vm1 netns " + name
	s.refuse(4, "bridge add br0 --port vm1 --port nosuch --wait 1s", "Bridge/br0 is Pending")
	s.says("get bridges", "port nosuch does not exist in network namespace "+name,
		"port vm1 is in the host's network namespace, the bridge in "+name, move)
	s.refuse(4, "interface add vm1 --netns switch --wait 1s", "Interface/vm1 is Pending")
	s.says("get interfaces", `device "vm1" is in the host's network namespace`, move, "llcli interface set vm1 --netns host")
	s.refuse(4, "interface add br0 --wait 1s", "Interface/br0 is Pending")
	s.says("get interfaces", `device "br0" is in the switch's network namespace (`+name+`)`, "llcli interface set br0 --netns switch")
	s.refuse(4, "interface add nosuch --wait 1s", "Interface/nosuch is Pending")
	s.says("get interfaces", `device "nosuch" does not exist`)
	s.expect("status", "network namespace "+name)
	s.node.Run(t, "ip", "link", "set", "vm1", "netns", name)
	s.expect("wait interface vm1 --for 60s")
}

// says waits until a command prints all of words.
func (s *site) says(command string, words ...string) {
	s.t.Helper()
	testnet.Eventually(s.t, time.Minute, "llcli "+command+" prints "+strings.Join(words, " and "), func() bool {
		out := s.LLCLI(strings.Fields(command)...)
		for _, word := range words {
			if !strings.Contains(out, word) {
				return false
			}
		}
		return true
	})
}

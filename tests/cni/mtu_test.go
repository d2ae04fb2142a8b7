// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestMTUShrinks: the MTU of the uplinks shrinks while pods exist, and more pods are added
// afterwards. All pods still reach each other with packets of any size, even after two daemons have
// been restarted and the MTU has grown again.
func TestMTUShrinks(t *testing.T) {
	testnet.RequireRoot(t)
	vxlan, geneve := clusterKind{tunnel: "vxlan", pods: 1}, clusterKind{tunnel: "geneve", over6: true, merged: true, pods: 1}
	wants := map[clusterKind][2]int{{pods: 1}: {1500, 1400}, vxlan: {1450, 1350}, geneve: {1430, 1330}}
	eachKind(t, []clusterKind{{pods: 1}, vxlan, geneve}, func(t *testing.T, c *cluster) {
		want := wants[c.clusterKind]
		for _, s := range c.stations {
			c.serve(s)
		}
		c.setMTU(1400, want[1])
		c.addNewer(want)
		c.talkMuch()
		if t.Failed() {
			return
		}
		var daemons []*testdaemon.Daemon
		for _, n := range c.nodes[:2] { // node 3 talks to restarted nodes
			n.Stop()
			daemons = append(daemons, n.Daemon)
		}
		testdaemon.StartAll(daemons...)
		c.setMTU(1400, want[1])
		c.wantDevices(want[0])
		c.setMTU(1500, want[0])
		c.talkMuch()
	})
}

// setMTU changes the MTU of all machines, and waits until the nodes derive the MTU of their pods
// from it.
func (c *cluster) setMTU(mtu, pods int) {
	c.t.Helper()
	for _, s := range c.stations {
		if s.kind == outside || s.kind == aNode {
			s.MTU(c.t, "eth0", mtu)
		}
	}
	for i, n := range c.nodes {
		testnet.Eventually(c.t, 20*time.Second, fmt.Sprintf("pods of node %d may send %d", i+1, pods), func() bool {
			var status api.PodNetworkStatus
			o, err := n.Client.Get(c.t.Context(), "PodNetwork", "default")
			return err == nil && json.Unmarshal(o.Status, &status) == nil && status.State == "Ready" && status.MTU == pods
		})
	}
}

// wantDevices checks the MTU of the nodes' own devices in the pod networks.
func (c *cluster) wantDevices(mtu int) {
	c.t.Helper()
	device := "loxi_test"
	if c.merged {
		device = "hsvlan110"
	}
	for i, n := range c.nodes {
		if out := n.node.Run(c.t, "ip", "link", "show", device); !strings.Contains(out, fmt.Sprintf("mtu %d ", mtu)) {
			c.t.Errorf("node %d, want MTU %d:\n%s", i+1, mtu, out)
		}
	}
}

// addNewer attaches one more pod to each node: its device has the MTU of the existing pods, its
// routes the current MTU of the uplinks.
func (c *cluster) addNewer(want [2]int) {
	c.t.Helper()
	for i, n := range c.nodes {
		p := n.addPod(n.list("1.0.0", nil), fmt.Sprintf("pod-%d-newer-1", i+1))
		s := newStation(p.NS, p.rt.ContainerID, aPod, i+1, p.address(true).String(), p.address(false).String())
		c.stations = append(c.stations, s)
		c.serve(s)
		if out := p.Run(c.t, "ip", "link", "show", "eth0"); !strings.Contains(out, fmt.Sprintf("mtu %d ", want[0])) {
			c.t.Errorf("a newer pod's device, want MTU %d:\n%s", want[0], out)
		}
		for _, family := range []string{"-4", "-6"} {
			if out := p.Run(c.t, "ip", family, "route", "show", "default"); !strings.Contains(out, fmt.Sprintf("mtu %d ", want[1])) {
				c.t.Errorf("a newer pod's default route, want MTU %d:\n%s", want[1], out)
			}
		}
	}
}

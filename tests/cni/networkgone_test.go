// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestPodNetworkIsDeleted: deleting the PodNetwork is not an external change to the Tunnels, which
// also need the programs on the link between host and switch.
func TestPodNetworkIsDeleted(t *testing.T) {
	const verifiedWithin = 6 * time.Second // each row is verified every 5 s, and at once after a signal
	s := newSite(t)
	s.Apply(`
kind: Tunnel
name: mesh
spec: {device: hstunnel, type: vxlan, vni: 4660}
---
kind: Peer
name: node2
spec: {underlay: [192.0.2.77], prefixes: [10.74.2.0/24, "fd74:2::/64"], tunnel: mesh}
`)
	before := s.Repairs()
	for _, step := range []string{"deleted", "applied again", "deleted again"} {
		if step == "applied again" {
			s.Apply(siteObjects)
		} else {
			s.LLCLI("delete", "podnetwork", "default", "--wait", "10s")
		}
		for end := time.Now().Add(verifiedWithin); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if got := s.Repairs(); got != before {
				t.Fatalf("%s: %d repairs are counted, want none:\n%s", step, got-before, s.Process().Output())
			}
		}
	}
	testnet.Eventually(t, remakePatience, "the Tunnel is Ready", func() bool {
		status, err := s.Client.Status(t.Context())
		return err == nil && len(status.NotReady) == 0
	})
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestPeerSaysWhy: a Peer without a route, or that is this node itself, reports that, and what to
// do.
func TestPeerSaysWhy(t *testing.T) {
	testnet.RequireRoot(t)
	node := newMesh(t, 2, meshKind{tunnel: "vxlan"}).nodes[0]
	for underlay, want := range map[string][]string{
		"203.0.113.9": {`"Pending"`, "underlay 203.0.113.9: no route to 203.0.113.9", "see ip route get 203.0.113.9"},
		"192.0.2.1":   {`"Error"`, "underlay 192.0.2.1: must be an address of the other node, not of this node, multicast or unspecified"},
	} {
		node.LLCLI("peer", "add", "why", "--underlay", underlay, "--prefix", "10.97.0.0/16", "--tunnel", "mesh", "--overwrite")
		var got string
		testnet.Eventually(t, patience, underlay+" has a reason", func() bool {
			got = node.LLCLI("get", "peer", "why", "-o", "json")
			return strings.Contains(got, "underlay "+underlay)
		})
		for _, want := range want {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in %s", want, got)
			}
		}
	}
}

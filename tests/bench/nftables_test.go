// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os/exec"
	"testing"
)

// TestNftables: the rules of kube-proxy balance, before and after a change, and an unknown service
// is not answered.
func TestNftables(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed")
	}
	r := testRig(t)
	r.name = pathNftables
	ctx := context.Background()
	if err := (&bench{}).attachPath(ctx, r, 0); err != nil {
		t.Fatal(err)
	}
	n, ok := r.balancer.(*nftables)
	if !ok {
		t.Fatalf("the node of %s has %T", pathNftables, r.balancer)
	}
	services := servicesFor(onNode, 3, backendCount, "udp", "tcp")
	if err := r.set(ctx, services); err != nil {
		t.Fatal(err)
	}
	if err := establish(r, onNode, r.flowsTo(onNode, 300, 3)); err != nil {
		t.Error(err)
	}
	services[0].backends = services[0].backends[:2]
	if err := n.alter(ctx, services[0]); err != nil {
		t.Fatal(err)
	}
	again := r.flowsTo(onNode, 300, 1)
	again.sourceOffset = 7
	if err := establish(r, onNode, again); err != nil {
		t.Error(err)
	}
	again.target = addressAt(frontendFirst[onNode], 3)
	if err := establish(r, onNode, again); err == nil {
		t.Error("a service that does not exist answers")
	}
	target, port := r.tcpTarget(onNode)
	if _, err := tcpRun(ctx, r, onNode, target, port, 200, false); err != nil {
		t.Error(err)
	}
	if _, err := bulkRun(r, onNode, target, port, 2, 0); err != nil {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"strings"
	"testing"
	"time"
)

// hookOf returns the kind of hook that both programs of a port have.
func (n *network) hookOf(port string) string {
	n.t.Helper()
	f, err := n.d.Telemetry().Features(context.Background())
	n.ok(err)
	if strings.Contains(f.Fallbacks["tcx"], "this kernel lacks tcx") {
		n.t.Errorf("fallback %q, though the kernel has tcx", f.Fallbacks["tcx"])
	}
	kinds := map[string]bool{}
	for _, h := range f.Hooks {
		if h.Device == port {
			kinds[h.Hook] = true
		}
	}
	for _, kind := range []string{"tcx", "tc"} {
		if len(kinds) == 2 && kinds[kind+"-ingress"] && kinds[kind+"-egress"] {
			return kind
		}
	}
	n.t.Fatalf("hooks of %s: %v", port, kinds)
	return ""
}

// TestEndpointsHaveFilters: endpoints get cls_bpf filters, since the kernel would wait with the
// RTNL lock held for each tcx link that is attached. Existing hooks stay, whatever kind is
// configured.
func TestEndpointsHaveFilters(t *testing.T) {
	requireTCX(t)
	n := newNetwork(t)
	ctx := context.Background()
	want := func(in, out string) {
		t.Helper()
		if gotIn, gotOut := n.hookOf("in0"), n.hookOf("out0"); gotIn != in || gotOut != out {
			t.Errorf("attach: %q: the endpoint has %s, the other port %s, want %s and %s", n.config.Attach, gotIn, gotOut, in, out)
		}
	}
	n.attach()
	n.ok(n.d.Ports().Delete(ctx, "in0"))
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
	want("tc", "tcx")
	for _, configured := range []string{"", "tc", "tcx"} {
		n.ok(n.d.Close())
		n.config.Attach = configured
		n.open()
		want("tc", "tcx")
	}
	n.ok(n.d.Endpoints().Delete(ctx, "pod"))
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
	want("tcx", "tcx")
	n.restart("")
	want("tcx", "tcx")
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
	want("tcx", "tcx")
	if ok, err := n.d.Endpoints().Verify(ctx, "pod"); !ok || err != nil {
		t.Errorf("verify: %t, %v", ok, err)
	}
	n.ok(n.d.Endpoints().Delete(ctx, "pod"))
	if left := n.hooked("in0"); len(left) > 0 {
		t.Errorf("left on the device: %s", strings.Join(left, ", "))
	}
}

// TestHookDetached: a signal follows at once if another program detaches our programs from a
// device, and no signal if we detach them ourselves.
func TestHookDetached(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	told := func(patience time.Duration) bool {
		select {
		case <-n.d.Telemetry().Changed():
			return true
		case <-time.After(patience):
			return false
		}
	}
	n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
	for told(500 * time.Millisecond) {
	}
	for _, stranger := range [][]string{
		{"qdisc", "del", "dev", "in0", "clsact"}, {"filter", "del", "dev", "in0", "ingress"}, {"filter", "del", "dev", "in0", "egress"},
	} {
		n.node.Run(t, "tc", stranger...)
		if !told(time.Second) {
			t.Errorf("tc %v is not reported", stranger)
		}
		if ok, err := n.d.Endpoints().Verify(ctx, "pod"); ok || err != nil {
			t.Errorf("after tc %v it is as it was left: %t, %v", stranger, ok, err)
		}
		n.ok(n.d.Endpoints().Update(ctx, "pod", n.endpoint("192.0.2.10")))
		for told(500 * time.Millisecond) {
		}
	}
	n.ok(n.d.Endpoints().Delete(ctx, "pod"))
	if told(300 * time.Millisecond) {
		t.Error("the removal of programs by ourselves is reported")
	}
}

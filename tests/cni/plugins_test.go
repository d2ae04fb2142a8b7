// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
)

// debian skips the test if one of Debian's plugins is not installed.
func debian(t *testing.T, plugins ...string) {
	t.Helper()
	for _, p := range plugins {
		if _, err := os.Stat(filepath.Join(debianPlugins, p)); err != nil {
			t.Skipf("%v (.ci/setup test installs it)", err)
		}
	}
}

// TestChained runs Debian's tuning plugin after ours.
func TestChained(t *testing.T) {
	debian(t, "tuning")
	s := newSite(t)
	list := s.list("1.0.0", nil,
		map[string]any{"type": "tuning", "sysctl": map[string]string{"net.ipv4.conf.eth0.arp_announce": "2"}, "mac": "02:11:22:33:44:66"})
	list.Plugins = list.Plugins[:2]
	p := s.newPod("chained")
	p.rt.CapabilityArgs = map[string]any{"mac": "02:11:22:33:44:66"}
	if err := s.tryAdd(list, p); err != nil {
		t.Fatal(err)
	}
	if out := p.Run(t, "cat", "/proc/sys/net/ipv4/conf/eth0/arp_announce"); strings.TrimSpace(out) != "2" {
		t.Errorf("arp_announce %s: the plugin behind ours did not run", out)
	}
	if len(p.result.IPs) != 2 || len(p.result.Interfaces) != 2 || p.result.Interfaces[1].Mac != "02:11:22:33:44:66" {
		t.Errorf("result %+v", p.result)
	}
	for _, gateway := range gateways {
		// The other plugin has set the interface down in the meantime, which removes its
		// neighbours.
		testnet.Eventually(t, remakePatience, "the pod reaches "+gateway.String(), func() bool {
			return p.pingWithin(gateway, testnet.OnThisMachine(soon)) == nil
		})
	}
	if err := s.check(list, p); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	s.del(list, p)
	s.wantPods(0)
}

// TestBehindOthers creates a second interface with our plugin, after Debian's ptp.
func TestBehindOthers(t *testing.T) {
	debian(t, "ptp", "host-local")
	s := newSite(t)
	dir := t.TempDir()
	first := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"first","plugins":[{"type":"ptp","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.99.0.0/24"}]]}}]}`, dir)
	p := s.newPod("two")
	list := s.list("1.0.0", map[string]any{"ipam": map[string]any{"routes": []map[string]string{{"dst": "192.0.2.0/24"}}}})
	one := *p.rt
	one.IfName = "net1"
	other := s.parse(first)
	var err error
	s.node.Do(t, func() error { // the plugin creates its end in its current namespace
		_, err = s.cni.AddNetworkList(context.Background(), other, &one)
		return nil
	})
	if err != nil {
		t.Fatalf("ADD of ptp: %v", err)
	}
	if err := s.tryAdd(list, p); err != nil {
		t.Fatal(err)
	}
	p.reaches(t, gateways[0])
	p.reaches(t, netip.MustParseAddr("192.0.2.77"))
	s.del(list, p)
	s.node.Do(t, func() error { return s.cni.DelNetworkList(context.Background(), other, &one) })
	s.wantPods(0)
}

// TestHostLocal: Debian's host-local assigns the addresses, from the network's subnets.
func TestHostLocal(t *testing.T) {
	debian(t, "host-local")
	s := newSite(t)
	dir := t.TempDir()
	list := s.list("1.0.0", map[string]any{"ipam": map[string]any{"type": "host-local", "dataDir": dir}})
	a, b := s.addPod(list, "a"), s.addPod(list, "b")
	if got := a.address(true); got != netip.MustParseAddr("10.73.3.3") {
		t.Errorf("address %s, want the first that is for pods", got)
	}
	for _, is4 := range []bool{true, false} {
		a.reaches(t, b.address(is4))
	}
	a.reaches(t, netip.MustParseAddr("192.0.2.77"))
	if err := s.check(list, a); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	leases := func() int {
		n := 0
		files, _ := filepath.Glob(filepath.Join(dir, "pods", "*"))
		for _, f := range files {
			if _, err := netip.ParseAddr(filepath.Base(f)); err == nil {
				n++
			}
		}
		return n
	}
	if got := leases(); got != 4 {
		t.Errorf("%d leases, want 4", got)
	}
	s.del(list, a)
	s.Kill()
	s.Start()
	s.del(list, b)
	s.wantPods(0)
	if got := leases(); got != 0 {
		t.Errorf("%d leases are left", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestNoExternalChange: pods are added and removed by the dozen, and the daemon does not report its
// own work as external changes.
func TestNoExternalChange(t *testing.T) {
	s := newSite(t)
	list := s.list("1.1.0", nil)
	for range 3 {
		var pods []*pod
		for i := range 30 {
			pods = append(pods, s.newPod(fmt.Sprint("c", i)))
		}
		for _, do := range []func(*pod) error{
			func(p *pod) error { return s.tryAdd(list, p) }, func(p *pod) error { return s.tryDel(list, p) },
		} {
			var all sync.WaitGroup
			for _, p := range pods {
				all.Go(func() {
					if err := do(p); err != nil {
						t.Errorf("%s: %v", p.rt.ContainerID, err)
					}
				})
			}
			all.Wait()
		}
		// On a busy machine the daemon does not answer each DEL in time.
		testnet.Eventually(t, 30*time.Second, "queued DELs are carried out", func() bool {
			files, err := filepath.Glob(filepath.Join(s.StateDir(), "cni-queue", "*"))
			return err == nil && len(files) == 0
		})
		s.wantPods(0)
	}
	if n := s.Repairs(); n != 0 {
		t.Errorf("%d repairs were counted, want 0:\n%s", n, s.Process().Output())
	}
}

// TestExternalChangesAtDevice: CHECK reports external changes at the switch's end of a pod's link
// until they are repaired, which happens at once.
func TestExternalChangesAtDevice(t *testing.T) {
	s := newSite(t)
	list := s.list("1.1.0", nil)
	p := s.addPod(list, "c1")
	for _, tt := range []struct{ name, stranger, look, want string }{
		{"down", "ip link set hs1 down", "ip -o link show hs1", ",UP"},
		{"MTU", "ip link set hs1 mtu 1000", "ip -o link show hs1", "mtu 1500 "},
		{"guard", "tc qdisc del dev hs1 clsact", "tc filter show dev hs1 ingress", "bpf"},
		{"filter", "tc filter del dev hs1 ingress", "tc filter show dev hs1 ingress", "bpf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sw := testnet.Named(t, s.name)
			mended := func() bool {
				words := strings.Fields(tt.look)
				out, err := sw.TryRun(words[0], words[1:]...)
				return err == nil && strings.Contains(out, tt.want)
			}
			if !mended() {
				t.Fatal("not in the expected state before the change")
			}
			for range 5 {
				words := strings.Fields(tt.stranger)
				sw.Run(t, words[0], words[1:]...)
				if err := s.check(list, p); err == nil && !mended() {
					t.Error("CHECK succeeds although the change is not repaired")
				}
				testnet.Eventually(t, time.Second, "it is repaired", mended)
			}
			testnet.Eventually(t, 5*time.Second, "CHECK succeeds", func() bool { return s.check(list, p) == nil })
			for _, a := range gateways {
				testnet.Eventually(t, 5*time.Second, "the pod reaches "+a.String(), func() bool { return p.ping(a) == nil })
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/loxilight/loxilight/internal/testnet"
)

var gateways = []netip.Addr{netip.MustParseAddr("10.73.3.1"), netip.MustParseAddr("2001:db8:73::1")}

func TestVersions(t *testing.T) {
	s := newSite(t)
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			s := &site{Daemon: s.Daemon, t: t, node: s.node, name: s.name, cni: s.cni}
			list := s.list(version, nil)
			p := s.addPod(list, "c-"+strings.ReplaceAll(version, ".", "-"))
			for _, a := range append(slices.Clone(gateways), netip.MustParseAddr("10.73.3.2"), netip.MustParseAddr("2001:db8:73::2"), netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8:2::77")) {
				p.reaches(t, a)
			}
			if version != "0.3.1" {
				if err := s.check(list, p); err != nil {
					t.Errorf("CHECK: %v", err)
				}
				p.Run(t, "ip", "route", "del", "default")
				if err := s.check(list, p); err == nil || !strings.Contains(err.Error(), "0.0.0.0/0") {
					t.Errorf("CHECK without the default route: %v", err)
				}
			}
			s.wantPods(1)
			for range 2 {
				s.del(list, p)
			}
			s.wantPods(0)
		})
	}
	if err := s.cni.GetStatusNetworkList(context.Background(), s.list("1.1.0", nil)); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	s.LLCLI("delete", "podnetwork", "default")
	var told *types.Error
	if err := s.cni.GetStatusNetworkList(context.Background(), s.list("1.1.0", nil)); err == nil || !strings.Contains(err.Error(), "PodNetwork/default") {
		t.Errorf("STATUS without a network: %v, %v", err, told)
	}
}

// TestShippedConfiguration: newer runtimes select the version with STATUS and GC from the installed
// configuration; STATUS does not report the node as not ready while the daemon restarts.
func TestShippedConfiguration(t *testing.T) {
	s := newSite(t)
	list, err := libcni.NetworkConfFromBytes(s.shipped())
	if err != nil || list.CNIVersion != "1.1.0" {
		t.Fatalf("%v: version %s", err, list.CNIVersion)
	}
	p := s.addPod(list, "c1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.check(list, p); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	s.Stop()
	s.Launch()
	for range 3 {
		if err := s.cni.GetStatusNetworkList(ctx, list); err != nil {
			t.Errorf("STATUS while the daemon starts: %v", err)
		}
	}
	p.reaches(t, gateways[0])
	if err := s.cni.GCNetworkList(ctx, list, &libcni.GCArgs{}); err != nil {
		t.Errorf("GC: %v", err)
	}
	s.wantPods(0)
}

// TestDeviceNamesOfOthers: names of other programs' devices in the switch, and names that objects
// use, are not used for pods, and have no other effect.
func TestDeviceNamesOfOthers(t *testing.T) {
	s := newSite(t)
	list := s.list("1.1.0", nil)
	t.Run("look", func(t *testing.T) { // closes the namespace at the end
		testnet.Named(t, s.name).Run(t, "ip", "link", "add", "hs1", "type", "bridge")
	})
	s.LLCLI("apply", "-f", s.File("kind: Bridge\nname: lan\nspec: {device: br0, ports: [{device: hs2}]}"))
	for i, want := range []string{"hs3", "hs4"} {
		p := s.addPod(list, fmt.Sprint("c", i))
		if got := p.result.Interfaces[0].Name; got != want {
			t.Errorf("device %s, want %s", got, want)
		}
		p.reaches(t, gateways[0])
		if err := s.check(list, p); err != nil {
			t.Error(err)
		}
	}
	s.wantPods(2)
}

// TestManyAtOnce adds 200 pods at once, as after a node starts.
func TestManyAtOnce(t *testing.T) {
	s := newSite(t)
	list := s.list("1.0.0", nil)
	var pods []*pod
	for i := range 200 {
		pods = append(pods, s.newPod(fmt.Sprint("many-", i)))
	}
	took := make([]time.Duration, len(pods))
	var all sync.WaitGroup
	begin := time.Now()
	for i, p := range pods {
		all.Go(func() {
			begin := time.Now()
			if err := s.tryAdd(list, p); err != nil {
				t.Errorf("ADD %s: %v", p.rt.ContainerID, err)
			}
			took[i] = time.Since(begin)
		})
	}
	all.Wait()
	slices.Sort(took)
	t.Logf("%d ADD at once: %s; half within %s, 99%% within %s, all within %s", len(pods), time.Since(begin), took[100], took[198], took[199])
	if t.Failed() {
		return
	}
	seen := map[netip.Addr]string{}
	for _, p := range pods {
		for _, is4 := range []bool{true, false} {
			a := p.address(is4)
			if other, ok := seen[a]; ok || !a.IsValid() {
				t.Errorf("%s is %s's and %s's", a, other, p.rt.ContainerID)
			}
			seen[a] = p.rt.ContainerID
		}
	}
	s.wantPods(len(pods))
	s.Stop()
	begin = time.Now()
	s.Start()
	testnet.Eventually(t, 30*time.Second, "all is taken over", func() bool {
		status, err := s.Client.Status(t.Context())
		return err == nil && len(status.NotReady) == 0
	})
	t.Logf("a start with them takes %s", time.Since(begin).Round(time.Millisecond))
	s.wantPods(len(pods))
	pods[0].reaches(t, pods[199].address(true))
	pods[199].reaches(t, pods[0].address(false))
	for _, p := range pods {
		all.Go(func() {
			if err := s.tryDel(list, p); err != nil {
				t.Errorf("DEL %s: %v", p.rt.ContainerID, err)
			}
		})
	}
	all.Wait()
	// If a DEL takes the daemon longer than the plugin waits, it is queued, and executed again.
	testnet.Eventually(t, 40*time.Second, "all DELs are done", func() bool {
		for _, folder := range []string{"pods", "cni-queue"} {
			if files, err := filepath.Glob(filepath.Join(s.StateDir(), folder, "*")); err != nil || len(files) > 0 {
				return false
			}
		}
		return true
	})
	s.wantPods(0)
}

// TestOneAfterTheOther logs how long ADD takes on an idle daemon.
func TestOneAfterTheOther(t *testing.T) {
	s := newSite(t)
	list := s.list("1.0.0", nil)
	var took []time.Duration
	for i := range 100 {
		p := s.newPod(fmt.Sprint("one-", i))
		begin := time.Now()
		if err := s.tryAdd(list, p); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	t.Logf("ADD: half within %s, 99%% within %s, all within %s", took[50], took[98], took[99])
}

// TestDaemonKilled kills the daemon in the middle of 50 ADDs, repeatedly: all pods whose ADD
// succeeded exist, and GC removes the rest.
func TestDaemonKilled(t *testing.T) {
	s := newSite(t)
	list := s.list("1.1.0", nil)
	var there []*pod
	for round := range 4 {
		pods := make([]*pod, 50)
		for i := range pods {
			pods[i] = s.newPod(fmt.Sprintf("killed-%d-%d", round, i))
		}
		var mu sync.Mutex
		var all sync.WaitGroup
		first := make(chan struct{})
		once := sync.OnceFunc(func() { close(first) })
		for _, p := range pods {
			all.Go(func() {
				if s.tryAdd(list, p) == nil {
					mu.Lock()
					there = append(there, p)
					mu.Unlock()
					once()
				}
			})
		}
		select {
		case <-first:
		case <-time.After(30 * time.Second):
			t.Fatal("no ADD at all")
		}
		s.Kill()
		all.Wait()
		s.Start()
	}
	if len(there) == 0 || len(there) == 200 {
		t.Fatalf("%d of 200 were added: nothing was killed in the middle", len(there))
	}
	t.Logf("%d of 200 were added", len(there))
	args := &libcni.GCArgs{}
	for _, p := range there {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: p.rt.ContainerID, IfName: "eth0"})
	}
	if err := s.cni.GCNetworkList(context.Background(), list, args); err != nil {
		t.Fatalf("GC: %v", err)
	}
	s.wantPods(len(there))
	for _, p := range []*pod{there[0], there[len(there)-1]} {
		p.reaches(t, gateways[0])
		p.reaches(t, gateways[1])
		if err := s.check(list, p); err != nil {
			t.Errorf("CHECK %s: %v", p.rt.ContainerID, err)
		}
	}
	args.ValidAttachments = []types.GCAttachment{}
	if err := s.cni.GCNetworkList(context.Background(), list, args); err != nil {
		t.Fatalf("GC of all: %v", err)
	}
	s.wantPods(0)
}

// TestPluginKilled kills the plugin in the middle of ADDs: the ADD of a killed client is undone.
func TestPluginKilled(t *testing.T) {
	s := newSite(t)
	list := s.list("1.1.0", nil)
	var all sync.WaitGroup
	for i := range 50 {
		p := s.newPod(fmt.Sprint("killed-", i))
		all.Go(func() {
			cmd := exec.Command(programs.CNI)
			cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + p.rt.ContainerID, "CNI_NETNS=" + p.Path(), "CNI_IFNAME=eth0"}
			cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"pods","type":"loxilight-cni","socket":%q}`, s.Socket))
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			timer := time.AfterFunc(time.Duration(i)*4*time.Millisecond, func() { _ = cmd.Process.Kill() })
			_ = cmd.Wait() // it was killed, or was faster
			timer.Stop()
		})
	}
	all.Wait()
	if err := s.cni.GCNetworkList(context.Background(), list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}); err != nil {
		t.Fatalf("GC: %v", err)
	}
	testnet.Eventually(t, 20*time.Second, "what was begun is undone", func() bool { return len(s.devices()) == 0 })
	s.wantPods(0)
}

// TestDelWhileDown: a DEL while the daemon is down is queued, and executed when it starts.
func TestDelWhileDown(t *testing.T) {
	s := newSite(t)
	list := s.list("1.0.0", nil)
	var pods []*pod
	for i := range 20 {
		pods = append(pods, s.addPod(list, fmt.Sprint("down-", i)))
	}
	stays := s.addPod(list, "stays")
	s.Stop()
	for _, p := range pods {
		begin := time.Now()
		for range 2 {
			s.del(list, p)
		}
		if took := time.Since(begin) / 2; took > testnet.OnThisMachine(time.Second) {
			t.Errorf("DEL took %s, want at most a second", took)
		}
	}
	if files, err := os.ReadDir(filepath.Join(s.StateDir(), "cni-queue")); err != nil || len(files) != len(pods) {
		t.Errorf("%d queued, %v; want %d", len(files), err, len(pods))
	}
	stays.reaches(t, gateways[0])
	s.Start()
	again := s.addPod(list, "again") // ADD waits for the queue
	s.wantPods(2)
	stays.reaches(t, again.address(true))
	again.reaches(t, stays.address(false))
}

// TestHungDaemon: a DEL does not wait long for a daemon that is stopped by SIGSTOP.
func TestHungDaemon(t *testing.T) {
	s := newSite(t)
	list := s.list("1.0.0", nil)
	p := s.addPod(list, "c1")
	s.Process().Stop(t)
	begin := time.Now()
	s.del(list, p)
	if took := time.Since(begin); took > testnet.OnThisMachine(1200*time.Millisecond) {
		t.Errorf("DEL took %s, want about a second at most", took)
	}
	s.Process().Signal(syscall.SIGCONT)
	testnet.Eventually(t, 20*time.Second, "the DEL is done", func() bool { return len(s.devices()) == 0 })
	testnet.Eventually(t, 20*time.Second, "the queue is empty", func() bool {
		files, err := os.ReadDir(filepath.Join(s.StateDir(), "cni-queue"))
		return err == nil && len(files) == 0
	})
	s.wantPods(0)
}

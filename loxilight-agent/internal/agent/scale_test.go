// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

// maxResident is how much memory an agent of a large cluster may have, maxWithPolicies with many
// pods and policies too, and maxBinary how large its program may be.
const maxResident, maxWithPolicies, maxBinary = 60 << 20, 120 << 20, 20 << 20

// TestLargeCluster: 5,000 services of twenty endpoints, 1,000 nodes. It measures the program as
// shipped.
func TestLargeCluster(t *testing.T) { measureLargeCluster(t, 0, maxResident) }

// TestLargeClusterWithPolicies: likewise, with 10,000 pods and as many NetworkPolicies.
func TestLargeClusterWithPolicies(t *testing.T) { measureLargeCluster(t, 10000, maxWithPolicies) }

// measureLargeCluster also makes participants, a number of pods and as many NetworkPolicies.
func measureLargeCluster(t *testing.T, participants, maxResident int) {
	if testing.Short() {
		t.Skip("takes long")
	}
	const nodeCount, serviceCount, endpoints = 1000, 5000, 20
	w := newWorld(t)
	program := filepath.Join(w.daemon.dir, "loxilight-agent")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "github.com/loxilight/loxilight/loxilight-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	info, err := os.Stat(program)
	if err != nil || info.Size() > maxBinary {
		t.Errorf("the program has %d bytes, %v", info.Size(), err)
	}
	w.fill(nodeCount, serviceCount, endpoints)
	w.fillParticipants(participants)
	cmd := exec.Command(program, "--config", w.configFile(), "--kubeconfig", w.kubeconfig(), "--node-name", "n1", "--socket", w.daemon.Socket())
	cmd.Stderr = w.log
	if trace := os.Getenv("LOXILIGHT_GCTRACE"); trace != "" {
		cmd.Env = append(os.Environ(), "GODEBUG=gctrace=1")
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }() // killed
	resident := func(field string) int { return procStatus(t, cmd.Process.Pid, field) }
	testnet.Eventually(t, 2*time.Minute, "everything is in the daemon", func() bool {
		status, err := w.daemon.Status(t.Context())
		return err == nil && status.Objects[api.KindService] == serviceCount+1 && status.Objects[api.KindPeer] == nodeCount+1 &&
			status.Objects[api.KindEntity] == participants+nodeCount+2 && status.Objects[api.KindPolicy] == participants
	})
	t.Logf("in step after %s, resident %d KiB, at most %d KiB, program %d bytes", time.Since(begin).Round(time.Millisecond), resident("VmRSS")>>10, resident("VmHWM")>>10, info.Size())
	var slowest time.Duration
	for i := range 100 { // the usual rate of changes
		name := fmt.Sprintf("service-%d", i*37%serviceCount)
		w.kube.Set(largeSlice(name, i+7000, endpoints+1))
		changed := time.Now()
		eventually(t, name+" has one more backend", func() bool {
			o, err := w.daemon.Get(t.Context(), api.KindService, "shop/"+name)
			return err == nil && backends(string(o.Spec)) == endpoints+1
		})
		slowest = max(slowest, time.Since(changed))
	}
	t.Logf("anonymous %d KiB, of files %d KiB", resident("RssAnon")>>10, resident("RssFile")>>10)
	t.Logf("after changes resident %d KiB, at most %d KiB; the slowest change took %s", resident("VmRSS")>>10, resident("VmHWM")>>10, slowest.Round(time.Millisecond))
	if got := resident("VmRSS"); got > maxResident {
		t.Errorf("resident %d KiB, more than %d", got>>10, maxResident>>10)
	}
}

// fill makes a large cluster.
func (w *world) fill(nodeCount, serviceCount, endpoints int) {
	for i := range nodeCount {
		n := node(fmt.Sprintf("node-%d.example", i), fmt.Sprintf("198.18.%d.%d", i/200, 1+i%200), fmt.Sprintf("10.%d.%d.0/24", 128+i/200, i%200))
		for _, more := range []string{"kubernetes.io/arch", "kubernetes.io/os", "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone"} {
			n.Labels = map[string]string{more: "value-of-it"}
		}
		n.Status.Images = make([]corev1.ContainerImage, 30)
		for j := range n.Status.Images {
			n.Status.Images[j].Names = []string{fmt.Sprintf("registry.example/project/image-%d:v1.%d", j, i)}
		}
		w.kube.Set(n)
	}
	for i := range serviceCount {
		name := fmt.Sprintf("service-%d", i)
		s := service("shop", name, fmt.Sprintf("10.97.%d.%d", i/200, 1+i%200))
		s.Spec.Selector = map[string]string{"app": name}
		w.kube.Set(s, largeSlice(name, i, endpoints))
	}
}

// fillParticipants makes pods and NetworkPolicies in fifty namespaces, each with a pod of this node.
func (w *world) fillParticipants(count int) {
	for i := range 50 {
		w.kube.Set(namespace(fmt.Sprint("ns", i), "team", "a"))
	}
	for i := range count {
		of := fmt.Sprint("ns", i%50)
		p := pod(of, fmt.Sprintf("deployment-%d-7d9c5b8f6-%05d", i%300, i), fmt.Sprint("app-", i%300), fmt.Sprintf("node-%d.example", i%1000),
			fmt.Sprintf("10.%d.%d.%d", 128+i%5, (i/5)%200, 2+i/1000), fmt.Sprintf("2001:db8::%x", i+1))
		if i < 50 {
			p.Spec.NodeName, p.Status.PodIPs = "n1", nil
		}
		p.Labels["pod-template-hash"], p.Labels["app.kubernetes.io/component"] = "7d9c5b8f6", "server"
		w.kube.Set(p, networkPolicy(of, fmt.Sprint("p", i), fmt.Sprint("app-", i%300), "a", "b"))
	}
}

func largeSlice(name string, i, endpoints int) *discoveryv1.EndpointSlice {
	var addresses []string
	for e := range endpoints {
		addresses = append(addresses, fmt.Sprintf("10.%d.%d.%d", 128+i%5, (i/5)%200, 2+(i+e*11)%250))
	}
	s := slice("shop", name, name+"-x7k2p", addresses...)
	for e := range s.Endpoints {
		zone, ready, no := "zone-b", true, false
		of := fmt.Sprintf("node-%d.example", (i*31+e*7)%1000)
		s.Endpoints[e].NodeName, s.Endpoints[e].Zone = &of, &zone
		s.Endpoints[e].Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready, Terminating: &no}
		s.Endpoints[e].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: fmt.Sprintf("%s-7d9c5b8f6-%05d", name, e), UID: "5f0a9a8e-1a8e-4e0b-8b57-3c9d6d0f3f11"}
	}
	return s
}

// procStatus returns a field of /proc/PID/status in bytes.
func procStatus(t *testing.T, pid int, field string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no %s in %s", field, text)
	return 0
}

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testk8s"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testreport"
)

const (
	endpoints = 20 // of each Service
	probes    = 20 // Services with a real server
	samples   = 100
	server    = "10.222.0.1:9000"
)

// number returns a number from the environment, or else the usual one.
func number(name string, usual int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return usual
}

// contestant is a node with a service proxy.
type contestant struct {
	name      string
	ns        *testnet.NS
	processes map[string]*testnet.Process
	began     time.Time
	inStep    time.Duration
	waits     []time.Duration
	before    []cost // costs before the changes to EndpointSlices
	after     []cost
}

// cost is the memory and the CPU time of a process.
type cost struct {
	name     string
	resident int // MB
	seconds  float64
}

// TestScale starts the contestants in a cluster with all objects, and then adds and removes the
// servers of single Services.
func TestScale(t *testing.T) {
	if os.Getenv("LOXILIGHT_K8S_SCALE") == "" {
		t.Skip("it builds Kubernetes, and measures for minutes: make scale-k8s")
	}
	services, nodes := number("SERVICES", 5000), number("NODES", 500)
	machine, err := testreport.Machine()
	if err != nil {
		t.Fatal(err)
	}
	programs, err := testk8s.Build(os.Stderr, testk8s.KubeProxy)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := testdaemon.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(t.TempDir(), "loxilight-agent")
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", agent, "github.com/loxilight/loxilight/loxilight-agent").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := testk8s.New(t, programs, testk8s.Options{Nodes: 1, Families: []*testk8s.Family{testk8s.IPv4}, Bare: true})
	listener := c.Switch.Listen(t, server)
	go answer(listener)
	begin := time.Now()
	ips := fill(t, c, services, nodes)
	t.Logf("%d Services of %d endpoints and %d Nodes exist after %s", services, endpoints, nodes, time.Since(begin).Round(time.Second))

	all := []*contestant{startLoxilight(t, c, ours, agent), nil}
	all[0].await(t, ips)
	all[1] = startKubeProxy(t, c, programs)
	all[1].await(t, ips)
	for _, one := range all {
		one.before = one.costs(t)
		t.Logf("%s: serves all of %d probes %s after its start; %v", one.name, len(ips), one.inStep.Round(10*time.Millisecond), one.before)
	}
	begin = time.Now()
	for n := range samples {
		sample(t, c, all, n%probes, ips[n%probes])
	}
	took := time.Since(begin)
	for _, one := range all {
		slices.Sort(one.waits)
		one.after = one.costs(t)
		t.Logf("%s: from the change of an EndpointSlice to the first connection: half within %s, 99%% within %s, all within %s; before these %d changes %v, after them %v",
			one.name, one.waits[samples/2].Round(100*time.Microsecond), one.waits[samples*99/100].Round(100*time.Microsecond), one.waits[samples-1].Round(100*time.Microsecond),
			2*samples, one.before, one.after)
	}
	if path := os.Getenv("LOXILIGHT_REPORT"); path != "" {
		if err := testreport.Write(path, testreport.Kubernetes, part(machine, services, nodes, took, all)); err != nil {
			t.Fatal(err)
		}
	}
}

// answer closes accepted connections.
func answer(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = conn.Close() // only the connection counts
	}
}

// fill creates all objects, and returns the addresses of the probes.
func fill(t *testing.T, c *testk8s.Cluster, services, nodes int) []netip.AddrPort {
	t.Helper()
	const space = "/api/v1/namespaces/default"
	parallel(t, nodes, func(i int) error {
		name := fmt.Sprintf("far%d", i)
		if err := post(c, "/api/v1/nodes", fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q},"spec":{"podCIDRs":["10.%d.%d.0/26"],"podCIDR":"10.%[2]d.%[3]d.0/26"}}`, name, 128+i/250, i%250)); err != nil {
			return err
		}
		return c.API.Patch("/api/v1/nodes/"+name+"/status", fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":"10.223.%d.%d"}]}}`, i/250, 1+i%250))
	})
	parallel(t, services, func(i int) error {
		name := fmt.Sprintf("s%d", i)
		if err := post(c, space+"/services", fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q},"spec":{"ports":[{"name":"web","port":80}]}}`, name)); err != nil {
			return err
		}
		return post(c, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice(name, i, i < probes))
	})
	var ips []netip.AddrPort
	for i := range probes {
		var o testk8s.Object
		if err := c.API.Get(fmt.Sprintf("%s/services/s%d", space, i), &o); err != nil {
			t.Fatal(err)
		}
		ips = append(ips, netip.AddrPortFrom(netip.MustParseAddr(o.Spec.ClusterIP), 80))
	}
	return ips
}

// slice returns an EndpointSlice: for a probe with the real server, for others with unused
// addresses.
func slice(name string, i int, real bool) string {
	list, port := "", 8080
	if real {
		list, port = endpoint("10.222.0.1"), 9000
	} else {
		for n := range endpoints {
			k := i*endpoints + n
			list += "," + endpoint(fmt.Sprintf("10.%d.%d.%d", 140+k/62500, k/250%250, 1+k%250))
		}
		list = list[1:]
	}
	return fmt.Sprintf(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":%q,"labels":{"kubernetes.io/service-name":%[1]q}},"addressType":"IPv4","ports":[{"name":"web","port":%d,"protocol":"TCP"}],"endpoints":[%s]}`,
		name, port, list)
}

func endpoint(ip string) string {
	return fmt.Sprintf(`{"addresses":[%q],"conditions":{"ready":true}}`, ip)
}

func post(c *testk8s.Cluster, path, body string) error {
	_, err := c.API.Raw("POST", path, "application/json", body)
	return err
}

func parallel(t *testing.T, count int, f func(i int) error) {
	t.Helper()
	var all sync.WaitGroup
	next := make(chan int)
	for range 16 {
		all.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// node creates the Node of a contestant.
func node(t *testing.T, c *testk8s.Cluster, name, ip, podCIDR string) {
	t.Helper()
	if err := post(c, "/api/v1/nodes", fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q},"spec":{"podCIDRs":[%q],"podCIDR":%[2]q}}`, name, podCIDR)); err != nil {
		t.Fatal(err)
	}
	if err := c.API.Patch("/api/v1/nodes/"+name+"/status", fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":%q}]}}`, ip)); err != nil {
		t.Fatal(err)
	}
}

func startLoxilight(t *testing.T, c *testk8s.Cluster, ours testdaemon.Programs, agent string) *contestant {
	t.Helper()
	one := &contestant{name: "loxilight", ns: c.Join(t, "ours", "10.222.0.101")}
	node(t, c, "ours", "10.222.0.101", "10.126.0.0/24")
	config := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(config, []byte("apiServer: "+c.APIServer()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig := c.Kubeconfig(t, "agent", "agent", "system:masters")
	d := testdaemon.New(t, one.ns, ours, "switch: {namespace: "+testnet.UniqueName("switch")+"}")
	t.Cleanup(func() { d.Kill(); d.Detach() })
	one.began = time.Now()
	d.Start()
	process := one.ns.Start(t, agent, "--config", config, "--kubeconfig", kubeconfig, "--node-name", "ours", "--socket", "ipc://"+d.Socket)
	one.processes = map[string]*testnet.Process{"loxilightd": d.Process(), "loxilight-agent": process}
	return one
}

func startKubeProxy(t *testing.T, c *testk8s.Cluster, p *testk8s.Programs) *contestant {
	t.Helper()
	one := &contestant{name: "kube-proxy (nftables)", ns: c.Join(t, "theirs", "10.222.0.102")}
	node(t, c, "theirs", "10.222.0.102", "10.127.0.0/24")
	config := filepath.Join(t.TempDir(), "proxy.yaml")
	text := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %s}
hostnameOverride: theirs
clusterCIDR: 10.126.0.0/15
conntrack: {maxPerCore: 0, min: 0}
`, c.Kubeconfig(t, "proxy", "system:kube-proxy", ""))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	one.began = time.Now()
	one.processes = map[string]*testnet.Process{"kube-proxy": one.ns.Start(t, filepath.Join(p.Dir, testk8s.KubeProxy), "--config", config)}
	return one
}

// await waits until the contestant serves all probes.
func (one *contestant) await(t *testing.T, ips []netip.AddrPort) {
	t.Helper()
	for _, ip := range ips {
		testnet.Eventually(t, 10*time.Minute, one.name+" serves "+ip.String(), func() bool { return one.connects(ip) })
	}
	one.inStep = time.Since(one.began)
}

// connects reports whether a connection is accepted.
func (one *contestant) connects(ip netip.AddrPort) bool {
	err := one.ns.Try(func() error {
		conn, err := net.DialTimeout("tcp4", ip.String(), 500*time.Millisecond)
		if err == nil {
			_, err = conn.Read(make([]byte, 1)) // the server closes accepted connections
			_ = conn.Close()
			if err == io.EOF {
				err = nil
			}
		}
		return err
	})
	return err == nil
}

// sample removes the server of a probe, adds it again, and measures how long each contestant takes
// to serve it.
func sample(t *testing.T, c *testk8s.Cluster, all []*contestant, i int, ip netip.AddrPort) {
	t.Helper()
	path := fmt.Sprintf("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/s%d", i)
	set := func(list string, served bool) []time.Duration {
		waits := make([]time.Duration, len(all))
		var done sync.WaitGroup
		begin := time.Now()
		for k, one := range all {
			done.Go(func() {
				testnet.Eventually(t, time.Minute, fmt.Sprintf("%s follows", one.name), func() bool { return one.connects(ip) == served })
				waits[k] = time.Since(begin)
			})
		}
		if err := c.API.Patch(path, `{"endpoints":[`+list+`]}`); err != nil {
			t.Fatal(err)
		}
		done.Wait()
		return waits
	}
	set("", false)
	for k, wait := range set(endpoint("10.222.0.1"), true) {
		all[k].waits = append(all[k].waits, wait)
	}
}

// costs returns the costs of the contestant's processes.
func (one *contestant) costs(t *testing.T) (all []cost) {
	t.Helper()
	for name, p := range one.processes {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
		if err != nil {
			t.Fatal(err)
		}
		rss := 0
		for line := range strings.Lines(string(status)) {
			_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &rss) // no match in other lines
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(stat)[strings.LastIndex(string(stat), ")")+1:])
		ticks := 0 // of the process, and of programs that it ran, such as nft
		for _, field := range fields[11:15] {
			n, _ := strconv.Atoi(field) // the kernel writes numbers
			ticks += n
		}
		all = append(all, cost{name, rss >> 10, float64(ticks) / 100})
	}
	slices.SortFunc(all, func(a, b cost) int { return strings.Compare(a.name, b.name) })
	return all
}

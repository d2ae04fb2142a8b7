// SPDX-License-Identifier: Apache-2.0

package testk8s

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// Options describe the cluster to create.
type Options struct {
	Nodes    int
	Families []*Family // see Families
	Images   []string  // archives of additional images for every node
	Bare     bool      // a control plane only: nodes run nothing
}

// Cluster is a cluster that runs until the end of the test that created it.
type Cluster struct {
	Nodes    []*Node
	Families []*Family
	Outside  *testnet.NS // a machine behind the nodes' router
	Switch   *testnet.NS // connects the nodes, and is their router
	API      *API

	t        testnet.T
	o        Options
	p        *Programs
	dir      string
	ca       *authority
	control  map[string]*testnet.Process
	images   []string
	manifest string // the manifest of CoreDNS
}

// New starts a cluster without a network: its nodes become Ready once a network plugin is
// installed.
func New(t testnet.T, p *Programs, o Options) *Cluster {
	t.Helper()
	testnet.RequireRoot(t)
	for _, program := range []string{"containerd", "runc", "busybox", "nsenter", "unshare", "iptables"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v (.ci/setup test installs it)", err)
		}
	}
	clearFolders()
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", ours, os.Getpid())) // short, for the paths of the sockets in it
	if err != nil {
		t.Fatalf("folder of the cluster: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Logf("folder of the cluster: %v", err)
		}
	})
	c := &Cluster{t: t, Families: o.Families, o: o, p: p, dir: dir, control: map[string]*testnet.Process{}}
	c.prepareMachine()
	c.network()
	c.certificates()
	manifest, err := os.ReadFile(p.CoreDNS)
	if err != nil {
		t.Fatalf("%v", err)
	}
	c.manifest = string(manifest)
	if o.Bare {
		c.startControl()
		return c
	}
	if c.images, err = writeImages(dir, p, corednsRef(c.manifest)); err != nil {
		t.Fatalf("images: %v", err)
	}
	c.images = append(c.images, o.Images...)
	c.startControl()
	for _, n := range c.Nodes {
		n.start()
	}
	return c
}

// Join connects another host to the nodes' IPv4 network, without starting any program on it.
func (c *Cluster) Join(t testnet.T, name, ip4 string) *testnet.NS {
	t.Helper()
	ns := testnet.New(t, name)
	testnet.Veth(t, testnet.Port{NS: c.Switch, Name: name}, testnet.Port{NS: ns, Name: "eth0", Addrs: []string{ip4 + "/24"}})
	c.Switch.Run(t, "ip", "link", "set", name, "master", "br0")
	ns.Route(t, "default", IPv4.router.Addr().String())
	ns.Forward(t)
	return ns
}

// Kubeconfig writes the kubeconfig of a user, and returns its path.
func (c *Cluster) Kubeconfig(t testnet.T, name, user, group string) string {
	t.Helper()
	if err := c.ca.kubeconfig(name, user, group); err != nil {
		t.Fatalf("%v", err)
	}
	return c.ca.path(name + ".kubeconfig")
}

// network makes the switch, the machine outside, and the nodes' namespaces.
func (c *Cluster) network() {
	t := c.t
	c.Switch = testnet.New(t, "sw")
	c.Outside = testnet.New(t, "out")
	c.Switch.Forward(t)
	testnet.Veth(t, testnet.Port{NS: c.Switch, Name: "out"}, testnet.Port{NS: c.Outside, Name: "eth0"})
	for _, f := range c.Families {
		c.Switch.Addr(t, "out", f.outsideRouter.String())
		c.Outside.Addr(t, "eth0", with(f.Outside, f.outsideRouter))
		c.Outside.Route(t, "default", f.outsideRouter.Addr().String())
	}
	var ports []string
	for i := range c.o.Nodes {
		ports = append(ports, c.connect(i))
	}
	c.Switch.Bridge(t, "br0", ports...)
	for _, f := range c.Families {
		c.Switch.Addr(t, "br0", f.router.String())
	}
}

// connect makes a node's network, and returns the switch's port that leads to the node.
func (c *Cluster) connect(index int) string {
	t, port := c.t, fmt.Sprint("n", index+1)
	n := &Node{c: c, Name: fmt.Sprint("node", index+1)}
	n.NS = testnet.New(t, n.Name)
	if !c.Has(IPv6) { // as on a machine on which IPv6 is disabled
		n.NS.Sysctl(t, "net.ipv6.conf.all.disable_ipv6", "1")
		n.NS.Sysctl(t, "net.ipv6.conf.default.disable_ipv6", "1")
	}
	testnet.Veth(t, testnet.Port{NS: c.Switch, Name: port}, testnet.Port{NS: n.NS, Name: "eth0"})
	for _, f := range c.Families {
		n.IPs = append(n.IPs, f.node(index))
		n.NS.Addr(t, "eth0", with(f.node(index), f.router))
		n.NS.Route(t, "default", f.router.Addr().String())
	}
	n.NS.Forward(t)
	n.NS.Sysctl(t, "net.ipv4.conf.all.rp_filter", "0")
	n.NS.Sysctl(t, "net.ipv4.conf.default.rp_filter", "0")
	c.Nodes = append(c.Nodes, n)
	return port
}

// certificates issues the certificates of the control plane and of the nodes.
func (c *Cluster) certificates() {
	ca, err := newAuthority(filepath.Join(c.dir, "pki"), c.APIServer())
	if err != nil {
		c.t.Fatalf("certificates: %v", err)
	}
	c.ca = ca
	check := func(err error) {
		if err != nil {
			c.t.Fatalf("certificates: %v", err)
		}
	}
	hosts := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1"}
	for _, f := range c.Families {
		hosts = append(hosts, f.APIService.String())
	}
	check(ca.issue("apiserver", "kube-apiserver", "", append(hosts, c.Nodes[0].hosts()...)...))
	check(ca.issue("kubelet-client", "kube-apiserver-kubelet-client", "system:masters"))
	check(ca.kubeconfig("admin", "admin", "system:masters"))
	check(ca.kubeconfig("kube-controller-manager", "system:kube-controller-manager", ""))
	check(ca.kubeconfig("kube-scheduler", "system:kube-scheduler", ""))
	for _, n := range c.Nodes {
		check(ca.kubeconfig(n.Name, "system:node:"+n.Name, "system:nodes", append(n.hosts(), n.Name)...))
	}
	c.API, err = newAPI(c)
	check(err)
}

// startControl starts the control plane on the first node.
func (c *Cluster) startControl() {
	c.StartEtcd()
	c.StartAPIServer(c.t)
	c.component("kube-controller-manager",
		"--kubeconfig="+c.ca.path("kube-controller-manager.kubeconfig"), "--allocate-node-cidrs=true", "--cluster-cidr="+c.joined(func(f *Family) string { return f.pods }),
		c.serviceRange(), "--root-ca-file="+c.ca.path("ca.crt"), "--service-account-private-key-file="+c.ca.path("sa.key"),
		"--use-service-account-credentials=true", "--cluster-signing-cert-file="+c.ca.path("ca.crt"), "--cluster-signing-key-file="+c.ca.path("ca.key"),
		"--leader-elect=false", "--node-monitor-grace-period=20s", "--bind-address=127.0.0.1")
	c.component("kube-scheduler", "--kubeconfig="+c.ca.path("kube-scheduler.kubeconfig"), "--leader-elect=false", "--bind-address=127.0.0.1")
}

// StartEtcd starts etcd with its previous data.
func (c *Cluster) StartEtcd() {
	c.component("etcd", "--name=test", "--data-dir="+filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379", "--listen-peer-urls=http://127.0.0.1:2380")
}

// StartAPIServer starts the API server and waits until it serves requests.
func (c *Cluster) StartAPIServer(t testnet.T) {
	t.Helper()
	c.component("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--advertise-address="+c.Nodes[0].IP().String(), "--bind-address="+c.everywhere(), "--secure-port=6443",
		c.serviceRange(), "--authorization-mode=Node,RBAC", "--allow-privileged=true", "--enable-admission-plugins=NodeRestriction",
		"--client-ca-file="+c.ca.path("ca.crt"), "--tls-cert-file="+c.ca.path("apiserver.crt"), "--tls-private-key-file="+c.ca.path("apiserver.key"),
		"--kubelet-client-certificate="+c.ca.path("kubelet-client.crt"), "--kubelet-client-key="+c.ca.path("kubelet-client.key"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file="+c.ca.path("sa.pub"), "--service-account-signing-key-file="+c.ca.path("sa.key"))
	testnet.Eventually(t, 2*time.Minute, "the API server serves", func() bool {
		c.running(t, "kube-apiserver")
		_, err := c.API.Raw("GET", "/readyz", "", "")
		return err == nil
	})
}

// Kill kills a component of the control plane as kill -9 does.
func (c *Cluster) Kill(name string) { c.control[name].Kill() }

// component starts a program of the control plane; its output is written to a file.
func (c *Cluster) component(name string, args ...string) {
	log := filepath.Join(c.dir, name+".log")
	c.control[name] = c.Nodes[0].NS.Start(c.t, "sh", append([]string{"-c", `log=$1; shift; exec "$@" >>"$log" 2>&1`, name, log, filepath.Join(c.p.Dir, name)}, args...)...)
}

// running fails the test if a component has ended.
func (c *Cluster) running(t testnet.T, name string) {
	t.Helper()
	select {
	case <-c.control[name].Done():
		t.Fatalf("%s ended:\n%s", name, lastLines(filepath.Join(c.dir, name+".log"), 20))
	default:
	}
}

// Logs returns the last output of all of the cluster's programs, for a test that failed.
func (c *Cluster) Logs(lines int) string {
	files, _ := filepath.Glob(filepath.Join(c.dir, "*.log")) // the pattern is valid
	more, _ := filepath.Glob(filepath.Join(c.dir, "*", "*.log"))
	var b strings.Builder
	for _, f := range append(files, more...) {
		fmt.Fprintf(&b, "=== %s\n%s\n", strings.TrimPrefix(f, c.dir+"/"), lastLines(f, lines))
	}
	return b.String()
}

func lastLines(file string, n int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}

// InstallCoreDNS applies Kubernetes' own manifest, with no DNS servers outside the cluster.
func (c *Cluster) InstallCoreDNS(t testnet.T) {
	t.Helper()
	text := strings.NewReplacer("__DNS__DOMAIN__", "cluster.local", "__DNS__MEMORY__LIMIT__", "170Mi", "__DNS__SERVER__", c.Families[0].dnsService.String()).Replace(c.manifest)
	var kept []string
	skip := false
	for line := range strings.Lines(text) {
		word := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(word, "forward . "):
			skip = true
		case skip:
			skip = word != "}"
		case word != "loop":
			kept = append(kept, line)
		}
	}
	c.Apply(t, strings.Join(kept, ""))
}

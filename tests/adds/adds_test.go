// SPDX-License-Identifier: Apache-2.0

package adds

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/loxilight/loxilight/internal/testcluster"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testkube"
	"github.com/loxilight/loxilight/internal/testnet"
)

var programs testdaemon.Programs

func TestMain(m *testing.M) { os.Exit(testdaemon.Main(m, "adds", &programs)) }

// atOnce is at most how many pods are added at once while something fails.
const atOnce = 25

// port is where all listen.
const port = 4660

// patience bounds how long something may take that should happen.
var patience = testnet.OnThisMachine(10 * time.Second)

// counts returns how many pods each situation adds.
func counts(t *testing.T) int {
	v := os.Getenv("LOXILIGHT_ADDS")
	if v == "" {
		return 8
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("LOXILIGHT_ADDS=%s: %v", v, err)
	}
	return n
}

// site is a cluster with a witness on the node to which pods are added, one on another node and one
// outside. Witnesses send to the addresses of the pods every millisecond, and count what arrives from
// pods, by pod.
type site struct {
	*testcluster.Cluster
	t         *testing.T
	node      *testcluster.Node
	witnesses []*end
	next      atomic.Int64
}

// end is a namespace that sends and counts.
type end struct {
	ns    *testnet.NS
	addrs []netip.Addr
	conn  *net.UDPConn
	mu    sync.Mutex
	to    map[netip.Addr]bool
	from  map[string]int // datagrams, by their text
	stop  chan struct{}
	wg    sync.WaitGroup
}

// newEnd begins to send a text, and to count.
func newEnd(ns *testnet.NS, text string, to ...netip.Addr) (*end, error) {
	e := &end{ns: ns, to: map[netip.Addr]bool{}, from: map[string]int{}, stop: make(chan struct{})}
	e.sendTo(to...)
	err := ns.Try(func() (err error) {
		e.conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port})
		return err
	})
	if err != nil {
		return nil, err
	}
	e.wg.Go(func() {
		for b := make([]byte, 100); ; {
			n, err := e.conn.Read(b)
			if err != nil {
				return
			}
			e.mu.Lock()
			e.from[string(b[:n])]++
			e.mu.Unlock()
		}
	})
	e.wg.Go(func() {
		for {
			e.mu.Lock()
			for addr := range e.to {
				_, _ = e.conn.WriteToUDPAddrPort([]byte(text), netip.AddrPortFrom(addr, port)) // fails without a route
			}
			e.mu.Unlock()
			select {
			case <-e.stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return e, nil
}

func (e *end) close() {
	close(e.stop)
	e.conn.Close() // ends the reader
	e.wg.Wait()
}

func (e *end) sendTo(addrs ...netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range addrs {
		e.to[a] = true
	}
}

func (e *end) leave(addrs ...netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range addrs {
		delete(e.to, a)
	}
}

func (e *end) heard(text string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.from[text]
}

func newSite(t *testing.T) *site {
	s := &site{Cluster: testcluster.New(t, programs, 2), t: t}
	s.node = s.Nodes[0]
	s.API.Set(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, closed("closed"))
	outside := testnet.New(t, "outside")
	testnet.Veth(t, testnet.Port{NS: s.LAN, Name: "outside"},
		testnet.Port{NS: outside, Name: "eth0", Addrs: []string{"192.0.2.77/24", "fd00:2::77/64"}})
	s.LAN.Run(t, "ip", "link", "set", "outside", "master", "br0")
	outside.Route(t, "10.244.1.0/24", "192.0.2.1")
	outside.Route(t, "fd00:244:1::/64", "fd00:2::1")
	ends := map[string]*testnet.NS{"outside": outside}
	addrs := map[string][]netip.Addr{"outside": {netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("fd00:2::77")}}
	for _, n := range s.Nodes {
		p := s.newPod(n, "witness", 250)
		s.API.Set(p.object("open"))
		if err := n.Add(p.rt); err != nil {
			t.Fatalf("ADD of a witness: %v", err)
		}
		ends[n.Name()], addrs[n.Name()] = p.ns, p.addrs
	}
	for name, ns := range ends {
		e, err := newEnd(ns, name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.close)
		e.addrs = addrs[name]
		s.witnesses = append(s.witnesses, e)
	}
	return s
}

// closed is a policy that forbids everything to the pods with a label.
func closed(app string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: app}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
	}}
}

// pod is a pod that sends to the witnesses, and listens, before its ADD.
type pod struct {
	s     *site
	name  string
	node  *testcluster.Node
	ns    *testnet.NS
	addrs []netip.Addr
	rt    *libcni.RuntimeConf
	end   *end
}

func (s *site) newPod(n *testcluster.Node, kind string, index int) *pod {
	s.t.Helper()
	number := s.next.Add(1)
	p := &pod{s: s, node: n, name: fmt.Sprint(kind, "-", number), ns: testnet.New(s.t, "pod"), addrs: []netip.Addr{
		netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", n.Number, index)), netip.MustParseAddr(fmt.Sprintf("fd00:244:%d::%x", n.Number, index)),
	}}
	p.rt = &libcni.RuntimeConf{
		ContainerID: p.name, NetNS: p.ns.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", p.name},
			{"K8S_POD_INFRA_CONTAINER_ID", p.name}, {"K8S_POD_UID", "uid-" + p.name}},
		CapabilityArgs: map[string]any{"ips": []string{p.addrs[0].String() + "/24", p.addrs[1].String() + "/64"}},
	}
	return p
}

// object is the pod with a label, as the API server has it.
func (p *pod) object(app string) *corev1.Pod {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: p.name, UID: types.UID("uid-" + p.name), Labels: map[string]string{"app": app}}}
	o.Spec.NodeName, o.Status.Phase = p.node.Name(), corev1.PodPending
	o.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
	return o
}

// begin lets the pod and the witnesses send to each other, and creates the pod in the API server. Every
// second pod has a policy of its own, which is created just before.
func (s *site) begin(index int) *pod {
	s.t.Helper()
	p := s.newPod(s.node, "pod", 10+index)
	for _, w := range s.witnesses {
		w.sendTo(p.addrs...)
	}
	var err error
	var to []netip.Addr
	for _, w := range s.witnesses {
		to = append(to, w.addrs...)
	}
	if p.end, err = newEnd(p.ns, p.name, to...); err != nil {
		s.t.Fatal(err)
	}
	app := "closed"
	if index%2 == 1 {
		app = p.name
		s.API.Set(closed(app))
		time.Sleep(time.Millisecond)
	}
	s.API.Set(p.object(app))
	return p
}

// passed returns the packets between the pod and the witnesses so far.
func (p *pod) passed() (to, from int) {
	p.end.mu.Lock()
	for _, n := range p.end.from {
		to += n
	}
	p.end.mu.Unlock()
	for _, w := range p.s.witnesses {
		from += w.heard(p.name)
	}
	return to, from
}

// expectNone fails if packets have passed.
func (p *pod) expectNone(when string) {
	p.s.t.Helper()
	if to, from := p.passed(); to > 0 || from > 0 {
		p.s.t.Errorf("%s, %s: %d forbidden packets reached the pod, %d left it", p.name, when, to, from)
	}
}

// finish opens the pod, which shows that packets could pass, and removes it.
func (p *pod) finish() {
	s := p.s
	s.t.Helper()
	time.Sleep(20 * time.Millisecond)
	p.expectNone("after ADD")
	s.API.Set(p.object("open"))
	testnet.Eventually(s.t, patience, p.name+" sends and receives once no policy applies to it", func() bool {
		for _, w := range s.witnesses {
			if w.heard(p.name) == 0 {
				return false
			}
		}
		p.end.mu.Lock()
		defer p.end.mu.Unlock()
		return len(p.end.from) == len(s.witnesses)
	})
	p.remove()
}

func (p *pod) remove() {
	p.s.t.Helper()
	for _, w := range p.s.witnesses {
		w.leave(p.addrs...)
	}
	if err := p.node.Del(p.rt); err != nil {
		p.s.t.Errorf("DEL %s: %v", p.name, err)
	}
	p.end.close()
	p.s.API.Delete(p.object(""), closed(p.name))
}

// add returns how long ADD took, and its error.
func (p *pod) add() (took time.Duration, err error) {
	begin := time.Now()
	err = p.node.Add(p.rt)
	return time.Since(begin), err
}

// batch begins count pods and calls fn for each at once; done is called for each when all have returned.
func (s *site) batch(count int, fn, done func(*pod)) {
	s.t.Helper()
	for first := 0; first < count && !s.t.Failed(); first += atOnce {
		var pods []*pod
		for i := range min(atOnce, count-first) {
			pods = append(pods, s.begin(i))
		}
		var wg sync.WaitGroup
		for _, p := range pods {
			wg.Go(func() { fn(p) })
		}
		wg.Wait()
		for _, p := range pods {
			done(p)
		}
	}
}

// TestAdds: no packet that policies forbid reaches or leaves a pod while it starts: whether its policy is
// old or was created just before the pod, and while the agent, the API server or the daemon fails.
// LOXILIGHT_ADDS is the number of pods in each situation.
func TestAdds(t *testing.T) {
	if programs.Daemon == "" {
		t.Skip("builds the programs: not with -short")
	}
	s := newSite(t)
	count := counts(t)
	for _, situation := range []struct {
		name string
		run  func(*site, int)
	}{
		{"normal", (*site).normal}, {"agent stopped", (*site).agentStopped}, {"API server held", (*site).serverHeld}, {"daemon killed", (*site).daemonKilled},
	} {
		if !t.Run(situation.name, func(t *testing.T) {
			s.t = t
			situation.run(s, count)
		}) {
			return
		}
	}
}

func (s *site) normal(count int) {
	for i := range count {
		p := s.begin(i % 100)
		if _, err := p.add(); err != nil {
			s.t.Fatalf("ADD %s: %v", p.name, err)
		}
		p.finish()
		if s.t.Failed() {
			return
		}
	}
}

// agentStopped: ADD fails and says why, and later succeeds.
func (s *site) agentStopped(count int) {
	agent := s.node.Agent
	stop := func() { agent.Signal(syscall.SIGSTOP) }
	defer agent.Signal(syscall.SIGCONT)
	for first := 0; first < count && !s.t.Failed(); first += atOnce {
		stop()
		s.batch(min(atOnce, count-first), func(p *pod) {
			took, err := p.add()
			if err == nil || took > testnet.OnThisMachine(11*time.Second) || !strings.Contains(err.Error(), "Entity") {
				s.t.Errorf("ADD %s with a stopped agent: %v after %s", p.name, err, took)
			}
			p.expectNone("with a stopped agent")
			if err := p.node.Del(p.rt); err != nil {
				s.t.Errorf("DEL %s: %v", p.name, err)
			}
		}, func(p *pod) {
			agent.Signal(syscall.SIGCONT)
			if _, err := p.add(); err != nil {
				s.t.Errorf("ADD %s after the agent has continued: %v", p.name, err)
			}
			p.finish()
		})
	}
}

// serverHeld: the API server reports no changes, and answers no requests, for a while.
func (s *site) serverHeld(count int) {
	resources := []string{testkube.Pods, testkube.NetworkPolicies, testkube.Namespaces}
	hold := func(held bool) {
		for _, r := range resources {
			s.API.Hold(r, held)
		}
	}
	defer hold(false)
	for first := 0; first < count && !s.t.Failed(); first += atOnce {
		var held atomic.Bool
		held.Store(true)
		s.API.Fault(func(_ http.ResponseWriter, r *http.Request) bool {
			for held.Load() && r.Context().Err() == nil {
				time.Sleep(5 * time.Millisecond)
			}
			return false
		})
		hold(true)
		release := time.AfterFunc(time.Second, func() {
			held.Store(false)
			hold(false)
		})
		s.batch(min(atOnce, count-first), func(p *pod) {
			if _, err := p.add(); err != nil {
				s.t.Errorf("ADD %s with a held API server: %v", p.name, err)
			}
			p.expectNone("with a held API server")
		}, (*pod).finish)
		release.Stop()
		held.Store(false)
		s.API.Fault(nil)
	}
}

// daemonKilled: the daemon ends and starts again while ADDs run, each begun a little later than the one
// before. If ADD fails, it is repeated, as a container runtime does.
func (s *site) daemonKilled(count int) {
	for first := 0; first < count && !s.t.Failed(); first += atOnce {
		n := min(atOnce, count-first)
		var order atomic.Int64
		var killed sync.WaitGroup
		killed.Go(func() {
			time.Sleep(time.Duration(50+2*first%300) * time.Millisecond)
			s.node.Kill()
			s.node.Start()
		})
		s.batch(n, func(p *pod) {
			time.Sleep(time.Duration(order.Add(1)) * 300 * time.Millisecond / time.Duration(n))
			_, err := p.add()
			killed.Wait()
			if err == nil {
				return
			}
			p.expectNone("with the daemon killed")
			if err := p.node.Del(p.rt); err != nil {
				s.t.Errorf("DEL %s: %v", p.name, err)
			}
			if _, err := p.add(); err != nil {
				s.t.Errorf("ADD %s after the start of the daemon: %v", p.name, err)
			}
		}, (*pod).finish)
	}
}

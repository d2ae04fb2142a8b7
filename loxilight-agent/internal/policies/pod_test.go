// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// began is when the pods of these tests were created.
var began = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// pod returns a running pod.
func pod(namespace, name, node string, addresses ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(began)},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, a := range addresses {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return p
}

var here = Node{Name: "n1", Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("2001:db8:1::/64")}}

// entity returns the spec of the Entity of the only pod, or an empty string.
func entity(p *corev1.Pod) string {
	var owners Addresses
	s := NewPod(p)
	owners.Set(s.Key(), s)
	o := here.Entity(s, &owners)
	if o == nil {
		return ""
	}
	return string(o.Spec)
}

// TestEntities: which pods have an Entity, and which.
func TestEntities(t *testing.T) {
	local, remote := []string{"10.244.1.7", "2001:db8:1::7"}, []string{"10.244.2.7", "2001:db8:2::7"}
	with := func(p *corev1.Pod, change func(p *corev1.Pod)) *corev1.Pod {
		change(p)
		return p
	}
	const atN1 = `{"namespace":"shop","endpoint":{"namespace":"shop","pod":"db","uid":"uid-db"}}`
	const atN2 = `{"namespace":"shop","addresses":["10.244.2.7","2001:db8:2::7"]}`
	always := corev1.ContainerRestartPolicyAlways
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{"of this node", pod("shop", "db", "n1", local...), atN1},
		{"of this node, without an address", with(pod("shop", "db", "n1"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), atN1},
		{"of another node", pod("shop", "db", "n2", remote...), atN2},
		{"of another node, without an address", pod("shop", "db", "n2"), ""},
		{"of no node", pod("shop", "db", ""), ""},
		{"with podIP alone", with(pod("shop", "db", "n2"), func(p *corev1.Pod) { p.Status.PodIP = "10.244.2.7" }), `{"namespace":"shop","addresses":["10.244.2.7"]}`},
		{"address in the subnet of this node", pod("shop", "db", "n2", "10.244.1.7", "2001:db8:2::7"), `{"namespace":"shop","addresses":["2001:db8:2::7"]}`},
		{"all addresses in the subnets of this node", pod("shop", "db", "n2", local...), ""},
		{"addresses that no pod can have", pod("shop", "db", "n2", "127.0.0.1", "fe80::7", "x", "::ffff:10.244.2.7", "10.244.2.7", "0.0.0.0", "224.0.0.1"), `{"namespace":"shop","addresses":["10.244.2.7"]}`},
		{"network of the node", with(pod("shop", "db", "n1", "192.0.2.1"), func(p *corev1.Pod) { p.Spec.HostNetwork = true }), ""},
		{"network of another node", with(pod("shop", "db", "n2", "192.0.2.2"), func(p *corev1.Pod) { p.Spec.HostNetwork = true }), ""},
		{"succeeded", with(pod("shop", "db", "n1", local...), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), ""},
		{"failed", with(pod("shop", "db", "n2", remote...), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), ""},
		{"terminating", with(pod("shop", "db", "n2", remote...), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: began} }), atN2},
		{"terminating on this node", with(pod("shop", "db", "n1", local...), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: began} }), atN1},
		{"static", with(pod("shop", "db", "n1"), func(p *corev1.Pod) {
			p.Annotations = map[string]string{annotationMirror: "4f2a", annotationHash: "4f2a"}
		}), `{"namespace":"shop","endpoint":{"namespace":"shop","pod":"db","uid":"4f2a"}}`},
		{"hash, but not static", with(pod("shop", "db", "n1"), func(p *corev1.Pod) { p.Annotations = map[string]string{annotationHash: "4f2a"} }), atN1},
		{"labels and ports", with(pod("shop", "db", "n1"), func(p *corev1.Pod) {
			p.Labels = map[string]string{"tier": "b", "app": "db"}
			p.Spec.InitContainers = []corev1.Container{
				{Ports: []corev1.ContainerPort{{Name: "init", ContainerPort: 1}}},
				{RestartPolicy: &always, Ports: []corev1.ContainerPort{{Name: "side", ContainerPort: 15090}}},
			}
			p.Spec.Containers = []corev1.Container{
				{Ports: []corev1.ContainerPort{{Name: "sql", ContainerPort: 5432, Protocol: corev1.ProtocolTCP}, {ContainerPort: 9}, {Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP}}},
				{Ports: []corev1.ContainerPort{{Name: "sql", ContainerPort: 5432}, {Name: "sql", ContainerPort: 5433}, {Name: "odd", ContainerPort: 7, Protocol: "DCCP"}, {Name: "zero"}}},
			}
		}), `{"namespace":"shop","labels":{"app":"db","tier":"b"},"ports":[{"name":"side","protocol":"tcp","port":15090},{"name":"sql","protocol":"tcp","port":5432},` +
			`{"name":"dns","protocol":"udp","port":53},{"name":"sql","protocol":"tcp","port":5433}],"endpoint":{"namespace":"shop","pod":"db","uid":"uid-db"}}`},
	} {
		if got := entity(tt.pod); got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

// TestManyPorts: an Entity never has more ports than the daemon accepts.
func TestManyPorts(t *testing.T) {
	p := pod("shop", "db", "n1")
	p.Spec.Containers = make([]corev1.Container, 1)
	for i := range 300 {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{Name: fmt.Sprint("p", i), ContainerPort: int32(i + 1)})
	}
	if got := len(NewPod(p).ports); got != 256 {
		t.Errorf("%d ports", got)
	}
}

// TestAddressReuse: an address belongs to the running pod, otherwise to the youngest, and both pods
// are translated anew when it changes hands.
func TestAddressReuse(t *testing.T) {
	const shared = "10.244.2.7"
	old, young := pod("shop", "old", "n2", shared), pod("shop", "young", "n2", shared, "10.244.2.8")
	young.CreationTimestamp = metav1.NewTime(began.Add(time.Second))
	equal := pod("a", "equal", "n2", shared)
	var a Addresses
	set := func(p *corev1.Pod, owner string, affected ...string) {
		t.Helper()
		key := p.Namespace + "/" + p.Name
		got := a.Set(key, NewPod(p))
		slices.Sort(got)
		if !slices.Equal(got, affected) {
			t.Errorf("%s: affected %q, want %q", key, got, affected)
		}
		is := ""
		if o := a.Owner(netip.MustParseAddr(shared)); o != nil {
			is = o.Key()
		}
		if is != owner {
			t.Errorf("%s: the owner is %q, want %q", key, is, owner)
		}
	}
	set(old, "shop/old")
	set(young, "shop/young", "shop/old")
	young.Status.Phase = corev1.PodPending // only the old pod is running
	set(young, "shop/old", "shop/old")
	old.DeletionTimestamp = &metav1.Time{Time: began}
	set(old, "shop/young", "shop/young")
	old.DeletionTimestamp = nil
	set(old, "shop/old", "shop/young")
	old.Status.Phase = corev1.PodFailed // finished: it claims nothing
	set(old, "shop/young", "shop/young")
	old.Status.Phase, young.Status.Phase = corev1.PodRunning, corev1.PodRunning
	set(young, "shop/young")
	set(old, "shop/young")
	young.CreationTimestamp = old.CreationTimestamp // equally old: by name
	set(young, "shop/old", "shop/old")
	set(equal, "a/equal", "shop/old")
	young.Labels = map[string]string{"any": "other"} // concerns no address
	set(young, "a/equal")
	if got := a.Set("a/equal", nil); !slices.Equal(got, []string{"shop/old"}) {
		t.Errorf("after a deletion: affected %q", got)
	}
	a.Set("shop/old", nil)
	a.Set("shop/young", nil)
	if len(a.pods)+len(a.claims) != 0 {
		t.Errorf("left: %v %v", a.pods, a.claims)
	}
	set(old, "shop/old")
	set(young, "shop/old")
	// The Entity of the other pod has the remaining addresses.
	if o := here.Entity(a.pods["shop/young"], &a); o == nil || string(o.Spec) != `{"namespace":"shop","labels":{"any":"other"},"addresses":["10.244.2.8"]}` {
		t.Errorf("%+v", o)
	}
}

// TestIrrelevantChanges: most changes to a pod concern neither Entity nor addresses.
func TestIrrelevantChanges(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(p *corev1.Pod)
		equal  bool
	}{
		{"version", func(p *corev1.Pod) { p.ResourceVersion = "8" }, true},
		{"annotation", func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, true},
		{"condition", func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}} }, true},
		{"unnamed port", func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 9}}}}
		}, true},
		{"label", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, false},
		{"phase", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		{"begins to run", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, false},
		{"address", func(p *corev1.Pod) { p.Status.PodIPs = nil }, false},
		{"node", func(p *corev1.Pod) { p.Spec.NodeName = "n3" }, false},
		{"uid", func(p *corev1.Pod) { p.UID = "other" }, false},
		{"terminating", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: began} }, false},
	} {
		before, after := pod("shop", "db", "n2", "10.244.2.7"), pod("shop", "db", "n2", "10.244.2.7")
		tt.change(after)
		if got := NewPod(before).Equal(NewPod(after)); got != tt.equal {
			t.Errorf("%s: equal %v", tt.name, got)
		}
	}
	if p := NewPod(pod("shop", "db", "n2")); (*Pod)(nil).Equal(p) || p.Equal(nil) || !(*Pod)(nil).Equal(nil) {
		t.Error("a pod that does not exist is equal to an existing pod")
	}
}

// TestPodMemory: a pod of the cluster takes at most 600 bytes.
func TestPodMemory(t *testing.T) {
	const count = 5000
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // what the first one has made unreachable
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	kept := make([]*Pod, count)
	before := heap()
	for i := range kept {
		p := pod(fmt.Sprint("namespace-", i%50), fmt.Sprintf("deployment-%d-7d9c5b8f6-%05d", i%300, i), fmt.Sprint("node-", i%100),
			fmt.Sprintf("10.244.%d.%d", i/250, i%250), fmt.Sprintf("2001:db8::%x", i+1))
		p.UID = types.UID(fmt.Sprintf("5f0a9a8e-1a8e-4e0b-8b57-%012d", i))
		p.Labels = map[string]string{
			"app": fmt.Sprint("app-", i%300), "pod-template-hash": "7d9c5b8f6",
			"app.kubernetes.io/component": "server", "app.kubernetes.io/part-of": "shop",
		}
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}}}}
		kept[i] = NewPod(p)
	}
	each := (heap() - before) / count
	t.Logf("%d bytes for each pod", each)
	if each < 100 || each > 600 {
		t.Error("want 100 to 600")
	}
	runtime.KeepAlive(kept)
}

// SPDX-License-Identifier: Apache-2.0

package cyclonus

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/mattfenwick/cyclonus/pkg/kube"
	"github.com/mattfenwick/cyclonus/pkg/worker"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/loxilight/loxilight/internal/testcluster"
	"github.com/loxilight/loxilight/internal/testnet"
)

// kubernetes is what cyclonus sees of the cluster. It takes the part of the user, who writes objects,
// of the API server, which completes them, and of the kubelets, which attach pods.
//
// After a change, the first probe waits until the change is in force: each kind of objects that the
// agent watches has a mark in the API server, which changes after the other objects of its kind.
// Watches report changes in order, so each daemon has all changes when it has the marks.
type kubernetes struct {
	*testcluster.Cluster
	t      *testing.T
	family int // of the addresses that cyclonus sees: 0 IPv4, 1 IPv6

	mu         sync.Mutex
	namespaces map[string]*corev1.Namespace
	policies   map[string]*networkingv1.NetworkPolicy // by namespace/name, as are all below
	services   map[string]*corev1.Service
	pods       map[string]*pod
	created    int   // pods
	marks      int   // changes of the marks
	changed    bool  // objects have changed since
	fault      error // of the last wait

	*probes
}

var _ kube.IKubernetes = (*kubernetes)(nil)

// pod is a pod with its servers.
type pod struct {
	*station
	object *corev1.Pod // without its addresses
	node   *testcluster.Node
	index  int // of its address on its node
	rt     *libcni.RuntimeConf
}

func newKubernetes(t *testing.T, c *testcluster.Cluster) *kubernetes {
	return &kubernetes{
		Cluster: c, t: t, namespaces: map[string]*corev1.Namespace{}, policies: map[string]*networkingv1.NetworkPolicy{},
		services: map[string]*corev1.Service{}, pods: map[string]*pod{}, changed: true, probes: newProbes(),
	}
}

func (k *kubernetes) lock() func() {
	k.mu.Lock()
	return k.mu.Unlock
}

func missing(what, name string) error { return fmt.Errorf("%s %s not found", what, name) }

// settle waits until all changes are in force on all nodes.
func (k *kubernetes) settle() error {
	defer k.lock()()
	if !k.changed {
		return k.fault
	}
	k.marks++
	mark := map[string]string{"mark": fmt.Sprint("m", k.marks)}
	address, port := fmt.Sprintf("10.244.9.%d", k.marks%250+1), 1024+k.marks%60000
	slice := endpointSlice("mark", "mark", 0, address, nil)
	slice.Ports = slicePorts(corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 80})
	k.API.Set(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mark", Labels: mark}},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "mark", Name: "mark", UID: "mark", Labels: mark},
			Spec:       corev1.PodSpec{NodeName: "elsewhere"},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.9.254"}}},
		},
		// Each node has pods of this namespace; the policy selects none of them.
		&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "mark"},
			Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: mark}},
		},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "mark", Name: "mark"}, Spec: serviceSpec([]string{"10.96.9.9"}, int32(port))},
		slice,
	)
	label := fmt.Sprintf(`"mark":"m%d"`, k.marks)
	k.fault = k.Holds(map[string]string{
		"Namespace mark": label, "Entity pod/mark/mark": label, "Policy np/x/mark": label,
		"Service mark/mark": fmt.Sprintf(`"10.96.9.9:%d/tcp"`, port),
	})
	if k.fault == nil {
		k.fault = k.Holds(map[string]string{"Service mark/mark": `"` + address + `:80"`})
	}
	k.changed = false
	return k.fault
}

// CreateNamespace and SetNamespaceLabels write a namespace; the API server adds a label.
func (k *kubernetes) CreateNamespace(n *corev1.Namespace) (*corev1.Namespace, error) {
	defer k.lock()()
	n = n.DeepCopy()
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[kube.DefaultNamespaceLabel] = n.Name
	k.namespaces[n.Name], k.changed = n, true
	k.API.Set(n.DeepCopy())
	return n, nil
}

func (k *kubernetes) SetNamespaceLabels(name string, labels map[string]string) (*corev1.Namespace, error) {
	return k.CreateNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
}

func (k *kubernetes) GetNamespace(name string) (*corev1.Namespace, error) {
	defer k.lock()()
	if n := k.namespaces[name]; n != nil {
		return n.DeepCopy(), nil
	}
	return nil, missing("namespace", name)
}

func (k *kubernetes) GetAllNamespaces() (*corev1.NamespaceList, error) {
	defer k.lock()()
	list := &corev1.NamespaceList{}
	for _, name := range slices.Sorted(maps.Keys(k.namespaces)) {
		list.Items = append(list.Items, *k.namespaces[name].DeepCopy())
	}
	return list, nil
}

// DeleteNamespace deletes a namespace with its objects.
func (k *kubernetes) DeleteNamespace(name string) error {
	if err := k.DeleteAllNetworkPoliciesInNamespace(name); err != nil {
		return err
	}
	services, _ := k.GetServicesInNamespace(name) // cannot fail
	for _, s := range services {
		if err := k.DeleteService(name, s.Name); err != nil {
			return err
		}
	}
	pods, _ := k.GetPodsInNamespace(name) // cannot fail
	for _, p := range pods {
		if err := k.DeletePod(name, p.Name); err != nil {
			return err
		}
	}
	defer k.lock()()
	n := k.namespaces[name]
	if n == nil {
		return missing("namespace", name)
	}
	delete(k.namespaces, name)
	k.changed = true
	k.API.Delete(n)
	return nil
}

// CreateNetworkPolicy and UpdateNetworkPolicy write a policy as it is: the agent applies the defaults
// of the API server itself.
func (k *kubernetes) CreateNetworkPolicy(p *networkingv1.NetworkPolicy) (*networkingv1.NetworkPolicy, error) {
	defer k.lock()()
	k.policies[p.Namespace+"/"+p.Name], k.changed = p.DeepCopy(), true
	k.API.Set(p.DeepCopy())
	return p, nil
}

func (k *kubernetes) UpdateNetworkPolicy(p *networkingv1.NetworkPolicy) (*networkingv1.NetworkPolicy, error) {
	return k.CreateNetworkPolicy(p)
}

func (k *kubernetes) GetNetworkPoliciesInNamespace(namespace string) (list []networkingv1.NetworkPolicy, _ error) {
	defer k.lock()()
	for _, name := range slices.Sorted(maps.Keys(k.policies)) {
		if p := k.policies[name]; p.Namespace == namespace {
			list = append(list, *p.DeepCopy())
		}
	}
	return list, nil
}

func (k *kubernetes) DeleteNetworkPolicy(namespace, name string) error {
	defer k.lock()()
	p := k.policies[namespace+"/"+name]
	if p == nil {
		return missing("policy", namespace+"/"+name)
	}
	delete(k.policies, namespace+"/"+name)
	k.changed = true
	k.API.Delete(p)
	return nil
}

func (k *kubernetes) DeleteAllNetworkPoliciesInNamespace(namespace string) error {
	list, _ := k.GetNetworkPoliciesInNamespace(namespace) // cannot fail
	for _, p := range list {
		if err := k.DeleteNetworkPolicy(namespace, p.Name); err != nil {
			return err
		}
	}
	return nil
}

func serviceSpec(addresses []string, ports ...int32) corev1.ServiceSpec {
	s := corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: addresses[0], ClusterIPs: addresses}
	for _, p := range ports {
		s.Ports = append(s.Ports, corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: p})
	}
	return s
}

func slicePorts(ports ...corev1.ServicePort) (list []discoveryv1.EndpointPort) {
	for _, p := range ports {
		list = append(list, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
	}
	return list
}

// endpointSlice returns the slice of a Service, without ports.
func endpointSlice(namespace, service string, family int, address string, node *string) *discoveryv1.EndpointSlice {
	ready := true
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(service, "-", family), Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}[family],
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, NodeName: node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
}

// CreateService creates the Service s-NAMESPACE-POD of a pod, with addresses and endpoints.
func (k *kubernetes) CreateService(s *corev1.Service) (*corev1.Service, error) {
	defer k.lock()()
	s = s.DeepCopy()
	p := k.pods[s.Namespace+"/"+strings.TrimPrefix(s.Name, "s-"+s.Namespace+"-")]
	if p == nil {
		return nil, missing("the pod of service", s.Name)
	}
	s.UID = types.UID("service-" + s.Name)
	s.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
	s.Spec.Type = corev1.ServiceTypeClusterIP
	number := p.node.Number<<8 | p.index
	s.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.%d.%d", p.node.Number, p.index), fmt.Sprintf("fd00:96::%x", number)}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	k.services[s.Namespace+"/"+s.Name], k.changed = s, true
	k.API.Set(s.DeepCopy())
	name := p.node.Name()
	for family, a := range p.addresses {
		slice := endpointSlice(s.Namespace, s.Name, family, a.String(), &name)
		slice.Ports = slicePorts(s.Spec.Ports...)
		k.API.Set(slice)
	}
	return k.service(s), nil
}

// service returns a Service as cyclonus sees it, with the address of the family.
func (k *kubernetes) service(s *corev1.Service) *corev1.Service {
	s = s.DeepCopy()
	s.Spec.ClusterIP = s.Spec.ClusterIPs[k.family]
	return s
}

func (k *kubernetes) GetService(namespace, name string) (*corev1.Service, error) {
	defer k.lock()()
	if s := k.services[namespace+"/"+name]; s != nil {
		return k.service(s), nil
	}
	return nil, missing("service", namespace+"/"+name)
}

func (k *kubernetes) DeleteService(namespace, name string) error {
	defer k.lock()()
	s := k.services[namespace+"/"+name]
	if s == nil {
		return missing("service", namespace+"/"+name)
	}
	delete(k.services, namespace+"/"+name)
	k.changed = true
	k.API.Delete(s, endpointSlice(namespace, name, 0, "", nil), endpointSlice(namespace, name, 1, "", nil))
	return nil
}

func (k *kubernetes) GetServicesInNamespace(namespace string) (list []corev1.Service, _ error) {
	defer k.lock()()
	for _, name := range slices.Sorted(maps.Keys(k.services)) {
		if s := k.services[name]; s.Namespace == namespace {
			list = append(list, *k.service(s))
		}
	}
	return list, nil
}

// CreatePod creates a pod, attaches it, and starts its servers. Each node gets a pod of each
// namespace and of each name. The last four bits of the addresses of a node's pods are equal, so that
// the prefixes in cyclonus' cases distinguish them.
func (k *kubernetes) CreatePod(o *corev1.Pod) (*corev1.Pod, error) {
	defer k.lock()()
	o = o.DeepCopy()
	i := k.created
	k.created++
	n := k.Nodes[(i/nodeCount+i%nodeCount)%nodeCount]
	o.UID, o.Spec.NodeName = types.UID(fmt.Sprintf("uid-%s-%s-%d", o.Namespace, o.Name, i)), n.Name()
	o.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
	o.Status.Phase = corev1.PodPending
	index := 5
	for slices.ContainsFunc(slices.Collect(maps.Values(k.pods)), func(p *pod) bool { return p.node == n && p.index == index }) {
		index += 16
	}
	key := o.Namespace + "/" + o.Name
	p := &pod{object: o, node: n, index: index, station: &station{
		NS: testnet.New(k.t, "pod"), name: key,
		addresses: [2]netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", n.Number, index)), netip.MustParseAddr(fmt.Sprintf("fd00:244:%d::%x", n.Number, index))},
	}}
	p.rt = &libcni.RuntimeConf{
		ContainerID: string(o.UID), NetNS: p.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", o.Namespace}, {"K8S_POD_NAME", o.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", string(o.UID)}, {"K8S_POD_UID", string(o.UID)}},
		CapabilityArgs: map[string]any{"ips": []string{p.addresses[0].String() + "/24", p.addresses[1].String() + "/64"}},
	}
	k.API.Set(o.DeepCopy())
	if err := n.Add(p.rt); err != nil {
		return nil, fmt.Errorf("ADD %s: %w", key, err)
	}
	o.Status.Phase = corev1.PodRunning
	for _, a := range p.addresses {
		o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	k.pods[key], k.changed = p, true
	k.API.Set(o.DeepCopy())
	k.serve(k.t, p)
	return k.pod(p), nil
}

// pod returns a pod as cyclonus sees it, with the address of the family.
func (k *kubernetes) pod(p *pod) *corev1.Pod {
	o := p.object.DeepCopy()
	o.Status.PodIP = o.Status.PodIPs[k.family].IP
	return o
}

func (k *kubernetes) GetPod(namespace, name string) (*corev1.Pod, error) {
	defer k.lock()()
	if p := k.pods[namespace+"/"+name]; p != nil {
		return k.pod(p), nil
	}
	return nil, missing("pod", namespace+"/"+name)
}

func (k *kubernetes) DeletePod(namespace, name string) error {
	defer k.lock()()
	p := k.pods[namespace+"/"+name]
	if p == nil {
		return missing("pod", namespace+"/"+name)
	}
	delete(k.pods, namespace+"/"+name)
	k.changed = true
	err := errors.Join(p.close(), p.node.Del(p.rt))
	k.API.Delete(p.object)
	return err
}

func (k *kubernetes) SetPodLabels(namespace, name string, labels map[string]string) (*corev1.Pod, error) {
	defer k.lock()()
	p := k.pods[namespace+"/"+name]
	if p == nil {
		return nil, missing("pod", namespace+"/"+name)
	}
	p.object.Labels, k.changed = maps.Clone(labels), true
	k.API.Set(p.object.DeepCopy())
	return k.pod(p), nil
}

func (k *kubernetes) GetPodsInNamespace(namespace string) (list []corev1.Pod, _ error) {
	defer k.lock()()
	for _, name := range slices.Sorted(maps.Keys(k.pods)) {
		if p := k.pods[name]; p.object.Namespace == namespace {
			list = append(list, *k.pod(p))
		}
	}
	return list, nil
}

// ExecuteRemoteCommand sends the probes of a batch, as the program of cyclonus in a pod would.
func (k *kubernetes) ExecuteRemoteCommand(namespace, name, _ string, command []string) (string, string, error, error) {
	if len(command) != 3 || command[0] != "/worker" {
		return "", "", nil, fmt.Errorf("%q is not a batch", command)
	}
	if err := k.settle(); err != nil {
		return "", "", nil, err
	}
	batch := &worker.Batch{}
	if err := json.Unmarshal([]byte(command[2]), batch); err != nil {
		return "", "", nil, err
	}
	k.mu.Lock()
	p := k.pods[namespace+"/"+name]
	var targets []target
	for _, r := range batch.Requests {
		targets = append(targets, k.target(r))
	}
	k.mu.Unlock()
	text, err := json.Marshal(k.send(p, batch.Requests, targets))
	return string(text), "", nil, err
}

// target returns the destination of a request, which is a pod's address or the name of its Service.
func (k *kubernetes) target(r *worker.Request) (to target) {
	for _, p := range k.pods {
		service := k.services[p.object.Namespace+"/s-"+p.object.Namespace+"-"+p.object.Name]
		switch {
		case r.Host == p.addresses[k.family].String():
			to = target{p.name, p.addresses[k.family]}
		case service != nil && r.Host == kube.QualifiedServiceAddress(service.Name, service.Namespace):
			to = target{p.name, netip.MustParseAddr(service.Spec.ClusterIPs[k.family])}
		}
	}
	return to
}

// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/api"
)

// Annotations of the pods that stand for the static pods of a node: the kubelet passes the hash of
// their configuration to CNI as their uid, and not the uid of the object.
const (
	annotationMirror = "kubernetes.io/config.mirror"
	annotationHash   = "kubernetes.io/config.hash"
)

// portsMax is the maximum number of ports of an Entity. Further ports have no name, so that fewer
// rules match.
const portsMax = 256

// Pod has the fields of a pod on which its Entity depends: a node keeps all pods of the cluster.
// Strings that many pods share exist once.
type Pod struct {
	name            string
	namespace, node unique.Handle[string]
	uid             string
	version         string
	created         int64 // Unix time in seconds
	hostNetwork     bool
	finished        bool // Succeeded or Failed: it will not run again
	running         bool // and not terminating
	addresses       []netip.Addr
	labels          []label // ordered by name
	ports           []port
}

type label struct{ name, value unique.Handle[string] }

type port struct {
	name     unique.Handle[string]
	protocol unique.Handle[string] // as in [api.EntityPort]
	number   uint16
}

// NewPod returns the compact form of a pod.
func NewPod(p *corev1.Pod) *Pod {
	s := &Pod{
		name: p.Name, namespace: unique.Make(p.Namespace), node: unique.Make(p.Spec.NodeName), uid: string(p.UID),
		version: p.ResourceVersion, created: p.CreationTimestamp.Unix(), hostNetwork: p.Spec.HostNetwork,
		finished: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		running:  p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil,
	}
	if mirror, ok := p.Annotations[annotationMirror]; ok {
		s.uid = cmp.Or(p.Annotations[annotationHash], mirror)
	}
	if len(p.Labels) > 0 {
		s.labels = make([]label, 0, len(p.Labels))
		for _, name := range slices.Sorted(maps.Keys(p.Labels)) {
			s.labels = append(s.labels, label{unique.Make(name), unique.Make(p.Labels[name])})
		}
	}
	s.addresses = addressesOf(p)
	s.ports = portsOf(p)
	return s
}

// addressesOf returns the addresses of a pod that may be the address of an Entity.
func addressesOf(p *corev1.Pod) (list []netip.Addr) {
	texts := p.Status.PodIPs
	if len(texts) == 0 && p.Status.PodIP != "" {
		texts = []corev1.PodIP{{IP: p.Status.PodIP}}
	}
	for _, text := range texts {
		a, err := netip.ParseAddr(text.IP)
		a = a.Unmap()
		if err == nil && a.Zone() == "" && a.IsGlobalUnicast() && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return slices.Clip(list)
}

// portsOf returns the named ports of the containers that run beside each other. A sidecar is an
// init container.
func portsOf(p *corev1.Pod) (list []port) {
	add := func(c *corev1.Container) {
		for _, cp := range c.Ports {
			protocol, ok := protocolOf(&cp.Protocol)
			named := port{unique.Make(cp.Name), unique.Make(protocol), uint16(cp.ContainerPort)}
			if cp.Name != "" && ok && cp.ContainerPort > 0 && cp.ContainerPort <= 65535 && len(list) < portsMax && !slices.Contains(list, named) {
				list = append(list, named)
			}
		}
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	return slices.Clip(list)
}

// GetObjectMeta implements [metav1.ObjectMetaAccessor], with the fields that identify a version of
// the pod.
func (p *Pod) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.Namespace(), Name: p.name, ResourceVersion: p.version}
}

// Name returns the pod's name.
func (p *Pod) Name() string { return p.name }

// Namespace returns the pod's namespace.
func (p *Pod) Namespace() string { return p.namespace.Value() }

// UID identifies the pod as its container runtime does.
func (p *Pod) UID() string { return p.uid }

// Version returns the pod's resourceVersion.
func (p *Pod) Version() string { return p.version }

// Key returns namespace/name.
func (p *Pod) Key() string { return p.Namespace() + "/" + p.name }

// On reports whether the pod is bound to a node.
func (p *Pod) On(node string) bool { return p.node.Value() == node }

// Participates reports whether policies apply to the pod and select it. Pods with the network of
// their node count as the node. Finished pods match nothing, because another pod may have their
// address; terminating pods still match.
func (p *Pod) Participates() bool { return p != nil && !p.hostNetwork && !p.finished }

// Equal reports whether two versions of a pod have the same Entity and claim the same addresses.
// Either may be nil: the pod does not exist.
func (p *Pod) Equal(q *Pod) bool {
	if p == nil || q == nil {
		return p == q
	}
	return p.name == q.name && p.namespace == q.namespace && p.node == q.node && p.uid == q.uid && p.created == q.created &&
		p.hostNetwork == q.hostNetwork && p.finished == q.finished && p.running == q.running &&
		slices.Equal(p.addresses, q.addresses) && slices.Equal(p.labels, q.labels) && slices.Equal(p.ports, q.ports)
}

// Node has the properties of this node on which Entities depend.
type Node struct {
	Name    string
	Subnets []netip.Prefix // of its pods: Endpoints have these addresses
}

// Entity translates a pod, or returns nil if the pod has no Entity. The Entity of a pod of this node
// names its Endpoint, which need not exist yet; the Entity of another pod has the addresses that
// owners assigns to the pod.
func (n *Node) Entity(p *Pod, owners *Addresses) *api.Object {
	if !p.Participates() {
		return nil
	}
	spec := api.EntitySpec{Namespace: p.Namespace()}
	if len(p.labels) > 0 {
		spec.Labels = make(map[string]string, len(p.labels))
		for _, l := range p.labels {
			spec.Labels[labelKey(l.name.Value())] = l.value.Value()
		}
	}
	for _, named := range p.ports {
		spec.Ports = append(spec.Ports, api.EntityPort{Name: named.name.Value(), Protocol: named.protocol.Value(), Port: int(named.number)})
	}
	if p.On(n.Name) {
		spec.Endpoint = &api.EntityEndpoint{Namespace: spec.Namespace, Pod: p.name, UID: p.uid}
	} else {
		for _, a := range p.addresses {
			if owners.Owner(a) == p && !slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return s.Contains(a) }) {
				spec.Addresses = append(spec.Addresses, a.String())
			}
		}
		if len(spec.Addresses) == 0 {
			return nil
		}
	}
	o := object(api.KindEntity, EntityName(spec.Namespace, p.name), nil, spec)
	return &o
}

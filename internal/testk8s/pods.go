// SPDX-License-Identifier: Apache-2.0

package testk8s

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// Object contains the fields of the API server's objects that tests need.
type Object struct {
	Kind     string
	Metadata struct {
		Name, Namespace, UID string
		DeletionTimestamp    string
		Annotations          map[string]string
	}
	Spec struct {
		NodeName   string
		PodCIDRs   []string
		ClusterIP  string
		ClusterIPs []string
		Ports      []struct {
			Name     string
			Port     uint16
			NodePort uint16
		}
		HealthCheckNodePort uint16
	}
	Status struct {
		Phase      string
		PodIP      netip.Addr
		PodIPs     []struct{ IP netip.Addr }
		HostIP     string
		Conditions []struct{ Type, Status, Reason, Message string }

		ObservedGeneration, NumberReady, DesiredNumberScheduled, UpdatedNumberScheduled int
		Replicas, ReadyReplicas, UpdatedReplicas                                        int

		LoadBalancer struct {
			Ingress []struct{ IP, Hostname string }
		}
	}
}

// Is reports whether a condition has a status.
func (o *Object) Is(condition, status string) bool {
	for _, c := range o.Status.Conditions {
		if c.Type == condition {
			return c.Status == status
		}
	}
	return false
}

// List returns the objects at a path, with a query.
func (c *Cluster) List(path string) ([]Object, error) {
	var list struct{ Items []Object }
	err := c.API.Get(path, &list)
	return list.Items, err
}

// Pods returns the pods of a namespace that have a label, and are not being deleted.
func (c *Cluster) Pods(namespace, label string) ([]Object, error) {
	all, err := c.List(fmt.Sprintf("/api/v1/namespaces/%s/pods?labelSelector=%s", namespace, label))
	return slices.DeleteFunc(all, func(o Object) bool { return o.Metadata.DeletionTimestamp != "" }), err
}

// podPatience is how long pods may take. A controller that missed the end of its last pod because
// the API server was killed creates no new pod for five minutes.
const podPatience = 6 * time.Minute

// ReadyPods waits until exactly count pods exist and all of them are Ready, and returns them.
func (c *Cluster) ReadyPods(t testnet.T, namespace, label string, count int) (pods []Object) {
	t.Helper()
	var err error
	defer func() {
		if t.Failed() {
			t.Logf("pods %s of %s: %v %+v", label, namespace, err, pods)
		}
	}()
	testnet.Eventually(t, podPatience, fmt.Sprintf("%d pods %s of %s are Ready", count, label, namespace), func() bool {
		time.Sleep(50 * time.Millisecond)
		pods, err = c.Pods(namespace, label)
		ready := 0
		for _, p := range pods {
			if p.Is("Ready", "True") {
				ready++
			}
		}
		return err == nil && ready == count && len(pods) == count
	})
	return pods
}

// Node returns the node of that name.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n
		}
	}
	c.t.Fatalf("there is no node %s", name)
	return nil
}

// Inside returns the network namespace of a pod: the namespace that has the pod's address. For pods
// in the host network, it is the node's namespace.
func (c *Cluster) Inside(t testnet.T, pod *Object) *testnet.NS {
	t.Helper()
	node := c.Node(pod.Spec.NodeName)
	if slices.Contains(node.IPs, pod.Status.PodIP) {
		return node.NS
	}
	paths, err := filepath.Glob(node.path("/run/netns/cni-*"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, path := range paths {
		ns, err := testnet.At(t, pod.Metadata.Name, path)
		if err != nil {
			continue // the namespace has been deleted in the meantime
		}
		has := false
		err = ns.Try(func() error {
			addrs, err := net.InterfaceAddrs()
			for _, a := range addrs {
				if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr() == pod.Status.PodIP {
					has = true
				}
			}
			return err
		})
		if err == nil && has {
			return ns
		}
	}
	t.Fatalf("no network namespace of %s has %s, the address of pod %s", node.Name, pod.Status.PodIP, pod.Metadata.Name)
	return nil
}

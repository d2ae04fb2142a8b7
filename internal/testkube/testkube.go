// SPDX-License-Identifier: Apache-2.0

// Package testkube is an API server for tests: over real HTTP it lists, pages, watches, streams
// lists and expires revisions like a real API server, and it fails on request. It validates
// nothing.
package testkube

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// T is the part of testing.T that the server needs.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// Server is an API server without objects. Its methods are safe for concurrent use.
type Server struct {
	URL string

	t      T
	server *httptest.Server
	mu     sync.Mutex
	kinds  map[string]*kind // by resource
	rv     uint64
	change chan struct{} // closed with each change
	cut    chan struct{} // closed when watches are cut
	fault  func(http.ResponseWriter, *http.Request) bool
	calls  map[string]int // requests by verb and resource
	events []corev1.Event
	down   bool // each connection is closed without an answer
	// noStreams rejects streamed lists, as servers before 1.32 do.
	noStreams bool
	defined   string // the version in which ClusterPolicies are served; empty: the server lacks the resource
}

// kind holds the objects of one resource.
type kind struct {
	name, apiVersion string
	items            map[string]*record // by namespace/name
	history          []entry
	forgotten        uint64 // earlier events can no longer be sent
	held             bool   // watches do not report changes
}

type record struct {
	object metav1.Object
	raw    []byte
	rv     uint64
}

// entry is a past change.
type entry struct {
	rv     uint64
	action string // ADDED, MODIFIED, DELETED
	record *record
}

// Resources are the names that the server knows.
const (
	Nodes          = "nodes"
	Services       = "services"
	EndpointSlices = "endpointslices"
	Leases         = "leases"

	Pods            = "pods"
	Namespaces      = "namespaces"
	NetworkPolicies = "networkpolicies"
	ClusterPolicies = "clusternetworkpolicies" // added by a definition, see Define
)

// The group of [ClusterPolicies], and the version in which tests use them.
const (
	clusterPolicyGroup   = "policy.networking.k8s.io"
	ClusterPolicyVersion = "v1alpha2"
)

// New starts a server, which ends with the test.
func New(t T) *Server {
	t.Helper()
	s := &Server{t: t, rv: 100, change: make(chan struct{}), cut: make(chan struct{}), calls: map[string]int{}, kinds: map[string]*kind{
		Nodes: {name: "Node", apiVersion: "v1"}, Services: {name: "Service", apiVersion: "v1"},
		EndpointSlices: {name: "EndpointSlice", apiVersion: "discovery.k8s.io/v1"},
		Leases:         {name: "Lease", apiVersion: "coordination.k8s.io/v1"},
		Pods:           {name: "Pod", apiVersion: "v1"}, Namespaces: {name: "Namespace", apiVersion: "v1"},
		NetworkPolicies: {name: "NetworkPolicy", apiVersion: "networking.k8s.io/v1"},
		ClusterPolicies: {name: "ClusterNetworkPolicy", apiVersion: clusterPolicyGroup + "/" + ClusterPolicyVersion},
	}}
	for _, k := range s.kinds {
		k.items = map[string]*record{}
	}
	s.server = httptest.NewUnstartedServer(s)
	s.server.Start()
	s.URL = s.server.URL
	t.Cleanup(s.Stop)
	return s
}

// Stop stops the server as a crash would: connections break, and new connections are refused.
func (s *Server) Stop() {
	s.mu.Lock()
	s.down = true
	s.mu.Unlock()
	s.CutWatches()
	s.server.CloseClientConnections()
	s.server.Close()
}

// Start starts a stopped server at the same address, with its previous objects.
func (s *Server) Start() {
	s.t.Helper()
	var listener net.Listener
	err := errors.New("not tried")
	// A client that connects from a port that the kernel chose may have got just this port: for a moment
	// it is then connected with itself.
	for end := time.Now().Add(20 * time.Second); err != nil; time.Sleep(10 * time.Millisecond) {
		if listener, err = net.Listen("tcp", strings.TrimPrefix(s.URL, "http://")); err != nil && time.Now().After(end) {
			s.t.Fatalf("start the API server again: %v", err)
		}
	}
	s.mu.Lock()
	s.down = false
	s.mu.Unlock()
	s.server = httptest.NewUnstartedServer(s)
	_ = s.server.Listener.Close() // no client has connected to it
	s.server.Listener = listener
	s.server.Start()
}

// Fault lets f handle each request first: f returns true if it has answered the request or closed
// the connection. If f is nil, there are no faults.
func (s *Server) Fault(f func(http.ResponseWriter, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// NoStreams sets whether the server rejects streamed lists.
func (s *Server) NoStreams(no bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noStreams = no
}

// Define sets the version in which the server serves ClusterPolicies. At first, and with an empty
// version, it lacks the resource. Running watches continue, and objects stay.
func (s *Server) Define(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.defined = version
}

// CutWatches ends all current watches.
func (s *Server) CutWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// Hold sets whether watches of a resource report no changes, as a slow server's: lists do.
func (s *Server) Hold(resource string, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds[resource].held = held
	s.tell()
}

// CutConnections breaks all connections; new ones are accepted.
func (s *Server) CutConnections() { s.server.CloseClientConnections() }

// Forget expires all events so far: 410 Gone.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kinds {
		k.history, k.forgotten = nil, s.rv
	}
}

// Calls returns the number of requests of one kind, such as "list nodes" or "patch nodes".
func (s *Server) Calls(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[what]
}

// Events returns the events that were written.
func (s *Server) Events() []corev1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// Set creates or updates objects.
func (s *Server) Set(objects ...metav1.Object) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		s.set(o)
	}
	s.tell()
}

func (s *Server) set(o metav1.Object) {
	k := s.kindOf(o)
	s.rv++
	o.SetResourceVersion(strconv.FormatUint(s.rv, 10))
	key := o.GetNamespace() + "/" + o.GetName()
	action := "MODIFIED"
	if k.items[key] == nil {
		action = "ADDED"
	}
	r := &record{object: o, raw: encode(k, o), rv: s.rv}
	k.items[key] = r
	k.history = append(k.history, entry{s.rv, action, r})
}

// Delete deletes the objects with these names.
func (s *Server) Delete(objects ...metav1.Object) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		k := s.kindOf(o)
		key := o.GetNamespace() + "/" + o.GetName()
		old := k.items[key]
		if old == nil {
			continue
		}
		delete(k.items, key)
		s.rv++
		old.object.SetResourceVersion(strconv.FormatUint(s.rv, 10))
		k.history = append(k.history, entry{s.rv, "DELETED", &record{old.object, encode(k, old.object), s.rv}})
	}
	s.tell()
}

// Node, Service, Slice and Lease return copies of the stored object, or nil if it does not exist.

// Node returns a node.
func (s *Server) Node(name string) *corev1.Node { return get[corev1.Node](s, Nodes, "/"+name) }

// Service returns a service.
func (s *Server) Service(namespace, name string) *corev1.Service {
	return get[corev1.Service](s, Services, namespace+"/"+name)
}

// Lease returns a lease.
func (s *Server) Lease(namespace, name string) *coordinationv1.Lease {
	return get[coordinationv1.Lease](s, Leases, namespace+"/"+name)
}

// ClusterPolicy returns a ClusterNetworkPolicy.
func (s *Server) ClusterPolicy(name string) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.kinds[ClusterPolicies].items["/"+name]
	if r == nil {
		return nil
	}
	return r.object.(*unstructured.Unstructured).DeepCopy()
}

// NewClusterPolicy returns a ClusterNetworkPolicy with a spec in JSON.
func NewClusterPolicy(name, spec string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	text := fmt.Sprintf(`{"kind":"ClusterNetworkPolicy","apiVersion":"%s/%s","metadata":{"name":%q,"generation":1},"spec":%s}`, clusterPolicyGroup, ClusterPolicyVersion, name, spec)
	if err := json.Unmarshal([]byte(text), u); err != nil {
		panic(err) // a mistake in a test
	}
	return u
}

func get[T any](s *Server, resource, key string) *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.kinds[resource].items[key]
	if r == nil {
		return nil
	}
	t := new(T)
	if err := json.Unmarshal(r.raw, t); err != nil {
		panic(err) // it was encoded by this server
	}
	return t
}

func (s *Server) kindOf(o metav1.Object) *kind {
	switch o.(type) {
	case *corev1.Node:
		return s.kinds[Nodes]
	case *corev1.Service:
		return s.kinds[Services]
	case *discoveryv1.EndpointSlice:
		return s.kinds[EndpointSlices]
	case *coordinationv1.Lease:
		return s.kinds[Leases]
	case *corev1.Pod:
		return s.kinds[Pods]
	case *corev1.Namespace:
		return s.kinds[Namespaces]
	case *unstructured.Unstructured:
		return s.kinds[ClusterPolicies]
	case *networkingv1.NetworkPolicy:
		return s.kinds[NetworkPolicies]
	}
	panic(fmt.Sprintf("testkube does not know %T", o))
}

func (s *Server) tell() {
	close(s.change)
	s.change = make(chan struct{})
}

// encode returns an object encoded for sending, with its kind.
func encode(k *kind, o metav1.Object) []byte {
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err) // plain data can always be encoded
	}
	if _, named := o.(*unstructured.Unstructured); named {
		return raw
	}
	return append(fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, k.name, k.apiVersion), raw[1:]...)
}

// sorted returns the records of kind k for whose objects chosen returns true, sorted by key.
func (k *kind) sorted(chosen func(metav1.Object) bool) []*record {
	var list []*record
	for _, key := range slices.Sorted(maps.Keys(k.items)) {
		if r := k.items[key]; chosen(r.object) {
			list = append(list, r)
		}
	}
	return list
}

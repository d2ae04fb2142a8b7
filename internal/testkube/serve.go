// SPDX-License-Identifier: Apache-2.0

package testkube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(path) >= 2 && path[0] == "api":
		path = path[2:]
	case len(path) >= 3 && path[0] == "apis" && path[1] == clusterPolicyGroup && !s.isDefined(path[2]):
		fail(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource")
		return
	case (len(path) == 2 || len(path) == 3) && path[0] == "apis":
		s.discover(w, path[1], len(path) == 3)
		return
	case len(path) >= 3 && path[0] == "apis":
		path = path[3:]
	default:
		fail(w, http.StatusNotFound, "NotFound", "no such path")
		return
	}
	namespace := ""
	if len(path) > 2 && path[0] == "namespaces" {
		namespace, path = path[1], path[2:]
	}
	verb := strings.ToLower(r.Method)
	if watch := r.URL.Query().Get("watch"); watch == "true" || watch == "1" {
		verb = "watch"
	} else if r.Method == http.MethodGet && len(path) == 1 {
		verb = "list"
	}
	s.mu.Lock()
	s.calls[verb+" "+path[0]]++
	fault, down := s.fault, s.down
	s.mu.Unlock()
	if down {
		panic(http.ErrAbortHandler)
	}
	if fault != nil && fault(w, r) {
		return
	}
	k := s.kinds[path[0]]
	switch {
	case path[0] == "events" && verb == "post":
		s.postEvent(w, r)
	case k == nil:
		fail(w, http.StatusNotFound, "NotFound", "no such resource")
	case verb == "list":
		s.list(w, r, k)
	case verb == "watch":
		s.watch(w, r, k)
	case verb == "post":
		s.write(w, r, k, namespace, "")
	case verb == "get":
		s.read(w, k, namespace+"/"+path[1])
	case verb == "put":
		s.write(w, r, k, namespace, path[1])
	case verb == "patch" && len(path) == 3 && path[2] == "status":
		s.patchStatus(w, r, k, namespace+"/"+path[1])
	default:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed", r.Method+" "+r.URL.Path)
	}
}

func (s *Server) isDefined(version string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.defined == version
}

// discover answers which versions a group has, or which resources a version of it has. Only the group
// of ClusterPolicies is known.
func (s *Server) discover(w http.ResponseWriter, group string, resources bool) {
	s.mu.Lock()
	version, down := s.defined, s.down
	s.calls["discover"]++
	s.mu.Unlock()
	switch {
	case down:
		panic(http.ErrAbortHandler)
	case group != clusterPolicyGroup || version == "":
		fail(w, http.StatusNotFound, "NotFound", "no such group")
	case resources:
		answer(w, http.StatusOK, fmt.Appendf(nil, `{"kind":"APIResourceList","groupVersion":"%s/%s","resources":[{"name":%q,"kind":"ClusterNetworkPolicy"}]}`, group, version, ClusterPolicies))
	default:
		answer(w, http.StatusOK, fmt.Appendf(nil, `{"kind":"APIGroup","name":%q,"versions":[{"groupVersion":"%[1]s/%[2]s","version":%[2]q}]}`, group, version))
	}
}

func fail(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(status(code, reason, message)) // the client may have disconnected
}

func status(code int, reason, message string) []byte {
	raw, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: metav1.StatusReason(reason), Message: message,
	})
	if err != nil {
		panic(err) // plain data can always be encoded
	}
	return raw
}

// selector returns a function that reports whether the request selects an object: by labels, by
// metadata.name, and by the namespace in its path.
func selector(r *http.Request) func(metav1.Object) bool {
	q := r.URL.Query()
	chosen, err := labels.Parse(q.Get("labelSelector"))
	named, ferr := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil || ferr != nil {
		return func(metav1.Object) bool { return false }
	}
	namespace := ""
	if _, rest, ok := strings.Cut(r.URL.Path, "/namespaces/"); ok {
		namespace, _, _ = strings.Cut(rest, "/")
	}
	return func(o metav1.Object) bool {
		return chosen.Matches(labels.Set(o.GetLabels())) && named.Matches(fields.Set{"metadata.name": o.GetName()}) &&
			(namespace == "" || o.GetNamespace() == namespace)
	}
}

// list answers a list request, in pages if requested. Pages after the first reflect the current
// state: unlike on a real server, changes made since the first page are visible.
func (s *Server) list(w http.ResponseWriter, r *http.Request, k *kind) {
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("limit")) // absent: 0
	var rv uint64
	begin := 0
	s.mu.Lock()
	rv = s.rv
	least, _ := strconv.ParseUint(q.Get("resourceVersion"), 10, 64) // absent: 0
	if q.Get("resourceVersionMatch") == "NotOlderThan" && least > rv {
		s.mu.Unlock()
		fail(w, http.StatusGatewayTimeout, "Timeout", "Too large resource version")
		return
	}
	if next := q.Get("continue"); next != "" {
		if n, _ := fmt.Sscanf(next, "%d.%d", &rv, &begin); n != 2 || rv < k.forgotten {
			s.mu.Unlock()
			fail(w, http.StatusGone, "Expired", "the provided continue parameter is too old")
			return
		}
	}
	all := k.sorted(selector(r))
	s.mu.Unlock()
	end := len(all)
	if limit > 0 {
		end = min(end, begin+limit)
	}
	var body bytes.Buffer
	fmt.Fprintf(&body, `{"kind":"%sList","apiVersion":%q,"metadata":{"resourceVersion":"%d"`, k.name, k.apiVersion, rv)
	if end < len(all) {
		fmt.Fprintf(&body, `,"continue":"%d.%d"`, rv, end)
	}
	body.WriteString(`},"items":[`)
	for i, record := range all[min(begin, end):end] {
		if i > 0 {
			body.WriteByte(',')
		}
		body.Write(record.raw)
	}
	body.WriteString(`]}`)
	w.Header().Set("Content-Type", "application/json")
	_, _ = body.WriteTo(w) // the client may have disconnected
}

// watch sends the events that follow a revision, and further events as they happen.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, k *kind) {
	q := r.URL.Query()
	since, _ := strconv.ParseUint(q.Get("resourceVersion"), 10, 64) // absent: 0
	stream := q.Get("sendInitialEvents") == "true"
	chosen := selector(r)
	s.mu.Lock()
	if stream && s.noStreams {
		s.mu.Unlock()
		fail(w, http.StatusUnprocessableEntity, "Invalid", "sendInitialEvents is forbidden for watch")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	flush := http.NewResponseController(w).Flush
	send := func(action string, raw []byte) bool {
		_, err := fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", action, raw)
		return err == nil
	}
	tooOld := since < k.forgotten && since != 0
	var initial []*record
	if stream {
		tooOld, since, initial = false, s.rv, k.sorted(chosen)
	} else if since == 0 {
		since, initial = s.rv, k.sorted(chosen)
	}
	cut, down := s.cut, s.down
	s.mu.Unlock()
	if down {
		panic(http.ErrAbortHandler)
	}
	if tooOld {
		send("ERROR", status(http.StatusGone, "Expired", fmt.Sprintf("too old resource version: %d", since)))
		return
	}
	for _, record := range initial {
		if !send("ADDED", record.raw) {
			return
		}
	}
	if stream {
		send("BOOKMARK", fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}`, k.name, k.apiVersion, since))
	}
	if flush() != nil {
		return
	}
	s.follow(r, k, since, chosen, cut, func(e entry) bool {
		return send(e.action, e.record.raw) && flush() == nil
	})
}

// follow calls tell with each change after a revision, until the client ends or is cut off.
func (s *Server) follow(r *http.Request, k *kind, since uint64, chosen func(metav1.Object) bool, cut chan struct{}, tell func(entry) bool) {
	for {
		s.mu.Lock()
		change := s.change
		var news []entry
		for _, e := range k.history {
			if e.rv > since && !k.held && chosen(e.record.object) {
				news = append(news, e)
			}
		}
		if !k.held {
			since = s.rv
		}
		s.mu.Unlock()
		for _, e := range news {
			if !tell(e) {
				return
			}
		}
		select {
		case <-change:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (s *Server) postEvent(w http.ResponseWriter, r *http.Request) {
	var e corev1.Event
	if err := readObject(r, &e); err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	s.mu.Lock()
	s.events = append(s.events, e)
	s.mu.Unlock()
	answer(w, http.StatusCreated, encode(&kind{name: "Event", apiVersion: "v1"}, &e))
}

func answer(w http.ResponseWriter, code int, raw []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(raw) // the client may have disconnected
}

func (s *Server) read(w http.ResponseWriter, k *kind, key string) {
	s.mu.Lock()
	record := k.items[key]
	s.mu.Unlock()
	if record == nil {
		fail(w, http.StatusNotFound, "NotFound", key+" not found")
		return
	}
	answer(w, http.StatusOK, record.raw)
}

// write creates a lease, or updates an unchanged one.
func (s *Server) write(w http.ResponseWriter, r *http.Request, k *kind, namespace, name string) {
	var l coordinationv1.Lease
	if err := readObject(r, &l); err != nil || k.name != "Lease" {
		fail(w, http.StatusBadRequest, "BadRequest", fmt.Sprint(k.name, err))
		return
	}
	l.Namespace = namespace
	s.mu.Lock()
	defer s.mu.Unlock()
	old := k.items[namespace+"/"+l.Name]
	switch {
	case name == "" && old != nil:
		fail(w, http.StatusConflict, "AlreadyExists", l.Name)
		return
	case name != "" && (old == nil || l.ResourceVersion != "" && l.ResourceVersion != old.object.GetResourceVersion()):
		fail(w, http.StatusConflict, "Conflict", l.Name)
		return
	}
	s.set(&l)
	s.tell()
	answer(w, http.StatusOK, k.items[namespace+"/"+l.Name].raw)
}

// patchStatus merges nodes' conditions by type, and sets services' load balancer status, with its
// field manager.
func (s *Server) patchStatus(w http.ResponseWriter, r *http.Request, k *kind, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := k.items[key]
	if record == nil {
		fail(w, http.StatusNotFound, "NotFound", key)
		return
	}
	var err error
	switch o := record.object.(type) {
	case *corev1.Node:
		var patch corev1.Node
		if err = readJSON(r, &patch); err == nil {
			node := o.DeepCopy()
			for _, c := range patch.Status.Conditions {
				mergeCondition(node, c)
			}
			s.set(node)
		}
	case *corev1.Service:
		var patch corev1.Service
		if err = readJSON(r, &patch); err == nil {
			if patch.ResourceVersion != "" && patch.ResourceVersion != o.ResourceVersion {
				fail(w, http.StatusConflict, "Conflict", key)
				return
			}
			service := o.DeepCopy()
			service.Status.LoadBalancer = patch.Status.LoadBalancer
			if manager := r.URL.Query().Get("fieldManager"); manager != "" {
				service.ManagedFields = []metav1.ManagedFieldsEntry{{
					Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Subresource: "status",
					FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:loadBalancer":{"f:ingress":{}}}}`),
				}}
			}
			s.set(service)
		}
	case *unstructured.Unstructured:
		patch := &unstructured.Unstructured{}
		var raw []byte
		if raw, err = io.ReadAll(r.Body); err == nil {
			err = json.Unmarshal(raw, &patch.Object)
		}
		if err == nil && patch.GetResourceVersion() != o.GetResourceVersion() {
			fail(w, http.StatusConflict, "Conflict", key)
			return
		}
		if err == nil {
			policy := o.DeepCopy()
			policy.Object["status"] = patch.Object["status"]
			s.set(policy)
		}
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	s.tell()
	answer(w, http.StatusOK, k.items[key].raw)
}

func mergeCondition(node *corev1.Node, c corev1.NodeCondition) {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == c.Type {
			node.Status.Conditions[i] = c
			return
		}
	}
	node.Status.Conditions = append(node.Status.Conditions, c)
}

func readJSON(r *http.Request, into any) error {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// decoder reads JSON and protobuf.
var decoder = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(coordinationv1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme).UniversalDeserializer()
}()

// readObject reads an API object in either encoding.
func readObject(r *http.Request, into runtime.Object) error {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	_, _, err = decoder.Decode(raw, nil, into)
	return err
}

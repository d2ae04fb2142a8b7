// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Watcher keeps stores in step with the API server, across all its failures.
type Watcher struct {
	Log *slog.Logger
	// Failed is called with each failed request for a resource; may be nil.
	Failed func(resource string, err error)

	mu       sync.Mutex
	reported map[string]time.Time // when a failure of a resource was last reported
}

// Nodes fills a store with all nodes, until ctx is done.
func (w *Watcher) Nodes(ctx context.Context, c *Client, s *Store[corev1.Node]) {
	run(ctx, w, resource{clients: c.core, name: "nodes", sample: &corev1.Node{}}, s)
}

// Services fills a store with the Services that a label selector selects, or with all Services if
// selector is nil.
func (w *Watcher) Services(ctx context.Context, c *Client, selector labels.Selector, s *Store[corev1.Service]) {
	run(ctx, w, resource{clients: c.core, name: "services", selector: selector, sample: &corev1.Service{}}, s)
}

// Namespaces fills a store with all namespaces.
func (w *Watcher) Namespaces(ctx context.Context, c *Client, s *Store[corev1.Namespace]) {
	run(ctx, w, resource{clients: c.core, name: "namespaces", sample: &corev1.Namespace{}}, s)
}

// EndpointSlices fills a store with the converted EndpointSlices that a selector selects.
func EndpointSlices[T any](ctx context.Context, w *Watcher, c *Client, selector labels.Selector, s *Store[T]) {
	run(ctx, w, resource{clients: c.discovery, name: "endpointslices", selector: selector, sample: &discoveryv1.EndpointSlice{}}, s)
}

// Pods fills a store with all converted pods.
func Pods[T any](ctx context.Context, w *Watcher, c *Client, s *Store[T]) {
	run(ctx, w, resource{clients: c.core, name: "pods", sample: &corev1.Pod{}}, s)
}

// NetworkPolicies fills a store with all converted NetworkPolicies.
func NetworkPolicies[T any](ctx context.Context, w *Watcher, c *Client, s *Store[T]) {
	run(ctx, w, resource{clients: c.networking, name: "networkpolicies", sample: &networkingv1.NetworkPolicy{}}, s)
}

// The pauses between requests to an API server that does not answer. They are randomized by up to
// 100 %, so that the agents of a large cluster return one after the other.
const pauseMin, pauseMax = 500 * time.Millisecond, 8 * time.Second

// resource is what a store is filled with.
type resource struct {
	clients  pair
	name     string
	selector labels.Selector // nil: all objects
	sample   runtime.Object
	optional bool // the cluster may lack the resource
}

func run[T any](ctx context.Context, w *Watcher, r resource, s *Store[T]) {
	for current := 0; ctx.Err() == nil; current = 1 - current {
		other := r.clients[1-current]
		s.mu.Lock()
		s.implausible = func(err error) { w.failed(r.name, err) }
		s.elsewhere = func(ctx context.Context) (map[string]string, error) { return r.versions(ctx, other) }
		s.mu.Unlock()
		if r.optional && !awaitResource(ctx, w, r, r.clients[current], s) {
			continue
		}
		listed, cancel := context.WithCancel(ctx)
		lw := &source{client: r.clients[current], resource: r.name, selector: r.selector, failed: w.failed}
		if r.optional {
			lw.missing = cancel
		}
		backoff := &wait.Backoff{Duration: pauseMin, Cap: pauseMax, Steps: 8, Factor: 2, Jitter: 1}
		reflector := cache.NewReflectorWithOptions(lw, r.sample, s, cache.ReflectorOptions{Name: r.name, TypeDescription: r.name, Backoff: backoff})
		var again sync.WaitGroup
		again.Go(func() {
			select {
			case <-s.again: // from the other API server
				cancel()
			case <-listed.Done():
			}
		})
		reflector.RunWithContext(listed)
		cancel()
		again.Wait()
	}
}

// versions lists the versions of all objects. The list is empty if the cluster lacks the resource.
func (r *resource) versions(ctx context.Context, c *rest.RESTClient) (map[string]string, error) {
	all, err := versions(ctx, c, r.name, "", metav1.ListOptions{})
	if r.optional && apierrors.IsNotFound(err) {
		served, err := isServed(ctx, c, r.name)
		if err == nil && served {
			err = fmt.Errorf("%s: the server has just started to serve them", r.name)
		}
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	return all.Objects, nil
}

// The pause before a resource that the cluster lacks is looked for again. It is randomized by up to
// 100 %.
const absentPause = 5 * time.Second

// awaitResource reports whether a server serves an optional resource. Otherwise it empties the store,
// if all servers agree that the resource does not exist, and returns after a pause.
func awaitResource[T any](ctx context.Context, w *Watcher, r resource, c *rest.RESTClient, s *Store[T]) bool {
	request, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	err := c.Get().Resource(r.name).SetHeader("Accept", acceptMetadata).VersionedParams(&metav1.ListOptions{Limit: 1}, metav1.ParameterCodec).Do(request).Error()
	if err == nil {
		s.setAbsent(false)
		return true
	}
	if apierrors.IsNotFound(err) {
		var served bool
		if served, err = isServed(request, c, r.name); served {
			err = fmt.Errorf("%s: the server has just started to serve them", r.name)
		}
		s.setAbsent(true)
		if err == nil || errors.Is(err, errOtherVersion) && s.Len() == 0 {
			// With objects of another agent, the caller asks another server before it removes them.
			if gone := s.Replace(nil, ""); err == nil {
				err = gone
			}
		}
	}
	if err != nil && ctx.Err() == nil {
		w.failed(r.name, err)
	}
	select {
	case <-time.After(absentPause/2 + rand.N(absentPause)):
	case <-s.again:
	case <-ctx.Done():
	}
	return false
}

// source lists and watches one resource, and reports errors.
type source struct {
	client   *rest.RESTClient
	resource string
	selector labels.Selector
	failed   func(resource string, err error)
	missing  func()        // called if the server does not know an optional resource; nil: every server knows it
	pause    time.Duration // of the reflector's goroutine
}

func (s *source) request(o metav1.ListOptions) *rest.Request {
	if s.selector != nil {
		o.LabelSelector = s.selector.String()
	}
	return s.client.Get().Resource(s.resource).VersionedParams(&o, metav1.ParameterCodec)
}

func (s *source) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// listTimeout bounds one page of a list: after it, the request is repeated.
const listTimeout = 60 * time.Second

func (s *source) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := s.request(o).Do(ctx).Get()
	s.tell(ctx, err)
	return list, err
}

func (s *source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

func (s *source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	w, err := s.request(o).Watch(ctx)
	s.tell(ctx, err)
	return w, err
}

// The pauses after successive failed requests: the reflector repeats some requests at once, after
// 410 Gone for example.
const failedMin, failedMax = 50 * time.Millisecond, 2 * time.Second

// tell reports an error, and delays a source whose requests fail repeatedly.
func (s *source) tell(ctx context.Context, err error) {
	if err == nil || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || errors.Is(ctx.Err(), context.Canceled) { // the two errors mean that the server cannot stream lists
		s.pause = 0
		return
	}
	if s.missing != nil && apierrors.IsNotFound(err) {
		s.missing()
		return
	}
	s.failed(s.resource, err)
	select {
	case <-time.After(s.pause):
	case <-ctx.Done():
	}
	s.pause = min(max(2*s.pause, failedMin), failedMax)
}

// quiet is how long the same failure is not reported again.
const quiet = time.Minute

func (w *Watcher) failed(resource string, err error) {
	if w.Failed != nil {
		w.Failed(resource, err)
	}
	now := time.Now()
	w.mu.Lock()
	last, reported := w.reported[resource]
	again := reported && now.Sub(last) < quiet
	if !again {
		if w.reported == nil {
			w.reported = map[string]time.Time{}
		}
		w.reported[resource] = now
	}
	w.mu.Unlock()
	if again {
		w.Log.Debug("the API server does not answer as expected", slog.String("resource", resource), slog.Any("error", err))
		return
	}
	w.Log.Warn("the API server does not answer as expected; the current configuration stays in force, and the request is repeated", slog.String("resource", resource), slog.Any("error", err))
}

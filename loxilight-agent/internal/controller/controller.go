// SPDX-License-Identifier: Apache-2.0

// Package controller assigns addresses of pools to Services of type LoadBalancer, and writes the
// conditions of ClusterNetworkPolicies. One process in the cluster does so at a time, the holder of a
// lease. It runs beside the nodes' agents with an account of its own, so that no node's account can
// write the status of a Service or a policy. It knows neither nodes nor the daemon.
package controller

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
	"github.com/loxilight/loxilight/loxilight-agent/internal/health"
	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/pools"
	"github.com/loxilight/loxilight/loxilight-agent/internal/services"
)

// ReasonAddresses is the reason in events about addresses that a Service does not get.
const ReasonAddresses = "LoxilightNoAddress"

// LeaseName is the lease of the process that writes. A new holder first waits (settle),
// so that it sees what the last holder wrote.
const (
	LeaseName     = "loxilight-addresses"
	leaseDuration = 15 * time.Second
	leaseTry      = 3 * time.Second
	settle        = 2 * time.Second
	assignPause   = 100 * time.Millisecond // between two rounds; until then, the watch reports the last one
)

// liveness is how long a round may take before the process should be restarted.
const liveness = 2 * time.Minute

// Options of a [Controller].
type Options struct {
	Config *config.Config
	Name   string // of this process among the candidates for the lease
	Kube   *kube.Client
	Log    *slog.Logger
}

// Controller assigns addresses and writes conditions. Create it with [New] and start it with [Controller.Run].
type Controller struct {
	o        Options
	pools    *pools.Pools
	services *kube.Store[corev1.Service]
	policies *kube.Store[kube.ClusterNetworkPolicy]
	events   *kube.Recorder
	changed  chan struct{} // a Service of type LoadBalancer or a policy has changed

	mu     sync.Mutex
	rounds time.Time // when the last round ended
}

// New returns a controller that does not do anything yet.
func New(o Options) (*Controller, error) {
	p, err := pools.New(o.Config.LoadBalancer.Pools)
	if err != nil {
		return nil, err
	}
	c := &Controller{o: o, pools: p, changed: make(chan struct{}, 1), rounds: time.Now()}
	all := kube.StoreOptions[corev1.Service]{Trim: trim, Changed: c.serviceChanged}
	if o.Config.ServiceProxyName == "" { // with a proxy name, there may be no Services
		all.Check = kube.NeverEmpty[corev1.Service]("Services")
	}
	c.services = kube.NewStore(all)
	c.policies = kube.NewStore(kube.StoreOptions[kube.ClusterNetworkPolicy]{Trim: trimPolicy, Changed: c.policyChanged})
	c.events = kube.NewRecorder(o.Kube, o.Log, "loxilight-controller", o.Name)
	return c, nil
}

// Run works until ctx is done, and then gives up the lease.
func (c *Controller) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all.Go(func() { health.Serve(ctx, c.o.Log, "health", c.o.Config.Health.Listen, health.Handler(c)) })
	watcher := &kube.Watcher{Log: c.o.Log}
	if c.hasPools() {
		ours, _ := services.Selectors(c.o.Config.ServiceProxyName)
		all.Go(func() { watcher.Services(ctx, c.o.Kube, ours, c.services) })
	} else {
		c.o.Log.Info("no pools are configured: there are no addresses to assign")
	}
	all.Go(func() { kube.ClusterPolicies(ctx, watcher, c.o.Kube, c.policies) })
	all.Go(func() { c.events.Run(ctx) })
	for !c.synced() {
		c.round()
		select {
		case <-c.services.Synced():
		case <-time.After(leaseTry):
		case <-ctx.Done():
			return
		}
	}
	c.write(ctx)
}

func (c *Controller) hasPools() bool { return len(c.o.Config.LoadBalancer.Pools) > 0 }

// write assigns addresses and writes conditions for as long as this process holds the lease. It does
// not ask for the lease while there is nothing to write.
func (c *Controller) write(ctx context.Context) {
	lease := &kube.Lease{
		Client: c.o.Kube, Namespace: Namespace(), Name: LeaseName, Holder: c.o.Name, Duration: leaseDuration,
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = lease.Release(ctx) // otherwise another process takes it a little later
	}()
	reported := map[string]string{} // problems, by namespace/name
	for {
		if c.hasPools() || c.policies.Len() > 0 {
			if err := lease.Try(ctx); err != nil && ctx.Err() == nil {
				c.o.Log.Debug("the lease could not be acquired", slog.Any("error", err))
			}
		}
		if since := lease.Held(); !since.IsZero() && time.Since(since) > settle {
			if c.hasPools() {
				c.assign(ctx, reported)
			}
			c.tellConditions(ctx)
		}
		c.round()
		select {
		case <-time.After(assignPause):
		case <-ctx.Done():
			return
		}
		select {
		case <-c.changed:
		case <-time.After(leaseTry):
		case <-ctx.Done():
			return
		}
	}
}

// assign writes the addresses of Services that do not have them yet.
func (c *Controller) assign(ctx context.Context, reported map[string]string) {
	now := map[string]string{}
	for _, as := range c.pools.Assign(c.services.All()) {
		s := as.Service
		key := kube.Key(s.Namespace, s.Name)
		if as.Problem != "" {
			now[key] = as.Problem
			if reported[key] != as.Problem {
				c.reportProblem(s, as.Problem)
			}
		}
		if !as.Changed() {
			continue
		}
		err := c.o.Kube.PatchServiceAddresses(ctx, s, as.Addresses, pools.Manager)
		switch {
		case err == nil:
			c.o.Log.Info("addresses assigned to a service", slog.String("service", key), slog.Any("addresses", as.Addresses))
		case apierrors.IsConflict(err) || apierrors.IsNotFound(err) || ctx.Err() != nil: // the watch reports the change
		default:
			c.o.Log.Warn("the addresses of a service could not be written; it is retried", slog.String("service", key), slog.Any("error", err))
		}
	}
	clear(reported)
	for key, problem := range now {
		reported[key] = problem
	}
}

// reportProblem reports that a Service does not have the addresses that it asks for.
func (c *Controller) reportProblem(s *corev1.Service, problem string) {
	c.o.Log.Warn("no address", slog.String("namespace", s.Namespace), slog.String("name", s.Name), slog.String("error", problem))
	c.events.Warn(corev1.ObjectReference{
		APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: s.UID,
	}, ReasonAddresses, problem)
}

// serviceChanged is called for each change to a Service.
func (c *Controller) serviceChanged(old, now *corev1.Service) {
	balancer := func(s *corev1.Service) bool { return s != nil && s.Spec.Type == corev1.ServiceTypeLoadBalancer }
	if !balancer(old) && !balancer(now) {
		return
	}
	c.wake()
}

// wake begins the next round.
func (c *Controller) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// trim removes the fields that are not needed to assign addresses: there are thousands of Services.
func trim(s *corev1.Service) {
	given := pools.Given(s)
	m := s.ObjectMeta
	s.ObjectMeta = metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
		ResourceVersion: m.ResourceVersion, ManagedFields: given,
	}
	for _, name := range []string{pools.AnnotationAddresses, pools.AnnotationPool} {
		if value, there := m.Annotations[name]; there {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, name, value)
		}
	}
	s.Spec.Selector, s.Spec.Ports, s.Status.Conditions = nil, nil, nil
}

func (c *Controller) round() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rounds = time.Now()
}

func (c *Controller) synced() bool {
	select {
	case <-c.services.Synced():
		return true
	default:
		return !c.hasPools()
	}
}

// Live implements [health.Checks].
func (c *Controller) Live() bool {
	alive, _ := c.Alive()
	return alive
}

// Alive implements [health.Checks].
func (c *Controller) Alive() (bool, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.rounds) < liveness, c.rounds
}

// Eligible implements [health.Checks]: no load balancer asks here.
func (c *Controller) Eligible() bool { return true }

// Readiness implements [health.Checks].
func (c *Controller) Readiness() (ready bool, why string) {
	if c.synced() {
		return true, ""
	}
	return false, "the API server has not listed the Services yet"
}

// Namespace is the namespace of the pod, in which the lease is.
func Namespace() string {
	if name := os.Getenv("POD_NAMESPACE"); name != "" {
		return name
	}
	if text, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace"); err == nil {
		return strings.TrimSpace(string(text))
	}
	return "kube-system"
}

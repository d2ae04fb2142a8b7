// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/policies"
)

// A pod of this node has no Entity, and so no network, before the agent's view of the policies of
// its namespace, of the namespace and of ClusterNetworkPolicies is no older than the pod: otherwise the pod would start
// without a policy that was created before it, because each resource has a watch of its own.
//
// The view is no older if
//   - the watches of all three resources have reported a later resourceVersion than the pod's: versions
//     of one cluster are comparable, and each watch reports changes in their order; or
//   - the stores contain the answers to three requests that are not older than the pod: the objects
//     in the answers in this version or a later one, and none that the answers lack.
//
// What the view contains is translated no later than the pod (see takeItems), and sent in the same
// transaction or before. The pods of the first list are treated alike; the Entity that an earlier
// agent left for such a pod stays in the meantime.
//
// Namespaces of peers are not checked: until the agent knows them, pods in them have no Entity, and
// match no selector. A change to their labels takes effect when the watch reports it.

// The limits of the checks: how many namespaces are checked at once, how long the stores may take
// until an answer is requested again, and the pauses after failed requests.
const (
	checksMax                    = 8
	viewPoll                     = 5 * time.Millisecond
	viewWait                     = time.Second
	checkPauseMin, checkPauseMax = 100 * time.Millisecond, 8 * time.Second
)

// view is how current the stores of policies and namespaces are, as resourceVersions.
type view struct{ policies, namespaces, clusterPolicies string }

// newPods are pods that wait for a check, by namespace. It is safe for concurrent use.
type newPods struct {
	ctx   context.Context // of Run
	tasks *sync.WaitGroup
	slots chan struct{}

	mu      sync.Mutex
	waiting map[string]map[string]string // by namespace and "namespace/name uid": the version
	running map[string]bool              // namespaces with a goroutine
}

func newNewPods() *newPods {
	return &newPods{slots: make(chan struct{}, checksMax), waiting: map[string]map[string]string{}, running: map[string]bool{}}
}

func checkKey(p *policies.Pod) string { return p.Key() + " " + p.UID() }

// isChecked reports whether the view is no older than a pod of this node. Otherwise a check begins,
// which puts the pod into the queue again.
func (a *Agent) isChecked(p *policies.Pod) bool {
	s := a.participants
	if s.checked[p.Key()] == p.UID() {
		return true
	}
	if kube.NotOlder(s.view.policies, p.Version()) && kube.NotOlder(s.view.namespaces, p.Version()) && kube.NotOlder(s.view.clusterPolicies, p.Version()) {
		s.checked[p.Key()] = p.UID()
		return true
	}
	a.newPods.mu.Lock()
	defer a.newPods.mu.Unlock()
	namespace := p.Namespace()
	if a.newPods.waiting[namespace] == nil {
		a.newPods.waiting[namespace] = map[string]string{}
	}
	a.newPods.waiting[namespace][checkKey(p)] = p.Version()
	if !a.newPods.running[namespace] {
		a.newPods.running[namespace] = true
		a.newPods.tasks.Go(func() { a.checkNamespace(a.newPods.ctx, namespace) })
	}
	return false
}

// noteChecked records that a check has succeeded, and returns the key of the pod. The pod may not
// exist any more.
func (a *Agent) noteChecked(check string) (key string) {
	key, uid, _ := strings.Cut(check, " ")
	a.participants.checked[key] = uid
	return key
}

// checkNamespace checks the pods of a namespace until none waits.
func (a *Agent) checkNamespace(ctx context.Context, namespace string) {
	for pause := checkPauseMin; ; {
		n := a.newPods
		n.mu.Lock()
		batch := n.waiting[namespace]
		delete(n.waiting, namespace)
		if len(batch) == 0 {
			delete(n.running, namespace)
			n.mu.Unlock()
			return
		}
		n.mu.Unlock()
		version := ""
		for _, v := range batch {
			if version == "" || kube.NotOlder(v, version) {
				version = v
			}
		}
		err := a.awaitView(ctx, namespace, version)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			pause = checkPauseMin
			for key := range batch {
				a.queue.put(item{itemChecked, key}, time.Time{})
			}
			continue
		}
		n.mu.Lock()
		for key, v := range n.waiting[namespace] {
			batch[key] = v
		}
		n.waiting[namespace] = batch
		n.mu.Unlock()
		if errors.Is(err, errOlder) {
			continue // which has taken a while
		}
		a.log.Warn("new pods wait, because their policies cannot be read from the API server; it is retried",
			slog.String("namespace", namespace), slog.Int("pods", len(batch)), slog.Any("error", err))
		if !sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, checkPauseMax)
	}
}

// errOlder is returned while the stores do not contain an answer of the API server.
var errOlder = errors.New("the agent's view is older than the API server's")

// awaitView waits until the stores of policies and namespaces contain what the API server has, not
// older than a version.
func (a *Agent) awaitView(ctx context.Context, namespace, version string) error {
	select {
	case a.newPods.slots <- struct{}{}:
		defer func() { <-a.newPods.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	listed, err := a.o.Kube.NetworkPoliciesOf(ctx, namespace, version)
	if err != nil {
		a.metrics.apiFailures.Add(1, "networkpolicies")
		return err
	}
	own, err := a.o.Kube.Namespace(ctx, namespace, version)
	if err != nil {
		a.metrics.apiFailures.Add(1, "namespaces")
		return err
	}
	everywhere, err := a.o.Kube.ClusterPolicies(ctx, version)
	if err != nil {
		a.metrics.apiFailures.Add(1, "clusternetworkpolicies")
		return err
	}
	if len(everywhere.Objects) > 0 {
		a.clusterPolicies.LookAgain()
	}
	contain := func() bool {
		return a.policies.Contains(listed, func() []*packedPolicy { return a.policies.By(namespace) }) &&
			a.namespaces.Contains(own, func() []*corev1.Namespace { return listOf(a.namespaces.Get(namespace)) }) &&
			a.clusterPolicies.Contains(everywhere, a.clusterPolicies.All)
	}
	for end := time.Now().Add(viewWait); !contain(); {
		if time.Now().After(end) {
			return errOlder
		}
		if !sleep(ctx, viewPoll) {
			return ctx.Err()
		}
	}
	return nil
}

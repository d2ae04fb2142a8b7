// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
)

// The pauses between attempts to reach a daemon that is unreachable or failing.
const sessionPauseMin, sessionPauseMax = 100 * time.Millisecond, 5 * time.Second

// A burst of changes is one transaction: the first change waits this long for others, and longer
// after large transactions, so that the daemon has time for other things.
const gatherMin, gatherMax = 20 * time.Millisecond, time.Second

// keepInStep keeps the daemon in step, one session after the other, until ctx is done.
func (a *Agent) keepInStep(ctx context.Context) {
	last := ""
	for pause := sessionPauseMin; ctx.Err() == nil; pause = min(2*pause, sessionPauseMax) {
		begin := time.Now()
		inStep, err := a.session(ctx)
		if ctx.Err() != nil {
			return
		}
		a.state.lost(err)
		if inStep && time.Since(begin) > sessionPauseMax {
			pause = sessionPauseMin
		}
		level := slog.LevelWarn
		if text := err.Error(); !inStep && text == last { // logged already
			level = slog.LevelDebug
		} else {
			last = text
		}
		a.log.Log(ctx, level, "not in sync with the daemon; it is retried", slog.Any("error", err), slog.Duration("pause", pause))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// lookAgain is how often the state of a pod network that is not Ready is read: its problem may be
// resolved without a new outcome, and so without an event.
const lookAgain = time.Second

// session runs for one connection to the daemon's events: it replaces everything, and keeps it in
// step until the connection ends.
func (a *Agent) session(ctx context.Context) (inStep bool, err error) {
	sub, err := a.o.Daemon.Subscribe(ctx, api.TopicChanges, api.TopicStatus)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer cancel(nil)
	defer sub.Close()
	news := &news{}
	reader.Go(func() { cancel(news.read(ctx, sub, a.queue.poke)) })
	if !a.remembers {
		if err := a.confirmRemoved(ctx); err != nil {
			return false, ended(ctx, err)
		}
		if err := a.rememberDeparted(ctx); err != nil {
			return false, ended(ctx, err)
		}
		a.remembers = true
	}
	if err := a.replace(ctx); err != nil {
		return false, ended(ctx, err)
	}
	for {
		if err := a.step(ctx, news); err != nil {
			return true, ended(ctx, err)
		}
	}
}

// ended returns why a session ended; if the error only follows from the end of the connection, that
// is the cause of this end.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

// step waits for something to do, and does it.
func (a *Agent) step(ctx context.Context, news *news) error {
	var retry <-chan time.Time
	if next := a.syncer.Next(); !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		retry = timer.C
	}
	var look <-chan time.Time
	if next := a.state.nextLook(); !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		look = timer.C
	}
	select {
	case <-a.queue.wake:
	case <-retry:
	case <-look:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-time.After(a.state.gather):
	case <-ctx.Done():
		return ctx.Err()
	}
	a.translate()
	begin := time.Now()
	foreign, err := a.digest(ctx, news)
	switch {
	case err != nil:
	case foreign:
		err = a.repair(ctx)
	default:
		err = a.syncer.Flush(ctx)
	}
	a.state.gather = min(max(2*time.Since(begin), gatherMin), gatherMax)
	if err == nil {
		a.state.count(a.syncer.Len(), a.syncer.Refused())
	}
	return err
}

// replace replaces all objects in the daemon with the desired ones.
func (a *Agent) replace(ctx context.Context) error {
	if err := a.syncer.Replace(ctx); err != nil {
		return err
	}
	a.state.inStep()
	debug.FreeOSMemory() // translating and sending everything needed a lot of memory
	a.state.count(a.syncer.Len(), a.syncer.Refused())
	return a.lookAtNetwork(ctx)
}

// repair calls replace because another client has changed our objects: at most once a second, and
// less often if the changes continue.
func (a *Agent) repair(ctx context.Context) error {
	pause := a.state.repairPause()
	a.metrics.repairs.Add(1)
	a.log.Warn("another client changed objects of owner k8s; they are repaired", slog.Duration("pause", pause))
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return ctx.Err()
	}
	return a.replace(ctx)
}

// digest evaluates the daemon's events. foreign is set if the daemon lacks desired objects because
// of another client.
func (a *Agent) digest(ctx context.Context, news *news) (foreign bool, err error) {
	changes, statuses, lost := news.take()
	var seen uint64
	for _, c := range changes {
		foreign = foreign || a.syncer.Foreign(c.Revision, api.ObjectRef{Kind: c.Kind, Name: c.Name})
		if c.Kind == api.KindEndpoint && c.Action == api.ActionDeleted {
			a.syncer.Retry(podNetwork) // it may have been the last Endpoint in the way
		}
		seen = max(seen, c.Revision)
	}
	if !lost { // otherwise an earlier event may have been missed
		a.syncer.Seen(seen)
	}
	next := a.state.nextLook()
	look := lost || !next.IsZero() && !time.Now().Before(next)
	for _, s := range statuses {
		look = look || s.Kind == api.KindPodNetwork && s.Name == nodes.Network
		if s.State == api.StateError && s.Backend == "" && slices.Contains(Kinds, s.Kind) {
			a.failing(api.ObjectRef{Kind: s.Kind, Name: s.Name}, s.Message)
		}
	}
	if lost && !foreign {
		if foreign, err = a.syncer.CatchUp(ctx); err != nil {
			return false, err
		}
	}
	if look {
		err = a.lookAtNetwork(ctx)
	}
	return foreign, err
}

// lookAtNetwork reads the state of the pod network from the daemon.
func (a *Agent) lookAtNetwork(ctx context.Context) error {
	o, err := a.o.Daemon.Get(ctx, api.KindPodNetwork, nodes.Network)
	if none, ok := errors.AsType[*api.Error](err); ok && none.Reason() == api.ReasonNotFound {
		why := "the node has no podCIDRs yet: does the controller manager allocate them (--allocate-node-cidrs)?"
		if node := a.self(); node != nil {
			if cidrs, err := nodes.PodCIDRs(node); err != nil || len(cidrs) > 0 {
				why = "it is refused: see the events of the node"
			}
		}
		a.state.network(api.StatePending, why)
		return nil
	}
	if err != nil {
		return err
	}
	if refused := a.syncer.Refusal(podNetwork); refused != nil {
		a.networkRefused(refused)
		return nil
	}
	var status api.PodNetworkStatus
	if err := decode(o.Status, &status); err != nil {
		return err
	}
	a.state.network(status.State, status.Message)
	return nil
}

// podNetwork is the network of the node's pods.
var podNetwork = api.ObjectRef{Kind: api.KindPodNetwork, Name: nodes.Network}

// networkRefused records that the pods here are not in the node's subnets, for example after the
// node was registered again: other nodes cannot reach pods that start now.
func (a *Agent) networkRefused(err *api.Error) {
	a.state.network(api.StateError, "the daemon refuses the network of the node's podCIDRs, and new pods would use the previous network: "+err.Message)
}

// news collects the daemon's events until they are evaluated.
type news struct {
	mu       sync.Mutex
	changes  []api.ChangeEvent
	statuses []api.StatusEvent
	lost     bool
}

// newsMax is how many events are kept: beyond that, the state is read from the daemon.
const newsMax = 10000

// read reads events until the subscription ends.
func (n *news) read(ctx context.Context, sub *client.Subscription, wake func()) error {
	for {
		e, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		if err := n.add(&e); err != nil {
			return err
		}
		wake()
	}
}

func (n *news) add(e *client.Event) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.Lost > 0 || len(n.changes)+len(n.statuses) > newsMax {
		n.lost = true
	}
	if e.Data == nil || n.lost {
		return nil
	}
	if e.Topic == api.TopicStatus {
		var s api.StatusEvent
		if err := e.Decode(&s); err != nil {
			return err
		}
		n.statuses = append(n.statuses, s)
		return nil
	}
	var c api.ChangeEvent
	if err := e.Decode(&c); err != nil {
		return err
	}
	n.changes = append(n.changes, c)
	return nil
}

func (n *news) take() ([]api.ChangeEvent, []api.StatusEvent, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	changes, statuses, lost := n.changes, n.statuses, n.lost
	n.changes, n.statuses, n.lost = nil, nil, false
	return changes, statuses, lost
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/api"
)

// Reasons of the node's condition NetworkUnavailable.
const (
	reasonReady    = "LoxilightReady"
	reasonNotReady = "LoxilightNotReady"
	reasonNoDaemon = "LoxilightDaemonUnavailable"
)

// How long pods may be without network before the node reports that: a device that returns at
// once, or a daemon that restarts, is no reason to send pods elsewhere.
const (
	podsGrace   = 10 * time.Second
	daemonGrace = time.Minute
)

// tellCondition keeps the node's condition NetworkUnavailable up to date.
func (a *Agent) tellCondition(ctx context.Context) {
	const again = 5 * time.Second // after a failed write, and to notice the end of a grace period
	for {
		if condition := a.condition(time.Now()); condition != nil {
			if err := a.o.Kube.PatchNodeCondition(ctx, a.o.NodeName, *condition); err != nil && ctx.Err() == nil {
				a.log.Debug("the condition of the node could not be written", slog.Any("error", err))
			} else if err == nil {
				a.log.Info("the node's condition is written", slog.String("condition", string(condition.Type)),
					slog.String("status", string(condition.Status)), slog.String("reason", condition.Reason), slog.String("message", condition.Message))
				if !sleep(ctx, time.Second) { // until the API server reports it
					return
				}
			}
		}
		select {
		case <-a.state.changed:
		case <-time.After(again):
		case <-ctx.Done():
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// condition returns the node's new condition, or nil if it is already set or unknown.
func (a *Agent) condition(now time.Time) *corev1.NodeCondition {
	node := a.self()
	if node == nil {
		return nil
	}
	status, reason, message := a.state.condition(now)
	if status == corev1.ConditionUnknown {
		return nil
	}
	at := metav1.NewTime(now)
	changed := at // the status, not the reason or the message
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeNetworkUnavailable || c.Status != status {
			continue
		}
		if c.Reason == reason && c.Message == message {
			return nil
		}
		if !c.LastTransitionTime.IsZero() {
			changed = c.LastTransitionTime
		}
	}
	return &corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: status, Reason: reason, Message: message,
		LastHeartbeatTime: at, LastTransitionTime: changed,
	}
}

// condition returns the status of NetworkUnavailable; unknown: the condition stays unchanged.
func (s *state) condition(now time.Time) (status corev1.ConditionStatus, reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.begun, !s.daemon && now.Sub(s.since) < daemonGrace:
		return corev1.ConditionUnknown, "", ""
	case !s.daemon:
		return corev1.ConditionTrue, reasonNoDaemon, "the agent is not in sync with loxilightd; the current configuration stays in force"
	case s.pods == api.StateReady:
		return corev1.ConditionFalse, reasonReady, "the pod network is ready"
	case s.pods == "", now.Sub(s.podsSince) < podsGrace:
		return corev1.ConditionUnknown, "", ""
	}
	return corev1.ConditionTrue, reasonNotReady, "PodNetwork/default is " + s.pods + ": " + s.podsMessage
}

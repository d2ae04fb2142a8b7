// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Recorder writes events about cluster objects, for users. It is best effort: a repeated event is
// written again only after a while, the rate is limited, and an event that cannot be written is
// lost. It is safe for concurrent use.
type Recorder struct {
	client          *Client
	log             *slog.Logger
	component, host string
	queue           chan *corev1.Event

	mu   sync.Mutex
	seen map[string]time.Time
}

// The same event is not written again within eventsAgain; at most eventsQueue wait.
const (
	eventsAgain = 10 * time.Minute
	eventsQueue = 256
	eventsPause = 100 * time.Millisecond // between two
)

// NewRecorder makes a recorder for a component on a host.
func NewRecorder(c *Client, log *slog.Logger, component, host string) *Recorder {
	return &Recorder{client: c, log: log, component: component, host: host, queue: make(chan *corev1.Event, eventsQueue), seen: map[string]time.Time{}}
}

// Warn writes a warning about an object: reason is a word, message a sentence.
func (r *Recorder) Warn(about corev1.ObjectReference, reason, message string) {
	now := time.Now()
	const longest = 1024
	if len(message) > longest {
		message = message[:longest]
	}
	if !r.first(about.Kind+" "+about.Namespace+" "+about.Name+" "+reason+" "+message, now) {
		return
	}
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	at := metav1.NewTime(now)
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%x", about.Name, now.UnixNano())},
		InvolvedObject: about, Reason: reason, Message: message, Type: corev1.EventTypeWarning,
		Source:         corev1.EventSource{Component: r.component, Host: r.host},
		FirstTimestamp: at, LastTimestamp: at, Count: 1, ReportingController: r.component, ReportingInstance: r.host,
	}
	select {
	case r.queue <- e:
	default: // too many events: the rest is dropped
	}
}

// first reports whether an event was not written recently.
func (r *Recorder) first(text string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for old, at := range r.seen {
		if now.Sub(at) > eventsAgain {
			delete(r.seen, old)
		}
	}
	if _, seen := r.seen[text]; seen {
		return false
	}
	r.seen[text] = now
	return true
}

// Run writes events until ctx is done.
func (r *Recorder) Run(ctx context.Context) {
	for {
		select {
		case e := <-r.queue:
			if err := r.client.CreateEvent(ctx, e); err != nil && ctx.Err() == nil {
				r.log.Debug("an event could not be written", slog.String("about", e.InvolvedObject.Kind+"/"+e.InvolvedObject.Name), slog.Any("error", err))
			}
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(eventsPause):
		case <-ctx.Done():
			return
		}
	}
}

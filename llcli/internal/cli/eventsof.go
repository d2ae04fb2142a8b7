// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// eventsOf chooses the events of one object, or of all that a pod or a service of Kubernetes
// is made of; nil chooses all.
type eventsOf struct {
	kind, name string
	// ours says of each object of the kind that is known whether it is one of those.
	ours map[string]bool
	// podOf asks which pod an Endpoint is of, as NAMESPACE/NAME; empty: of none.
	podOf func(ctx context.Context, endpoint string) (string, error)
}

// eventsOf reads KIND/NAME, where NAME may be that of a pod or a service of Kubernetes.
func (a *app) eventsOf(ctx context.Context, d Daemon, of string) (*eventsOf, error) {
	if of == "" {
		return nil, nil
	}
	word, name, _ := strings.Cut(of, "/")
	f := &eventsOf{kind: kindOf(word), name: name, ours: map[string]bool{}}
	f.podOf = func(ctx context.Context, endpoint string) (string, error) {
		o, err := a.object(ctx, d, api.KindEndpoint, endpoint)
		var spec api.EndpointSpec
		decode(&o, &spec, &struct{}{})
		return spec.Namespace + "/" + spec.Pod, err
	}
	names, err := []string{name}, error(nil)
	switch f.kind {
	case api.KindEndpoint:
		names, err = a.endpointsOf(ctx, d, name)
	case api.KindService:
		names, err = a.objectsOf(ctx, d, name)
	}
	for _, n := range names {
		f.ours[n] = true
	}
	if err != nil || len(names) != 1 || names[0] != name {
		return f, err
	}
	if _, err := a.object(ctx, d, f.kind, name); isNotFound(err) {
		a.note("there is no %s: what comes of it is shown once it is there", of)
	} else if err != nil {
		return nil, err
	}
	return f, nil
}

// concerns says whether an event is one of them.
func (f *eventsOf) concerns(ctx context.Context, e *client.Event) bool {
	if f == nil {
		return true
	}
	var about struct {
		Kind, Name, Service, Endpoint string
		From, To                      api.ConnectionSide
	}
	if err := e.Decode(&about); err != nil {
		return true // better one too many
	}
	switch {
	case f.kind == api.KindService && about.Service != "":
		return f.ours[about.Service]
	case f.kind == api.KindEndpoint && about.Kind == "":
		return f.has(ctx, about.Endpoint) || f.has(ctx, about.From.Endpoint) || f.has(ctx, about.To.Endpoint)
	case about.Service != "" || about.Kind != f.kind:
		return false
	case f.kind == api.KindEndpoint:
		return f.has(ctx, about.Name)
	default:
		return f.ours[about.Name]
	}
}

// has says whether an Endpoint is one of them. One that came since is asked for once.
func (f *eventsOf) has(ctx context.Context, endpoint string) bool {
	if endpoint == "" {
		return false
	}
	ours, known := f.ours[endpoint]
	if !known {
		pod, err := f.podOf(ctx, endpoint)
		ours = err == nil && pod == f.name
		if err == nil || isNotFound(err) {
			f.ours[endpoint] = ours
		}
	}
	return ours
}

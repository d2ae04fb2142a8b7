// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
)

// topicsAbout returns the topics to subscribe to: the requested ones, or by default all that can
// name the object. Other topics are rejected, because they would never have such an event.
func topicsAbout(of string, topics []string) ([]string, error) {
	word, _, _ := strings.Cut(of, "/")
	kind := kinds.NameOf(word)
	able := kinds.TopicsOf(kind)
	if len(topics) == 0 {
		return able, nil
	}
	for _, topic := range topics {
		if !slices.Contains(able, topic) {
			return nil, command.Usagef("--of %s: events of topic %s do not name objects of kind %s; topics that do: %s",
				of, topic, kind, strings.Join(able, ", "))
		}
	}
	return topics, nil
}

// eventsOf selects the events of one object, or of all objects that a Kubernetes pod or service
// consists of; nil selects all.
type eventsOf struct {
	kind, name string
	// ours reports for each known object of the kind whether it is selected.
	ours map[string]bool
	// gone is set if no object has the name. If the name was that of a Kubernetes service, the
	// names of the Services that it consisted of begin with it.
	gone bool
	// devices are the Linux devices of the object, which events name instead of the object.
	devices map[string]bool
	// devicesOf reads the devices again after a change to the object.
	devicesOf func(ctx context.Context) (map[string]bool, error)
	// podOf returns the pod of an Endpoint, as NAMESPACE/NAME; empty: none.
	podOf func(ctx context.Context, endpoint string) (string, error)
}

// shownOfMissing describes which events are shown for an object that does not exist.
func (o *eventOptions) shownOfMissing(kind string) string {
	text := "its events are shown once it does"
	switch {
	case !o.past:
		return text
	case !o.follow:
		text = "the past events that name it are shown"
	default:
		text = "the past events that name it are shown, and further ones once it exists again"
	}
	if hasDevices(kind) {
		text += "; events that name only its devices are not found"
	}
	return text
}

// newEventsOf parses KIND/NAME; NAME may be the name of a Kubernetes pod or service.
func newEventsOf(ctx context.Context, a *command.App, d command.Daemon, o *eventOptions) (*eventsOf, error) {
	of := o.of
	if of == "" {
		return nil, nil
	}
	word, name, _ := strings.Cut(of, "/")
	f := &eventsOf{kind: kinds.NameOf(word), name: name, ours: map[string]bool{}, devices: map[string]bool{}}
	f.podOf = func(ctx context.Context, endpoint string) (string, error) {
		o, err := a.Object(ctx, d, api.KindEndpoint, endpoint)
		var spec api.EndpointSpec
		kinds.Decode(&o, &spec, &struct{}{})
		return spec.Namespace + "/" + spec.Pod, err
	}
	f.devicesOf = func(ctx context.Context) (map[string]bool, error) {
		o, err := a.Object(ctx, d, f.kind, name)
		return devicesOf(&o), err
	}
	names, err := kinds.Expand(ctx, a, d, f.kind, name)
	for _, n := range names {
		f.ours[n] = true
	}
	if err != nil || len(names) != 1 || names[0] != name {
		return f, err
	}
	devices, err := f.devicesOf(ctx)
	maps.Copy(f.devices, devices)
	if command.IsNotFound(err) {
		f.gone = true
		a.Note("%s/%s does not exist; %s", f.kind, name, o.shownOfMissing(f.kind))
	} else if err != nil {
		return nil, err
	}
	return f, nil
}

// hasDevices reports whether events name the devices of objects of a kind.
func hasDevices(kind string) bool {
	return kind == api.KindInterface || kind == api.KindTunnel || kind == api.KindBridge
}

// devicesOf returns the Linux devices that an object attaches to, creates or connects.
func devicesOf(o *api.Object) map[string]bool {
	var spec struct {
		Device  string
		Address string
		Ports   []struct{ Device string }
	}
	var status struct{ Device string }
	if hasDevices(o.Kind) {
		kinds.Decode(o, &spec, &status)
		if spec.Device == "" && spec.Address == "" {
			spec.Device = o.Name
		}
	}
	devices := map[string]bool{spec.Device: true, status.Device: true}
	for _, p := range spec.Ports {
		devices[p.Device] = true
	}
	delete(devices, "")
	return devices
}

// aboutEvent contains the fields of all topics' events that name objects.
type aboutEvent struct {
	Kind, Name, Service, Endpoint, Rule, NAT, Device string
	TranslatedBy                                     []string
	From, To                                         api.ConnectionSide
	Forth, Back                                      api.Way
}

// concerns reports whether an event is about the object.
func (f *eventsOf) concerns(ctx context.Context, e *client.Event) bool {
	if f == nil {
		return true
	}
	var raw struct {
		aboutEvent
		NAT    any // of a drop: the name of an object; of a connection: how it is translated
		Policy any // of a drop: what decided; of topic policy: the name of an object
	}
	if err := e.Decode(&raw); err != nil {
		return true // better one event too many
	}
	about := raw.aboutEvent
	if e.Topic == api.TopicDrops {
		about.NAT, _ = raw.NAT.(string)
	}
	if about.Kind != "" { // of topic changes or status
		return f.concernsObject(ctx, &about)
	}
	switch f.kind {
	case api.KindService:
		return about.Service != "" && f.isService(about.Service)
	case api.KindEndpoint:
		return f.has(ctx, about.Endpoint) || f.has(ctx, about.From.Endpoint) || f.has(ctx, about.To.Endpoint)
	case api.KindFirewallRule:
		return about.Rule == f.name
	case api.KindPolicy:
		decided, _ := raw.Policy.(map[string]any)
		return raw.Policy == f.name || decided["policy"] == f.name
	case api.KindNAT:
		return about.NAT == f.name || slices.Contains(about.TranslatedBy, f.name)
	case api.KindPeer:
		return about.Forth.Peer == f.name || about.Back.Peer == f.name
	case api.KindTunnel:
		if about.Forth.Tunnel == f.name || about.Back.Tunnel == f.name {
			return true
		}
	}
	return f.devices[about.Device] || f.devices[about.Forth.Device] || f.devices[about.Back.Device]
}

// concernsObject is like concerns, for events that name an object.
func (f *eventsOf) concernsObject(ctx context.Context, about *aboutEvent) bool {
	switch {
	case about.Kind != f.kind:
		return false
	case f.kind == api.KindEndpoint:
		return f.has(ctx, about.Name)
	case f.kind == api.KindService:
		return f.isService(about.Name)
	case f.ours[about.Name] && f.devicesOf != nil:
		// Events about packets of its previous devices may still arrive.
		if devices, err := f.devicesOf(ctx); err == nil {
			maps.Copy(f.devices, devices)
		}
	}
	return f.ours[about.Name]
}

// isService reports whether a Service is selected.
func (f *eventsOf) isService(name string) bool {
	rest, begins := strings.CutPrefix(name, f.name)
	return f.ours[name] || f.gone && begins && strings.Count(f.name, "/") == 1 && !strings.Contains(f.name, ":") &&
		(strings.HasPrefix(rest, ":") || strings.HasPrefix(rest, "/"))
}

// has reports whether an Endpoint is selected. A new Endpoint is looked up once; the name of a
// deleted one begins with the name of its pod.
func (f *eventsOf) has(ctx context.Context, endpoint string) bool {
	if endpoint == "" {
		return false
	}
	ours, known := f.ours[endpoint]
	if !known {
		pod, err := f.podOf(ctx, endpoint)
		ours = err == nil && pod == f.name
		if command.IsNotFound(err) {
			i := strings.LastIndexByte(endpoint, '/')
			ours = i >= 0 && endpoint[:i] == f.name
		}
		if err == nil || command.IsNotFound(err) {
			f.ours[endpoint] = ours
		}
	}
	return ours
}
